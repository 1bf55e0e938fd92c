"""Which node may be borrowed: no suspect, no second one of a group, another rack first."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.health import Standing
from sickbay.domain.neighbour import Bystander, neighbours
from sickbay.domain.node import Node

SUSPECT = Node("n001", pool="p", group="g1", rack="r1", node_class="h200x8")
FIT = Bystander("n009", "g3", "r2", "h200x8", Standing.HEALTHY, 1.0, True, False, False)

NODES = st.builds(
    Bystander,
    node=st.sampled_from([f"n{i:03d}" for i in range(1, 20)]),
    group=st.sampled_from(["", "g1", "g2", "g3", "g4"]),
    rack=st.sampled_from(["r1", "r2", "r3"]),
    node_class=st.sampled_from(["h200x8", "h100x8"]),
    standing=st.sampled_from(Standing),
    value=st.none() | st.floats(0, 1),
    gate_open=st.booleans(),
    in_repair=st.booleans(),
    held=st.booleans(),
)
POOLS = st.lists(NODES, max_size=20, unique_by=lambda b: b.node)


@given(POOLS, st.sets(st.sampled_from([f"n{i:03d}" for i in range(1, 20)]), max_size=4))
def test_whoever_is_chosen_is_fit_and_its_group_is_whole(pool, avoid):
    by_name = {b.node: b for b in pool}
    for name in neighbours(SUSPECT, pool, avoid=avoid):
        b = by_name[name]
        assert name not in avoid | {SUSPECT.id}
        assert (b.standing, b.node_class) == (Standing.HEALTHY, SUSPECT.node_class)
        assert b.value is not None
        assert b.value >= 0.7
        assert b.gate_open
        assert not b.in_repair
        assert not b.held
        if b.group:
            assert b.group != SUSPECT.group
            mates = [m for m in pool if m.group == b.group]
            assert all(m.gate_open and not m.in_repair and not m.held for m in mates)


@given(POOLS)
def test_another_rack_comes_before_the_suspects_own(pool):
    racks = {b.node: b.rack for b in pool}
    own = [racks[name] == SUSPECT.rack for name in neighbours(SUSPECT, pool)]
    assert own == sorted(own)


@given(POOLS, st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_the_records(pool, random):
    shuffled = list(pool)
    random.shuffle(shuffled)
    assert neighbours(SUSPECT, shuffled) == neighbours(SUSPECT, pool)


@given(POOLS)
def test_one_more_suspicion_never_adds_a_choice(pool):
    before = set(neighbours(SUSPECT, pool))
    for i, one in enumerate(pool):
        worse = [*pool[:i], replace(one, in_repair=True), *pool[i + 1 :]]
        assert set(neighbours(SUSPECT, worse)) <= before - {one.node}


def test_unknown_health_is_no_good_neighbour():
    assert neighbours(SUSPECT, [FIT]) == ("n009",)
    assert neighbours(SUSPECT, [replace(FIT, value=None)]) == ()
    assert neighbours(SUSPECT, [replace(FIT, standing=Standing.UNKNOWN)]) == ()


def test_two_suspects_rarely_want_the_same_neighbour_first():
    pool = [replace(FIT, node=f"n{i:03d}", group=f"g{i}") for i in range(10, 60)]
    firsts = {neighbours(replace(SUSPECT, id=f"s{i}"), pool)[0] for i in range(20)}
    assert len(firsts) > 10
