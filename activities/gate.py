"""Closing and opening a node's gate: only our own marks, and the hold is recorded first."""

from dataclasses import replace

from temporalio import activity

from activities.clock import Clock
from activities.effects import retry_transient, withheld_by
from sickbay.contracts.budget import GateClosed, PermitReleased, WithholdRequest
from sickbay.contracts.steps import Action, Effect, GateRequest, Outcome, Permission, StepResult
from sickbay.domain.gate import Hold, HoldKind, withheld_mark
from sickbay.ports import Permits, Records, Safety, Scheduler

WITHHELD_OWNER = "sickbay"


class GateActivities:
    """Acts on the scheduler's bit through the Scheduler port, and keeps the ledger of it."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        records: Records,
        safety: Safety,
        permits: Permits,
        clock: Clock,
    ) -> None:
        self._scheduler = scheduler
        self._records = records
        self._safety = safety
        self._permits = permits
        self._clock = clock

    @activity.defn(name="close_gate")
    async def close_gate(self, request: GateRequest) -> StepResult:
        """Close the gate under the repair's permit and tell the budget when it truly closed."""
        step = request.step
        permission = await self._safety.permission(pool=step.pool, action=Action.CLOSE_GATE)
        if held := withheld_by(permission, step=step):
            await self._would_have(step.node, step.pool, request.hold.reason, held)
            return StepResult(Effect(Outcome.PERMANENT, "withheld"), withheld=held)
        effect = await self._close(request.hold)
        at = self._clock()
        if effect.outcome is Outcome.SUCCEEDED:
            await self._permits.gate_closed(step.pool, GateClosed(repair_id=step.repair_id, at=at))
            await self._end_others(request, by=f"taken over by {step.repair_id}")
        return StepResult(effect, at=at)

    @activity.defn(name="open_gate")
    async def open_gate(self, request: GateRequest) -> StepResult:
        """Take our hold away; the gate opens when no other hold stands."""
        hold = request.hold
        effect = retry_transient(await self._scheduler.open_gate(hold.node, mark=hold.mark))
        at = self._clock()
        if effect.outcome is Outcome.SUCCEEDED:
            by = hold.lifted_by or hold.owner
            await self._records.lift_hold(hold.id, by=by, at=at)
            if by != hold.owner:
                await self._end_others(request, by=by)
            await self._book_if_open(hold.node)
        return StepResult(effect, at=at)

    @activity.defn(name="withhold")
    async def withhold(self, request: WithholdRequest) -> StepResult:
        """Keep new work off a node without a permit, as the budget decided inside its cap."""
        permission = await self._safety.permission(pool=request.pool, action=Action.CLOSE_GATE)
        if permission is not Permission.ACT:
            await self._would_have(request.node, request.pool, request.reason, permission)
            return StepResult(Effect(Outcome.PERMANENT, "withheld"), withheld=permission)
        return StepResult(await self._close(self._withheld_hold(request)), at=self._clock())

    @activity.defn(name="end_withhold")
    async def end_withhold(self, request: WithholdRequest) -> StepResult:
        """Take the withheld mark away."""
        hold = self._withheld_hold(request)
        effect = retry_transient(await self._scheduler.open_gate(hold.node, mark=hold.mark))
        at = self._clock()
        await self._records.lift_hold(hold.id, by=WITHHELD_OWNER, at=at)
        await self._book_if_open(hold.node)
        return StepResult(effect, at=at)

    async def _end_others(self, request: GateRequest, *, by: str) -> None:
        """End quarantines that earlier repairs of this node left standing, with their permits."""
        for old in await self._records.holds(request.hold.node):
            if old.kind is not HoldKind.QUARANTINE or old.id == request.hold.id:
                continue
            retry_transient(await self._scheduler.open_gate(old.node, mark=old.mark))
            await self._records.lift_hold(old.id, by=by, at=self._clock())
            if old.repair_id:
                await self._permits.release(request.step.pool, PermitReleased(old.repair_id))

    async def _close(self, hold: Hold) -> Effect:
        """Record the hold, then close; a lost answer is read back before it is asked again."""
        await self._records.place_hold(replace(hold, placed_at=self._clock()))
        effect = await self._scheduler.close_gate(hold.node, mark=hold.mark, reason=hold.reason)
        if effect.outcome is Outcome.AMBIGUOUS:
            standing = {mark for mark, _ in await self._scheduler.marks(hold.node)}
            known = Outcome.SUCCEEDED if hold.mark in standing else Outcome.TRANSIENT
            effect = Effect(known, effect.detail)
        if effect.outcome is Outcome.PERMANENT:
            await self._records.lift_hold(hold.id, by=WITHHELD_OWNER, at=self._clock())
        retry_transient(effect)
        if effect.outcome is Outcome.SUCCEEDED:
            await self._records.gate_moved(hold.node, open_=False, at=self._clock())
        return effect

    async def _book_if_open(self, node: str) -> None:
        if not await self._scheduler.marks(node):
            await self._records.gate_moved(node, open_=True, at=self._clock())

    async def _would_have(self, node: str, pool: str, detail: str, why: Permission) -> None:
        await self._safety.would_have(
            node=node, pool=pool, action=Action.CLOSE_GATE, detail=detail, why=str(why)
        )

    def _withheld_hold(self, request: WithholdRequest) -> Hold:
        mark = withheld_mark(request.node)
        return Hold(
            id=mark,
            node=request.node,
            kind=HoldKind.WITHHELD,
            owner=WITHHELD_OWNER,
            mark=mark,
            reason=request.reason,
            placed_at=self._clock(),
            release_condition="its permit, or the reason ends by itself",
            next_step="the budget of the pool decides",
            deadline=request.deadline,
        )
