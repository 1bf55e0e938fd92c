"""Waiting until a node is truly empty, or ending its jobs where the severity says so."""

import asyncio

from temporalio import activity

from activities.clock import Clock
from activities.drained import drained_and_not_lent
from activities.effects import retry_transient, withheld_by
from sickbay.contracts.steps import Action, DrainRequest, DrainResult, DrainState, StepRequest
from sickbay.ports import Safety, Scheduler


class DrainActivities:
    """Reads the scheduler until the node is drained or the deadline is reached."""

    def __init__(self, scheduler: Scheduler, *, safety: Safety, clock: Clock) -> None:
        self._scheduler = scheduler
        self._safety = safety
        self._clock = clock

    @activity.defn(name="drain")
    async def drain(self, request: DrainRequest) -> DrainResult:
        """The drain's state at its end: drained, or what still blocks at the deadline.

        The deadline is the request's, so that a restart of the worker never lengthens it.
        """
        step = request.step
        evicted = False
        while True:
            state, lent = await drained_and_not_lent(self._scheduler, step.node)
            activity.heartbeat(str(state.state))
            if state.state is DrainState.DRAINED:
                return state
            jobs = state.state is DrainState.DRAINING and not lent
            if request.evict and not evicted and jobs:
                withheld = await self._evict(step, mark=request.mark, blocking=state.blocking)
                if withheld:
                    return withheld
                evicted = True
                continue
            if self._clock() >= request.deadline:
                return state
            await asyncio.sleep(request.poll_s)

    async def _evict(
        self, step: StepRequest, *, mark: str, blocking: tuple[str, ...]
    ) -> DrainResult | None:
        permission = await self._safety.permission(pool=step.pool, action=Action.EVICT)
        if held := withheld_by(permission, step=step):
            detail = ", ".join(blocking)
            await self._safety.would_have(
                node=step.node, pool=step.pool, action=Action.EVICT, detail=detail, why=str(held)
            )
            return DrainResult(DrainState.DRAINING, blocking=blocking, withheld=held)
        reason = f"node is being repaired ({step.repair_id})"
        retry_transient(await self._scheduler.evict(step.node, mark=mark, reason=reason))
        return None
