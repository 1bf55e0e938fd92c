"""Destructive steps on the node: at most once per operation id, and only on a drained radius.

A retry finds the operation in the node's journal and answers from it, or looks at the machine; it
never acts again.
"""

import asyncio
import time

from temporalio import activity

from activities.clock import Clock
from activities.drained import drained_and_not_lent
from activities.effects import withheld_by
from activities.loads import Loads
from sickbay.contracts.steps import (
    Action,
    DrainState,
    Effect,
    Outcome,
    StepResult,
    TreatmentRequest,
)
from sickbay.domain.node import Treatment
from sickbay.domain.radius import Load
from sickbay.errors import NodeUnreadable
from sickbay.ports import NodeControl, OperationJournal, Safety, Scheduler

POLL_S = 0.1
HEARTBEAT_S = 1.0
NOT_DRAINED = "not drained"


class TreatmentActivities:
    """The node worker's hands."""

    def __init__(
        self,
        control: NodeControl,
        *,
        journal: OperationJournal,
        scheduler: Scheduler,
        safety: Safety,
        clock: Clock,
        loads: Loads | None = None,
    ) -> None:
        self._control = control
        self._journal = journal
        self._scheduler = scheduler
        self._safety = safety
        self._clock = clock
        self._loads = loads

    @activity.defn(name="treat")
    async def treat(self, request: TreatmentRequest) -> StepResult:
        """Act once, wait for the machine to show the outcome, and journal it."""
        step = request.step
        known = self._journal.lookup(step.operation_id)
        if known is None:
            refused = await self._refusal(request)
            if refused is not None:
                return refused
            waited = await self._take_place(request)
            if waited is not None:
                return waited
            known = self._journal.begin(step.operation_id, boot_id=await self._control.boot_id())
        if known.effect is not None:
            return StepResult(known.effect, at=self._clock())
        effect = await self._act(request, boot_id_before=known.boot_id)
        self._journal.finish(step.operation_id, effect=effect)
        if self._loads is not None:
            await self._loads.give_back(step.operation_id)
        return StepResult(effect, at=self._clock())

    async def _take_place(self, request: TreatmentRequest) -> StepResult | None:
        """Resets of many nodes at once strain what they share. Raises `ApplicationError`."""
        if self._loads is None or request.treatment is not Treatment.RESET:
            return None
        return await self._loads.take(
            Load.RESET,
            step=request.step,
            lasts_s=request.deadline_s,
            longest_s=request.deadline_s,
        )

    async def _refusal(self, request: TreatmentRequest) -> StepResult | None:
        """Why the act may not start now: read again at the last moment."""
        step = request.step
        for node in request.radius:
            state, _ = await drained_and_not_lent(self._scheduler, node)
            if state.state is not DrainState.DRAINED:
                names = ", ".join(state.blocking) or state.detail
                detail = f"{NOT_DRAINED}: {node} is {state.state} ({names})"
                return StepResult(Effect(Outcome.PERMANENT, detail))
        action = Action(request.treatment.value)
        permission = await self._safety.permission(pool=step.pool, action=action)
        held = withheld_by(permission, step=step)
        if held is None:
            return None
        detail = request.part.slot if request.part else "the node"
        await self._safety.would_have(
            node=step.node, pool=step.pool, action=action, detail=detail, why=str(held)
        )
        return StepResult(Effect(Outcome.PERMANENT, "withheld"), withheld=held)

    async def _act(self, request: TreatmentRequest, *, boot_id_before: str) -> Effect:
        op = request.step.operation_id
        await self._control.start(request.treatment, part=request.part, operation_id=op)
        ends_at = time.monotonic() + request.deadline_s
        next_beat = 0.0
        while time.monotonic() < ends_at:
            if time.monotonic() >= next_beat:
                activity.heartbeat(str(request.treatment))
                next_beat = time.monotonic() + HEARTBEAT_S
            effect = await self._progress(request, boot_id_before=boot_id_before)
            if effect is not None:
                return effect
            await asyncio.sleep(POLL_S)
        return Effect(Outcome.AMBIGUOUS, f"no outcome seen within {request.deadline_s:.0f} s")

    async def _progress(self, request: TreatmentRequest, *, boot_id_before: str) -> Effect | None:
        try:
            return await self._control.progress(
                request.treatment,
                part=request.part,
                operation_id=request.step.operation_id,
                boot_id_before=boot_id_before,
            )
        except NodeUnreadable:
            return None
