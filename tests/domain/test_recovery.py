"""What a comparison calls for: a hold always ends in a repair, a proof on record, or a person."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.budget import adopt, ask, decide, release
from sickbay.domain.budget_state import Ask, BudgetPolicy, BudgetState
from sickbay.domain.gate import Hold, HoldKind, borrow_mark, mark_of, withheld_mark
from sickbay.domain.node import Severity
from sickbay.domain.recovery import NodeSeen, RemedyKind, Run, RunStatus, remedies
from sickbay.domain.repair import Ending, Stage

NOW = datetime(2026, 12, 1, tzinfo=UTC)
NODE = "n1"
REPAIRS = ["n1.aaa", "n1.bbb"]


def hold(repair_id: str, *, owner: str = "sickbay", age_min: int = 5) -> Hold:
    mark = mark_of(repair_id)
    return Hold(
        mark, NODE, HoldKind.QUARANTINE, owner, mark, "hard_fail:xid_79",
        NOW - timedelta(minutes=age_min), "proof", "prove", repair_id=repair_id,
    )  # fmt: skip


RUNS = st.one_of(
    st.sampled_from([Run(RunStatus.RUNNING), Run(RunStatus.NONE), Run(RunStatus.UNKNOWN)]),
    st.builds(
        Run,
        st.just(RunStatus.ENDED),
        repair_id=st.sampled_from(["", *REPAIRS]),
        ending=st.sampled_from([None, *map(str, Ending)]),
    ),
)
MARKS = st.one_of(
    st.none(),
    st.sets(st.sampled_from([*map(mark_of, REPAIRS), withheld_mark(NODE), "maintenance"])).map(
        lambda marks: tuple((mark, "why") for mark in sorted(marks))
    ),
)
SEEN = st.builds(
    NodeSeen,
    st.just(NODE),
    holds=st.sets(st.sampled_from(REPAIRS)).map(lambda ids: tuple(map(hold, sorted(ids)))),
    marks=MARKS,
    run=RUNS,
    drained=st.booleans(),
    withheld=st.sampled_from([None, True, False]),
    well=st.booleans(),
    open_repairs=st.dictionaries(
        st.sampled_from(REPAIRS), st.sampled_from(["permit", "diagnose"])
    ).map(lambda rows: tuple(sorted(rows.items()))),
)


@given(SEEN)
def test_unknown_calls_for_nothing(seen):
    if seen.marks is None or seen.run.status is RunStatus.UNKNOWN:
        assert {r.kind for r in remedies(seen, now=NOW)} <= {RemedyKind.UNCLEAR}


@given(SEEN)
def test_one_node_gets_at_most_one_repair_and_none_beside_a_running_one(seen):
    started = [
        r for r in remedies(seen, now=NOW) if r.kind in {RemedyKind.START, RemedyKind.REHOLD}
    ]
    assert len(started) <= (seen.run.status is not RunStatus.RUNNING)


@given(SEEN)
def test_a_hold_ends_without_a_repair_only_when_it_is_known_to_be_over(seen):
    for row in remedies(seen, now=NOW):
        if row.kind is RemedyKind.END_HOLD:
            assert row.hold.mark not in dict(seen.marks)
            assert seen.run.repair_id == row.hold.repair_id
            assert seen.run.ending is not None


@given(SEEN)
def test_every_closed_gate_of_ours_has_somebody(seen):
    """A mark of a quarantine: a running repair, one that starts, or a person."""
    if seen.marks is None or seen.run.status is RunStatus.UNKNOWN:
        return
    found = remedies(seen, now=NOW)
    repaired = seen.run.status is RunStatus.RUNNING or any(
        r.kind in {RemedyKind.START, RemedyKind.REHOLD} for r in found
    )
    booked = {h.mark for h in seen.holds} | {r.hold.mark for r in found if r.hold}
    persons = {
        r.hold.mark
        for r in found
        if r.kind in {RemedyKind.KEEP_HOLD, RemedyKind.BOOK_HOLD} and r.hold.owner != "sickbay"
    }
    for mark in dict(seen.marks):
        if mark.startswith("sickbay:") and mark != withheld_mark(NODE):
            assert mark in booked
            assert repaired or mark in persons


@given(SEEN)
def test_anothers_mark_is_never_touched(seen):
    assert all(r.hold is None or r.hold.mark != "maintenance" for r in remedies(seen, now=NOW))


@pytest.mark.parametrize(("drained", "stage"), [(True, Stage.DIAGNOSE), (False, Stage.DRAIN)])
def test_a_lost_repair_starts_where_the_node_allows(drained, stage):
    mine = hold("n1.aaa")
    seen = NodeSeen(NODE, (mine,), ((mine.mark, "x"),), Run(RunStatus.NONE), drained=drained)
    (row,) = remedies(seen, now=NOW)
    assert (row.kind, row.start_at) == (RemedyKind.START, stage)


@given(SEEN)
def test_a_row_of_a_repair_that_does_not_run_goes_on_or_is_ended(seen):
    if seen.marks is None or seen.run.status in {RunStatus.UNKNOWN, RunStatus.RUNNING}:
        return
    found = remedies(seen, now=NOW)
    ended = {r.repair_id for r in found if r.repair_id}
    goes_on = {r.hold.repair_id for r in found if r.start_at is not None}
    assert {repair_id for repair_id, _ in seen.open_repairs} <= ended | goes_on
    assert not ended & goes_on
    for row in found:
        if row.kind is RemedyKind.REPORT_AGAIN:
            assert (row.repair_id, "permit") in seen.open_repairs


def test_a_persons_hold_gets_no_repair():
    kept = hold("n1.aaa", owner="ann")
    seen = NodeSeen(NODE, (kept,), ((kept.mark, "x"),), Run(RunStatus.NONE))
    assert remedies(seen, now=NOW) == ()


def an_ask(node: str, *, repair_id: str = "") -> Ask:
    return Ask(
        repair_id or f"{node}.r", f"node-repair/{node}", node, f"g-{node}", Severity.MAJOR,
        hard=True, reason="hard_fail:xid_79", asked_at=NOW,
    )  # fmt: skip


@given(st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=8), st.integers(0, 120))
def test_adopting_again_and_again_is_adopting_once(names, age_min):
    state = BudgetState("train", nodes_on_record=100)
    closed = NOW - timedelta(minutes=age_min)
    for name in names:
        state, _ = adopt(state, an_ask(name), closed_at=closed)
    assert sorted(state.out()) == sorted(set(names))
    state, _ = decide(state, policy=BudgetPolicy(), now=NOW)
    in_window = set(names) if age_min < 60 else set()
    assert len(state.spent) == len(in_window)


def test_a_budget_that_remembers_charges_nothing_more():
    policy = BudgetPolicy(allowance=1)
    state = ask(BudgetState("train", nodes_on_record=10), an_ask("n1"))
    state, _ = decide(state, policy=policy, now=NOW)
    again, told = adopt(state, an_ask("n1"), closed_at=NOW)
    assert (again, told) == (state, ())
    freed, _ = release(again, "n1.r", closed_at=NOW)
    assert freed.out() == ()
    assert len(freed.spent) == 1


def test_a_borrowed_neighbour_that_nobody_remembers_is_given_back_and_not_repaired():
    mark = borrow_mark("n2.aaa")
    (row,) = remedies(NodeSeen(NODE, (), ((mark, "x"),), Run(RunStatus.NONE)), now=NOW)
    assert (row.kind, row.hold.kind, row.hold.deadline) == (
        RemedyKind.BOOK_HOLD,
        HoldKind.BORROWED,
        NOW,
    )
    booked = NodeSeen(NODE, (row.hold,), ((mark, "x"),), Run(RunStatus.NONE))
    assert remedies(booked, now=NOW) == ()
