"""A factor is named only beyond chance; of a failing pair nobody is, without a third partner."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.baseline import Baseline
from sickbay.domain.blame import PairRun, blame_pairs, common_factor, next_pair, tail


def fleet(count: int, *, new_driver: int):
    return [
        {"driver": "new" if i < new_driver else "old", "rack": f"r{i % 16}", "os": "one"}
        for i in range(count)
    ]


def test_a_driver_carried_by_all_failing_nodes_and_few_others_is_named():
    nodes = fleet(128, new_driver=16)
    found = common_factor(nodes[:8], nodes)
    assert found is not None
    assert (found.name, found.value, found.failing, found.carriers) == ("driver", "new", 8, 16)


def test_what_every_node_carries_is_no_cause():
    nodes = [{"os": "one"} for _ in range(64)]
    assert common_factor(nodes[:8], nodes) is None


def test_failures_spread_evenly_have_nothing_in_common():
    nodes = fleet(128, new_driver=64)
    assert common_factor(nodes[::15], nodes) is None


def test_two_nodes_share_anything_by_accident():
    nodes = fleet(128, new_driver=2)
    assert common_factor(nodes[:2], nodes) is None


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 30))
def test_the_tail_is_a_probability_that_falls_with_what_was_found(carriers, drawn, found):
    values = [
        tail(population=40, carriers=carriers, drawn=drawn, found=k) for k in range(found + 1)
    ]
    assert values[0] == 1.0
    assert all(0 <= b <= a <= 1 for a, b in pairwise(values))


def test_node_27_fails_its_floor_and_no_peer_can_lower_it():
    baseline = Baseline(floor=270.0, fraction_of_median=0.9)
    assert not baseline.holds(258.0, cohort=[])
    assert not baseline.holds(258.0, cohort=[258.0] * 9)
    assert baseline.holds(300.0, cohort=[310.0] * 9)
    assert not baseline.holds(275.0, cohort=[320.0] * 9)


NAMES = [f"n{i}" for i in range(8)]
PAIRS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(lambda p: p[0] != p[1]),
    max_size=20,
)


def table(*runs):
    return [PairRun(one, other, good) for one, other, good in runs]


def seen(pairs, sick):
    """What the pairs give when exactly these nodes are sick."""
    return [PairRun(a, b, good=a not in sick and b not in sick) for a, b in pairs]


@given(PAIRS, st.none() | st.sampled_from(NAMES))
def test_with_at_most_one_sick_node_nobody_else_is_ever_blamed(pairs, sick):
    told = blame_pairs(seen(pairs, {sick}))
    assert told.bad <= {sick}
    assert sick not in told.good
    assert told.paths == frozenset()


@given(PAIRS, st.sets(st.sampled_from(NAMES), max_size=8))
def test_nobody_is_both_good_and_bad_and_the_order_of_the_runs_is_no_matter(pairs, sick):
    runs = seen(pairs, sick)
    told = blame_pairs(runs)
    assert not told.good & told.bad
    assert blame_pairs(runs[::-1]) == told
    assert not told.good & sick


@given(st.sampled_from(NAMES), st.permutations(NAMES))
def test_following_the_next_pair_decides_every_suspect_in_three_runs(sick, order):
    for suspect in NAMES:
        runs = []
        while pair := next_pair(runs, suspect=suspect, partners=order):
            runs += seen([pair], {sick})
        told = blame_pairs(runs)
        assert len(runs) <= 3
        assert suspect in (told.bad if suspect == sick else told.good)


@given(PAIRS, st.sets(st.sampled_from(NAMES)))
def test_a_run_that_measured_nothing_tells_nothing(pairs, sick):
    runs = seen(pairs, sick)
    nothing = [PairRun(a, b, good=None) for a, b in pairs]
    assert blame_pairs([*nothing, *runs, *nothing]) == blame_pairs(runs)


def test_one_bad_pair_blames_nobody_and_asks_for_a_third_partner():
    runs = table(("a", "b", False))
    assert blame_pairs(runs).bad == frozenset()
    assert next_pair(runs, suspect="a", partners=["b", "c"]) == ("a", "c")
    assert next_pair(runs, suspect="a", partners=["b"]) is None


def test_a_partner_known_to_work_is_asked_first():
    runs = table(("a", "b", False), ("d", "e", True))
    assert next_pair(runs, suspect="a", partners=["b", "c", "d"]) == ("a", "d")


def test_the_fault_that_follows_the_node_blames_the_node():
    assert blame_pairs(table(("a", "b", False), ("a", "c", False))).bad == {"a"}


def test_two_suspects_together_prove_nothing():
    """Three nodes that all fail with one another: at least two are sick, and nobody knows which."""
    told = blame_pairs(table(("a", "b", False), ("a", "c", False), ("b", "c", False)))
    assert told.bad == frozenset()


def test_two_good_nodes_that_fail_together_blame_the_path():
    told = blame_pairs(table(("a", "c", True), ("b", "d", True), ("a", "b", False)))
    assert (told.bad, told.paths) == (frozenset(), {frozenset("ab")})


def test_the_last_run_of_a_pair_counts():
    assert blame_pairs(table(("a", "b", False), ("b", "a", True))).good == {"a", "b"}
