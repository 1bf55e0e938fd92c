"""Borrowing as an activity: asked twice, lost answers, races, kills, and the sweep."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.neighbour import NeighbourActivities
from sickbay.contracts.neighbour import BorrowRequest
from sickbay.contracts.steps import (
    DrainResult,
    DrainState,
    Effect,
    Outcome,
    Permission,
    StepRequest,
)
from sickbay.domain.gate import HoldKind, borrow_mark
from sickbay.domain.health import Health, Standing
from sickbay.testing import MemoryFleet, MemoryRecords, MemorySafety, MemoryScheduler, some_nodes

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
WELL = Health(value=1.0, confidence=1.0, worst=None, reason="")
REPAIR = "n001.0123456789ab"
MARK = borrow_mark(REPAIR)


class Room:
    """The activities over a fleet in memory, at a clock a test moves."""

    def __init__(self, *, mode=Permission.ACT):
        self.now = NOW
        nodes = some_nodes(4, group_size=1)
        self.fleet = MemoryFleet(nodes, now=lambda: self.now)
        self.records = MemoryRecords({n.id: n for n in nodes})
        self.scheduler = MemoryScheduler(self.fleet)
        self.safety = MemorySafety(mode=mode)
        self.activities = self.again()
        self.suspect = nodes[0]

    def again(self):
        """The activities of a worker that has just started."""
        return NeighbourActivities(
            self.scheduler,
            records=self.records,
            safety=self.safety,
            repairs=None,
            clock=lambda: self.now,
        )

    async def healthy(self):
        for node in self.fleet.nodes:
            await self.records.save_health(
                node, health=WELL, standing=Standing.HEALTHY, at=self.now, rules="1"
            )
        return self

    async def borrow(self, *, repair=REPAIR, avoid=()):
        step = StepRequest(repair, f"{repair}/003-borrow0", "n001", "train")
        request = BorrowRequest(
            step, self.suspect, avoid, lend_s=600.0, deadline=self.now, poll_s=0.01
        )
        run = ActivityEnvironment().run
        return await run(self.activities.borrow_neighbour, request)

    async def give_back(self, *, repair=REPAIR):
        step = StepRequest(repair, f"{repair}/003-give_back0", "n001", "train")
        return await self.activities.give_back_neighbour(step)

    def marked(self):
        return {n.id for n in self.fleet.nodes.values() if n.marks}


@pytest.fixture
async def room():
    return await Room().healthy()


async def test_a_borrowed_neighbour_stands_behind_a_hold_that_expires(room):
    lent = (await room.borrow()).neighbour
    assert lent.until == NOW + timedelta(seconds=600)
    assert room.marked() == {lent.node}
    (hold,) = await room.records.holds(lent.node)
    assert (hold.kind, hold.mark, hold.deadline) == (HoldKind.BORROWED, MARK, lent.until)
    assert hold.next_step
    assert hold.release_condition
    await room.give_back()
    assert room.marked() == set()
    assert await room.records.borrowed() == ()


async def test_asked_again_by_a_retry_it_is_the_same_neighbour(room):
    first = (await room.borrow()).neighbour
    room.activities = room.again()
    assert (await room.borrow()).neighbour == first
    assert room.marked() == {first.node}


async def test_a_hold_that_was_recorded_before_the_kill_is_finished_by_the_retry(room):
    lent = (await room.borrow()).neighbour
    room.fleet.unmark(lent.node, MARK)
    room.activities = room.again()
    assert (await room.borrow()).neighbour == lent
    assert room.marked() == {lent.node}


async def test_giving_back_twice_or_nothing_is_a_success(room):
    for _ in range(2):
        assert (await room.give_back()).ok
    await room.borrow()
    for _ in range(2):
        assert (await room.give_back()).ok
    assert room.marked() == set()


async def test_another_partner_is_never_a_second_one(room):
    first = (await room.borrow()).neighbour
    second = (await room.borrow(avoid=(first.node,))).neighbour
    assert second.node != first.node
    assert room.marked() == {second.node}


async def test_two_repairs_never_share_a_neighbour(room):
    first = (await room.borrow()).neighbour
    room.suspect = room.records.on_record[
        next(n for n in room.records.on_record if n not in {first.node, "n001"})
    ]
    second = (await room.borrow(repair="n00x.abcdefabcdef")).neighbour
    assert second is None or second.node != first.node


@pytest.mark.parametrize("marks_first", [True, False])
async def test_a_mark_of_anybody_else_wins_even_when_it_comes_at_the_same_moment(room, marks_first):
    every = [n for n in room.fleet.nodes if n != "n001"]
    close = room.scheduler.close_gate

    async def racing(node, *, mark, reason):
        room.fleet.mark(node, "admin:maintenance", reason="mine")
        return await close(node, mark=mark, reason=reason)

    if marks_first:
        for node in every:
            room.fleet.mark(node, "admin:maintenance", reason="mine")
    else:
        room.scheduler.close_gate = racing
    answer = await room.borrow()
    assert answer.neighbour is None
    assert answer.why
    left = {m for n in room.fleet.nodes.values() for m in n.marks}
    assert left == {"admin:maintenance"}
    assert await room.records.borrowed() == ()


async def test_a_job_that_slips_in_before_the_gate_closes_keeps_its_node(room):
    close = room.scheduler.close_gate

    async def racing(node, *, mark, reason):
        room.fleet[node].jobs.append("job-1")
        return await close(node, mark=mark, reason=reason)

    room.scheduler.close_gate = racing
    assert (await room.borrow()).neighbour is None
    assert room.marked() == set()
    assert all(n.jobs == ["job-1"] for n in room.fleet.nodes.values() if n.id != "n001")


@pytest.mark.parametrize("outcome", [Outcome.AMBIGUOUS, Outcome.TRANSIENT, Outcome.PERMANENT])
async def test_whatever_closing_answers_the_marks_decide(room, outcome):
    room.fleet.script("scheduler.close_gate", Effect(outcome, "no answer"))
    lent = (await room.borrow()).neighbour
    assert lent is not None
    assert room.marked() == {lent.node}


async def test_a_scheduler_that_cannot_say_lends_nobody(room):
    unknown = DrainResult(DrainState.UNKNOWN, detail="no answer")
    room.fleet.script("scheduler.drain_state", *[unknown] * 50)
    assert (await room.borrow()).neighbour is None
    assert room.marked() == set()


async def test_a_mark_that_stays_keeps_the_hold_and_the_attempt_is_retried(room):
    await room.borrow()
    room.fleet.script("scheduler.open_gate", Effect(Outcome.TRANSIENT, "busy"))
    with pytest.raises(ApplicationError, match="busy"):
        await room.give_back()
    assert len(await room.records.borrowed()) == 1
    assert (await room.give_back()).ok
    assert room.marked() == set()


async def test_the_sweep_gives_back_what_expired_and_nothing_else(room):
    lent = (await room.borrow()).neighbour
    room.fleet.mark(lent.node, "admin:later", reason="another reason")
    room.now = NOW + timedelta(seconds=599)
    assert await room.activities.sweep() == ()
    room.now = NOW + timedelta(seconds=600)
    assert await room.activities.sweep() == (lent.node,)
    assert set(room.fleet[lent.node].marks) == {"admin:later"}
    assert room.records.gate[-1][:2] == (lent.node, False), "it is still closed, by another"
    assert await room.activities.sweep() == ()


async def test_an_expired_borrow_is_not_lent_on(room):
    first = (await room.borrow()).neighbour
    room.now = first.until
    second = (await room.borrow()).neighbour
    assert second.until == room.now + timedelta(seconds=600)
    assert len(room.marked()) == 1


@pytest.mark.parametrize("mode", [Permission.OBSERVE, Permission.APPROVE, Permission.STOPPED])
async def test_the_switch_that_governs_gates_governs_borrowing(mode):
    room = await Room(mode=mode).healthy()
    answer = await room.borrow()
    assert (answer.neighbour, answer.withheld) == (None, mode)
    assert room.marked() == set()
    assert room.fleet.log.count("scheduler.close_gate") == 0


async def test_no_neighbour_is_said_in_words(room):
    for node in room.fleet.nodes.values():
        node.jobs.append("job-1")
    assert "idle" in (await room.borrow()).why
    room.records.on_record = {k: replace(n, group="one") for k, n in room.records.on_record.items()}
    room.suspect = room.records.on_record["n001"]
    assert "another group" in (await room.borrow()).why
