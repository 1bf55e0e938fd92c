"""C58: budgets of small pools, rounding at the edge, storms; each row of the case is a test."""

from datetime import UTC, datetime, timedelta

import pytest

from sickbay.domain import budget
from sickbay.domain.budget_state import Ask, BudgetPolicy, BudgetState, DecisionKind
from sickbay.domain.node import Severity

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)


def ask(number, *, minute=0.0, hard=False):
    node = f"n{number:03d}"
    return Ask(
        repair_id=f"{node}.1",
        workflow_id=f"node-repair/{node}",
        node=node,
        group=f"g{number}",
        severity=Severity.MAJOR,
        hard=hard,
        reason="hard_fail:xid_79" if hard else "person:slow",
        asked_at=T0 + timedelta(minutes=minute),
    )


def turn(state, policy, minute=0.0):
    state, decisions = budget.decide(state, policy=policy, now=T0 + timedelta(minutes=minute))
    grants = [d.repair_id for d in decisions if d.kind is DecisionKind.GRANT]
    pages = [d for d in decisions if d.kind is DecisionKind.PAGE]
    return state, grants, pages


def closed(state, repair_id, minute):
    return budget.gate_closed(state, repair_id, at=T0 + timedelta(minutes=minute))[0]


def pool(nodes, count, **options):
    state = BudgetState("train", nodes_on_record=nodes)
    for number in range(count):
        state = budget.ask(state, ask(number, **options))
    return state


def test_c58_a_forty_percent_of_three_is_one_and_the_second_pages_instead_of_waiting_for_ever():
    policy = BudgetPolicy(fraction=0.40)
    state, grants, pages = turn(pool(3, 2), policy)
    assert grants == ["n000.1"]
    assert len(pages) == 1
    assert "1 waiting" in pages[0].text
    state, _ = budget.release(closed(state, "n000.1", 1), "n000.1")
    assert turn(state, policy, 60.9)[1] == []
    assert turn(state, policy, 61.1)[1] == ["n001.1"]


@pytest.mark.parametrize(("asked", "granted", "paged"), [(2, 2, 0), (3, 2, 1), (4, 2, 1)])
def test_c58_b_one_percent_of_288_is_two_and_the_third_is_refused(asked, granted, paged):
    """The budget is reached by two and exceeded by none: 2.88 is not three."""
    policy = BudgetPolicy(fraction=0.01)
    _, grants, pages = turn(pool(288, asked), policy)
    assert len(grants) == granted
    assert len(pages) == paged


def test_c58_c_two_percent_of_four_nodes_still_repairs_one():
    state, grants, _ = turn(pool(4, 1), BudgetPolicy())
    assert grants == ["n000.1"]
    assert BudgetPolicy(allowance=0).allowed(4) == 0
    assert state.queue == ()


def test_c58_d_two_running_repairs_finish_and_no_third_begins_while_the_storm_lasts():
    """Four of seven must stay: at most three are out, and in a storm soft reasons wait."""
    policy = BudgetPolicy(allowance=2, cap=3, storm_factor=1.5, window_s=600, storm_window_s=600)
    state, grants, _ = turn(pool(7, 2), policy)
    assert grants == ["n000.1", "n001.1"]
    for repair_id in grants:
        state = closed(state, repair_id, 0)
    state = budget.ask(state, ask(2, minute=1))
    state, grants, _ = turn(state, policy, 1)
    assert grants == []
    assert state.storm_until == T0 + timedelta(minutes=31)
    # The running ones come back in the storm, and their places stay empty until it is over.
    for repair_id in ("n000.1", "n001.1"):
        state, _ = budget.release(state, repair_id)
    assert state.permits == ()
    for minute in (11, 20, 30.9):
        state, grants, _ = turn(state, policy, minute)
        assert grants == []
    assert turn(state, policy, 41)[1] == ["n002.1"]


def test_c58_a_hundred_at_once_are_five_quarantines_one_page_and_a_queue():
    state, grants, pages = turn(pool(250, 100, hard=True), BudgetPolicy())
    assert len(grants) == 5
    assert len(pages) == 1
    assert len(state.queue) == 95
    assert len(state.closed()) == 25
    for minute in range(1, 60):
        _, grants, pages = turn(state, BudgetPolicy(), minute)
        assert (grants, pages) == ([], [])
