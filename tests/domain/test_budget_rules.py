"""The budget's rules one by one: who is granted, who waits and why, when a human is paged."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sickbay.domain import budget
from sickbay.domain.budget_state import (
    Ask,
    BudgetPolicy,
    BudgetState,
    DecisionKind,
    Refusal,
    Withheld,
)
from sickbay.domain.node import Severity

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
POLICY = BudgetPolicy(allowance=2, cap=4)


def at(minutes):
    return T0 + timedelta(minutes=minutes)


def ask(node, minute=0.0, *, hard=False, severity=Severity.MAJOR, group=None):
    return Ask(
        repair_id=f"{node}.1",
        workflow_id=f"node-repair/{node}",
        node=node,
        group=group or f"g-{node}",
        severity=severity,
        hard=hard,
        reason="hard_fail:xid_79" if hard else "min:memory",
        asked_at=at(minute),
    )


def state_of(*asks, nodes=100, **changes):
    state = BudgetState("train", nodes_on_record=nodes, **changes)
    for one in asks:
        state = budget.ask(state, one)
    return state


def turn(state, minute=0.0, policy=POLICY):
    return budget.decide(state, policy=policy, now=at(minute))


def of_kind(decisions, kind):
    return [d.node or d.repair_id for d in decisions if d.kind is kind]


def granted(decisions):
    return of_kind(decisions, DecisionKind.GRANT)


def close(state, node, minute):
    return budget.gate_closed(state, f"{node}.1", at=at(minute))[0]


@pytest.mark.parametrize(
    ("nodes", "fraction", "allowed"),
    [
        (3, 0.40, 1),  # 1.2: the second of three waits for a human, never for ever
        (288, 0.01, 2),  # 2.88: the third is refused
        (4, 0.02, 1),  # 0.08: a floor of zero would never repair anything
        (1, 0.02, 1),
        (100, 0.02, 2),
        (149, 0.02, 2),
        (150, 0.02, 3),
        (50_000, 0.02, 1000),
    ],
)
def test_the_allowance_is_a_floor_of_at_least_one(nodes, fraction, allowed):
    policy = BudgetPolicy(fraction=fraction)
    assert policy.allowed(nodes) == allowed
    wide = replace(policy, cap=allowed + 5, storm_factor=1e9)
    asks = [ask(f"n{i}") for i in range(allowed + 1)]
    _, decisions = turn(state_of(*asks, nodes=nodes), policy=wide)
    assert len(granted(decisions)) == min(allowed, budget.DECISIONS_PER_TURN)
    if allowed < budget.DECISIONS_PER_TURN:
        assert len(of_kind(decisions, DecisionKind.PAGE)) == 1


@pytest.mark.parametrize(("nodes", "cap"), [(4, 3), (30, 3), (40, 4), (50_000, 5000)])
def test_the_cap_is_a_tenth_and_at_least_three(nodes, cap):
    policy = BudgetPolicy()
    assert policy.closures(nodes) == cap
    assert policy.out_at_once(nodes) == cap
    assert replace(policy, max_out=2).out_at_once(nodes) == 2
    assert replace(policy, max_out=10**6).out_at_once(nodes) == cap


def test_a_pool_that_must_keep_four_of_seven_has_at_most_three_out():
    policy = BudgetPolicy(allowance=7, cap=3)
    state, decisions = turn(state_of(*(ask(f"n{i}") for i in range(7)), nodes=7), policy=policy)
    assert len(granted(decisions)) == 3
    assert not granted(turn(state, 500, policy=policy)[1])


def test_five_before_the_hour_and_five_after_are_no_ten():
    """A fixed window would let 10:59 and 11:01 each have a full allowance."""
    policy = BudgetPolicy(allowance=5, cap=50, storm_factor=1e9)
    state, decisions = turn(state_of(*(ask(f"a{i}", 59) for i in range(5))), 59, policy=policy)
    assert len(granted(decisions)) == 5
    for i in range(5):
        state = close(state, f"a{i}", 59)
        state, _ = budget.release(state, f"a{i}.1")
    for i in range(5):
        state = budget.ask(state, ask(f"b{i}", 61))
    state, decisions = turn(state, 61, policy=policy)
    assert granted(decisions) == []
    assert granted(turn(state, 118.9, policy=policy)[1]) == []
    assert len(granted(turn(state, 119.1, policy=policy)[1])) == 5


def test_the_window_counts_from_the_closure_and_not_from_the_grant():
    state, _ = turn(state_of(ask("a"), ask("b")))
    state = close(close(state, "a", 50), "b", 50)
    for node in ("a", "b"):
        state, _ = budget.release(state, f"{node}.1")
    state = budget.ask(state, ask("c", 65))
    assert granted(turn(state, 65)[1]) == []
    assert granted(turn(state, 110.1)[1]) == ["c"]


def test_a_permit_whose_gate_never_closed_is_not_charged():
    state, _ = turn(state_of(ask("a"), ask("b")))
    state, _ = budget.release(state, "a.1")
    state = budget.ask(state, ask("c", 1))
    assert granted(turn(state, 1)[1]) == ["c"]


def test_a_permit_given_back_where_the_gate_may_have_closed_is_charged():
    state, _ = turn(state_of(ask("a"), ask("b")))
    state, _ = budget.release(state, "a.1", closed_at=at(1))
    state = budget.ask(state, ask("c", 2))
    assert granted(turn(state, 2)[1]) == []
    assert granted(turn(state, 61.1)[1]) == ["c"]


def test_hard_fails_go_first_then_the_worst_then_the_oldest():
    asks = [
        ask("old", 0),
        ask("worse", 1, severity=Severity.CRITICAL),
        ask("hard", 2, hard=True, severity=Severity.WARNING),
        ask("older hard", 1, hard=True, severity=Severity.WARNING),
    ]
    policy = BudgetPolicy(allowance=4, cap=9, storm_factor=1e9)
    assert granted(turn(state_of(*asks), 3, policy=policy)[1]) == [
        "older hard",
        "hard",
        "worse",
        "old",
    ]


def test_the_same_repair_asking_again_is_the_same_ask():
    state = state_of(ask("a", 0), ask("a", 5))
    assert [a.asked_at for a in state.queue] == [T0]
    assert len(state.asked_at) == 1
    state, decisions = turn(state, 6)
    assert granted(decisions) == ["a"]
    assert budget.ask(state, ask("a", 7)) == state


def test_two_of_one_group_are_never_out_whoever_lends():
    state = budget.grant(state_of(ask("a", group="g"), ask("b", group="g", hard=True)), 5)
    state, decisions = turn(state)
    assert granted(decisions) == ["b"]
    assert budget.refusal_of(state, ask("a", group="g"), policy=POLICY, now=T0) is Refusal.GROUP
    state, _ = budget.release(close(state, "b", 0), "b.1")
    assert granted(turn(state, 1)[1]) == ["a"]


def test_a_busy_group_pages_only_when_it_has_waited_for_a_window():
    state, _ = turn(state_of(ask("a", group="g"), ask("b", group="g")))
    state, decisions = turn(state, 59)
    assert of_kind(decisions, DecisionKind.PAGE) == []
    assert budget.next_wake(state, policy=POLICY, now=at(59)) == at(60)
    assert len(of_kind(turn(state, 60)[1], DecisionKind.PAGE)) == 1


def test_a_lent_closure_is_used_only_when_the_budget_has_no_room():
    state = budget.grant(state_of(ask("a"), ask("b"), ask("c")), 1)
    state, decisions = turn(state)
    assert granted(decisions) == ["a", "b", "c"]
    assert [p.extra for p in state.permits] == [False, False, True]
    assert (state.extra, len(state.spent)) == (0, 2)


def test_frozen_grants_nothing_even_what_was_lent_and_still_takes_permits_back():
    state, _ = turn(state_of(ask("a")))
    state = budget.ask(budget.grant(budget.freeze(state, by="ann"), 3), ask("b", hard=True))
    state, decisions = turn(state, 1)
    assert granted(decisions) == []
    state, _ = budget.release(close(state, "a", 1), "a.1")
    assert state.permits == ()
    state = budget.freeze(state, by=None)
    assert granted(turn(state, 2)[1]) == ["b"]


def test_in_a_storm_hard_fails_proceed_and_soft_ones_wait_until_it_is_quiet():
    policy = BudgetPolicy(allowance=2, cap=20)
    asks = [ask(f"soft{i}") for i in range(6)] + [ask("hard", hard=True)]
    state, decisions = turn(state_of(*asks), policy=policy)
    assert granted(decisions) == ["hard"]
    state, decisions = turn(state, 12, policy=policy)
    assert granted(decisions) == []
    assert granted(turn(state, 29, policy=policy)[1]) == []
    state, decisions = turn(state, 45, policy=policy)
    assert len(of_kind(decisions, DecisionKind.RECHECK)) == 6
    asked = [d.repair_id for d in decisions if d.kind is DecisionKind.RECHECK]
    state, _ = budget.rechecked(state, asked, recovered=(), now=at(45))
    assert len(granted(turn(state, 45, policy=policy)[1])) == 1


def test_one_page_per_episode_and_a_new_one_after_a_quiet_cooldown():
    state, decisions = turn(state_of(ask("a"), ask("b"), ask("c")))
    assert of_kind(decisions, DecisionKind.PAGE) == ["budget/train/1"]
    for minute in range(1, 60):
        state = budget.ask(state, ask(f"x{minute}", minute, hard=True))
        state, decisions = turn(state, minute)
        assert of_kind(decisions, DecisionKind.PAGE) == []
    for waiting in list(state.queue):
        state, _ = budget.release(state, waiting.repair_id)
    for minute in (60, 91):
        state, decisions = turn(state, minute)
        assert decisions == ()
    state = budget.ask(state, ask("late", 92))
    _, decisions = turn(state, 92)
    assert of_kind(decisions, DecisionKind.PAGE) == ["budget/train/2"]


def test_a_reader_that_fails_everything_withholds_no_more_than_the_cap_and_pages_once():
    asks = [ask(f"n{i}", hard=True) for i in range(40)]
    policy = BudgetPolicy()
    state, decisions = turn(state_of(*asks, nodes=40), policy=policy)
    assert len(state.closed()) == policy.closures(40) == 4
    assert len(granted(decisions)) == 1
    assert len(of_kind(decisions, DecisionKind.WITHHOLD)) == 3
    assert len(of_kind(decisions, DecisionKind.PAGE)) == 1
    later, decisions = turn(state, 5, policy=policy)
    assert decisions == ()
    assert later.closed() == state.closed()


def withheld(node, *, hard=False):
    return Withheld(node, "no_fresh_data", hard=hard, since=T0)


def test_withheld_nodes_are_not_charged_but_count_against_the_cap():
    state = state_of()
    for i in range(6):
        state = budget.withhold(state, withheld(f"u{i}"))
    state, decisions = turn(state)
    assert len(of_kind(decisions, DecisionKind.WITHHOLD)) == 4
    assert state.spent == ()
    state = budget.ask(state, ask("a", 1))
    assert granted(turn(state, 1)[1]) == []
    state, ended = budget.end_withhold(state, "u0")
    assert of_kind(ended, DecisionKind.END_WITHHOLD) == ["u0"]
    # A node that waits to be withheld comes after the ask that has its permit first.
    assert granted(turn(state, 2)[1]) == ["a"]


def test_a_withheld_node_keeps_its_place_in_the_cap_when_it_gets_its_permit():
    policy = BudgetPolicy(allowance=1, cap=3)
    state, _ = turn(state_of(ask("a", hard=True), ask("b", hard=True)), policy=policy)
    assert state.closed() == {"a", "b"}
    state, _ = budget.release(close(state, "a", 0), "a.1")
    state, decisions = turn(state, 61, policy=policy)
    assert granted(decisions) == ["b"]
    assert state.closed() == {"b"}
    state, ended = budget.gate_closed(state, "b.1", at=at(61))
    assert of_kind(ended, DecisionKind.END_WITHHOLD) == ["b"]


def test_a_reason_that_ends_does_not_open_a_node_that_waits_for_its_permit():
    state = budget.freeze(state_of(ask("a", hard=True)), by="ann")
    state, decisions = turn(state)
    assert of_kind(decisions, DecisionKind.WITHHOLD) == ["a"]
    state, ended = budget.end_withhold(state, "a")
    assert ended == ()
    state, ended = budget.release(state, "a.1")
    assert of_kind(ended, DecisionKind.END_WITHHOLD) == ["a"]
    assert state.withheld == ()


def test_a_hard_fail_on_a_node_withheld_for_another_reason_takes_the_mark_over():
    """Its data came back while its hard fail waits: the gate must not open, not even briefly."""
    state, decisions = turn(budget.withhold(state_of(frozen_by="ann"), withheld("a")))
    assert of_kind(decisions, DecisionKind.WITHHOLD) == ["a"]
    state, decisions = turn(budget.ask(state, ask("a", 1, hard=True)), 1)
    state, ended = budget.end_withhold(state, "a")
    assert ended == ()
    state, decisions = turn(state, 2)
    assert decisions == ()
    assert state.closed() == {"a"}
    assert of_kind(budget.release(state, "a.1")[1], DecisionKind.END_WITHHOLD) == ["a"]
