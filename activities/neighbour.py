"""Borrowing an idle neighbour for a run across two nodes, and giving it back in every case.

The hold is recorded before the scheduler is asked, and it expires: whoever dies in between, the
next sweep gives the neighbour back.
"""

import asyncio
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clock import Clock
from activities.effects import TRANSIENT, withheld_by
from sickbay.contracts.neighbour import BorrowAnswer, BorrowRequest, NeighbourFound
from sickbay.contracts.steps import (
    Action,
    DrainState,
    Effect,
    Outcome,
    Permission,
    StepRequest,
    StepResult,
)
from sickbay.domain.gate import Hold, HoldKind, borrow_mark
from sickbay.domain.neighbour import Borrowed, neighbours
from sickbay.ports import Records, Repairs, Safety, Scheduler

OWNER = "sickbay"
MOST_TRIED = 8
"""Candidates that are asked for at one look: a busy pool must not be marked from end to end."""


class NeighbourActivities:
    """Holds on neighbours: placed, taken away, and swept when they have expired."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        records: Records,
        safety: Safety,
        repairs: Repairs,
        clock: Clock,
    ) -> None:
        self._scheduler = scheduler
        self._records = records
        self._safety = safety
        self._repairs = repairs
        self._clock = clock

    @activity.defn(name="borrow_neighbour")
    async def borrow_neighbour(self, request: BorrowRequest) -> BorrowAnswer:
        """Borrow one neighbour, waiting until the deadline for one that is free.

        Asked again by a retry it finds the one it has. No job is ever ended for it.
        """
        while True:
            activity.heartbeat()
            if held := await self._withheld(request):
                return BorrowAnswer(None, why=f"withheld by {held}", withheld=held)
            found, why = await self._look(request)
            if found is not None or self._clock() >= request.deadline:
                return BorrowAnswer(found, why=why)
            await asyncio.sleep(request.poll_s)

    @activity.defn(name="give_back_neighbour")
    async def give_back_neighbour(self, step: StepRequest) -> StepResult:
        """Give back whatever this repair has borrowed; nothing borrowed is a success."""
        for hold in await self._records.borrowed():
            if hold.repair_id == step.repair_id:
                await self._take_away(hold, by=step.repair_id)
        return StepResult(Effect(Outcome.SUCCEEDED), at=self._clock())

    @activity.defn(name="report_neighbour")
    async def report_neighbour(self, found: NeighbourFound) -> None:
        """A neighbour that is to blame starts a repair of its own, or joins the running one."""
        await self._repairs.report(found.fault, pool=found.pool)

    async def sweep(self) -> tuple[str, ...]:
        """Give back every neighbour whose hold has expired; the nodes that came back."""
        now = self._clock()
        expired = [h for h in await self._records.borrowed() if h.deadline and h.deadline <= now]
        for hold in expired:
            await self._take_away(hold, by="expired")
        return tuple(h.node for h in expired)

    async def _withheld(self, request: BorrowRequest) -> Permission | None:
        step = request.step
        permission = await self._safety.permission(pool=step.pool, action=Action.CLOSE_GATE)
        held = withheld_by(permission, step=step)
        if held:
            await self._safety.would_have(
                node=step.node,
                pool=step.pool,
                action=Action.CLOSE_GATE,
                detail="borrow a neighbour for a run across two nodes",
                why=str(held),
            )
        return held

    async def _look(self, request: BorrowRequest) -> tuple[Borrowed | None, str]:
        """One look for a free neighbour; why there is none."""
        repair = request.step.repair_id
        for mine in [h for h in await self._records.borrowed() if h.repair_id == repair]:
            if mine.node not in request.avoid and await self._lent(mine):
                return _borrowed(mine), ""
            await self._take_away(mine, by=repair)
        known = await self._records.bystanders(request.step.pool)
        fit = neighbours(request.node, known, avoid=request.avoid)
        for node in fit[:MOST_TRIED]:
            activity.heartbeat(node)
            if await self._busy(node):
                continue
            hold = self._hold(request, node=node)
            if await self._lent(hold):
                return _borrowed(hold), ""
            await self._take_away(hold, by=repair)
        if not fit:
            return None, "no node of another group is healthy, unsuspected and behind an open gate"
        return None, f"no fit neighbour is idle ({len(fit)} on record)"

    async def _busy(self, node: str) -> bool:
        """Whether a job runs there, or anybody's mark keeps it closed already."""
        state = await self._scheduler.drain_state(node)
        return bool(state.blocking) or bool(await self._scheduler.marks(node))

    async def _lent(self, hold: Hold) -> bool:
        """Place the hold, and see that the node is empty behind this mark and no other.

        Another's mark that came at the same moment wins: both sides look after they have marked.
        """
        if hold.deadline is not None and hold.deadline <= self._clock():
            return False
        await self._records.place_hold(hold)
        await self._scheduler.close_gate(hold.node, mark=hold.mark, reason=hold.reason)
        marks = {mark for mark, _ in await self._scheduler.marks(hold.node)}
        if hold.mark in marks:
            await self._records.gate_moved(hold.node, open_=False, at=self._clock())
        state = await self._scheduler.drain_state(hold.node)
        return marks == {hold.mark} and state.state is DrainState.DRAINED

    async def _take_away(self, hold: Hold, *, by: str) -> None:
        """Take our mark away, then the hold; a mark that still stands keeps the hold standing.

        Raises:
            ApplicationError: of type `Transient`, retryable.
        """
        effect = await self._scheduler.open_gate(hold.node, mark=hold.mark)
        marks = [mark for mark, _ in await self._scheduler.marks(hold.node)]
        if hold.mark in marks:
            detail = effect.detail or f"the mark on {hold.node} still stands"
            raise ApplicationError(detail, type=TRANSIENT)
        await self._records.lift_hold(hold.id, by=by, at=self._clock())
        if not marks:
            await self._records.gate_moved(hold.node, open_=True, at=self._clock())

    def _hold(self, request: BorrowRequest, *, node: str) -> Hold:
        step = request.step
        mark = borrow_mark(step.repair_id)
        now = self._clock()
        return Hold(
            id=mark,
            node=node,
            kind=HoldKind.BORROWED,
            owner=OWNER,
            mark=mark,
            reason=f"borrowed for a run across two nodes with {step.node}",
            placed_at=now,
            release_condition="the run across two nodes has ended, or the borrow expires",
            next_step=f"give it back to the scheduler ({step.node} is being checked)",
            deadline=now + timedelta(seconds=request.lend_s),
            repair_id=step.repair_id,
        )


def _borrowed(hold: Hold) -> Borrowed | None:
    return Borrowed(hold.node, until=hold.deadline) if hold.deadline else None
