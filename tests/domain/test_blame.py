"""A common factor is named only when its carriers fail more than chance allows."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.baseline import Baseline
from sickbay.domain.blame import common_factor, tail


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
