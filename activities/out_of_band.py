"""Power cycle and reflash through a node's management controller, at most once per operation id.

The journal of these acts is in the store, because any control worker may take one over. Before the
first request everything is read again: the drained radius (or the word of two witnesses that the
node is down), the safety switches, and how much its rack and power unit bear.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from temporalio import activity

from activities.clock import Clock
from activities.drained import drained_and_not_lent
from activities.effects import wait_for_place, withheld_by
from activities.loads import Loads
from activities.power_cycle import BEFORE_OFF, PowerCycle, Withheld
from activities.reflash import NeverSent, Reflash
from activities.treatment import NOT_DRAINED
from sickbay.contracts.operations import Operation, OutOfBandTimes, Phase
from sickbay.contracts.steps import (
    Action,
    DrainState,
    Effect,
    Outcome,
    StepResult,
    TreatmentRequest,
)
from sickbay.domain.firmware import FirmwareImage, FlashPlan, RolloutKey, image_for, wanted
from sickbay.domain.node import Node, Treatment
from sickbay.domain.power import Leave, PowerState, Sight, may_power_off
from sickbay.domain.radius import Limits, Load, radius
from sickbay.errors import BmcError, BmcUnreachable, Unreachable
from sickbay.ports import Bmc, Firmware, Inventory, Safety, Scheduler
from sickbay.ports_out_of_band import Leases, Operations, Rollouts, Witness

HEARTBEAT_S = 1.0
NOTHING_TO_FLASH = "nothing to flash"
Work = Callable[[TreatmentRequest, Operation | None, Node], Awaitable[StepResult]]


@dataclass(frozen=True)
class Outside:
    """The ports of the world outside that these activities read and act on."""

    bmc: Bmc
    firmware: Firmware
    scheduler: Scheduler
    witness: Witness
    safety: Safety
    inventory: Inventory


@dataclass(frozen=True)
class Ledger:
    """The durable side: what was begun, what runs where, which firmware is on its way."""

    operations: Operations
    leases: Leases
    rollouts: Rollouts


@dataclass(frozen=True)
class Rules:
    """What the settings allow: limits, images, durations in seconds of wall clock."""

    limits: Limits
    images: Sequence[FirmwareImage]
    times: OutOfBandTimes


@dataclass(frozen=True)
class _Word:
    """Why an act is refused, or by whose word it may happen."""

    refused: StepResult | None = None
    witness: str = ""


class OutOfBandActivities:
    """The control worker's hands on management controllers."""

    def __init__(self, outside: Outside, *, ledger: Ledger, rules: Rules, clock: Clock) -> None:
        self._out = outside
        self._ledger = ledger
        self._rules = rules
        self._clock = clock
        self._loads = Loads(
            ledger.leases, limits=rules.limits, inventory=outside.inventory, clock=clock
        )
        self._cycle = PowerCycle(
            outside.bmc,
            operations=ledger.operations,
            witness=outside.witness,
            times=rules.times,
            clock=clock,
        )
        self._reflash = Reflash(
            outside.firmware,
            cycle=self._cycle,
            operations=ledger.operations,
            times=rules.times,
            clock=clock,
        )

    @activity.defn(name="power_cycle")
    async def power_cycle(self, request: TreatmentRequest) -> StepResult:
        """Cut the power, wait, give it back, and see the node answer again."""
        return await self._once(request, self._power_cycle)

    @activity.defn(name="reflash")
    async def reflash(self, request: TreatmentRequest) -> StepResult:
        """Flash the wanted firmware, activate it, and read its version back."""
        return await self._once(request, self._do_reflash)

    # --- one operation --------------------------------------------------------------------------

    async def _once(self, request: TreatmentRequest, work: Work) -> StepResult:
        """Answer from the journal, or carry the operation to its end."""
        known = await self._ledger.operations.lookup(request.step.operation_id)
        if known is not None and known.effect is not None:
            return StepResult(known.effect, at=known.finished_at)
        node = await self._out.inventory.node(request.step.node)
        if node is None:
            return self._no(f"no node {request.step.node!r} is on record")
        async with _heartbeats(request.treatment):
            try:
                return await _to_the_end(work(request, known, node))
            except Withheld as held:
                await self._loads.give_back(request.step.operation_id)
                return held.result

    async def _power_cycle(
        self, request: TreatmentRequest, known: Operation | None, node: Node
    ) -> StepResult:
        word = _Word()
        if known is None or known.phase in BEFORE_OFF:
            word = await self._word(request, node)
            if word.refused is not None:
                return word.refused
        waited = await self._lease(request)
        if waited is not None:
            return waited
        op = await self._take(request, witness=word.witness)
        if op.effect is not None:
            return StepResult(op.effect, at=op.finished_at)
        op, effect = await self._cycle.run(
            op, may=lambda: self._refusal(request, node), deadline_s=request.deadline_s
        )
        return await self._finished(op, effect)

    async def _do_reflash(
        self, request: TreatmentRequest, known: Operation | None, node: Node
    ) -> StepResult:
        plan, word = None, _Word()
        if known is None or known.phase is Phase.STARTED:
            word = await self._word(request, node)
            if word.refused is not None:
                return word.refused
            chosen = await self._plan(request, node)
            if isinstance(chosen, StepResult):
                return chosen
            plan = chosen
        waited = await self._lease(request)
        if waited is not None:
            return waited
        op = await self._take(request, witness=word.witness)
        if op.effect is not None:
            return StepResult(op.effect, at=op.finished_at)
        try:
            op, effect = await self._reflash.run(
                op,
                plan=plan,
                may=lambda: self._refusal(request, node),
                deadline_s=request.deadline_s,
            )
        except NeverSent as error:
            # The image never ran anywhere: that is no word on the version.
            await self._settle(node, proven=None, why=error.effect.detail)
            return await self._finished(error.operation, error.effect)
        if effect.outcome is not Outcome.SUCCEEDED:
            await self._settle(node, proven=False, why=effect.detail)
        return await self._finished(op, effect)

    async def _settle(self, node: Node, *, proven: bool | None, why: str) -> None:
        await self._ledger.rollouts.settle(node.id, proven=proven, why=why, at=self._clock())

    async def _take(self, request: TreatmentRequest, *, witness: str) -> Operation:
        step = request.step
        return await self._ledger.operations.take(
            Operation(
                id=step.operation_id,
                node=step.node,
                treatment=request.treatment,
                owner=uuid4().hex,
                started_at=self._clock(),
                witness=witness,
            )
        )

    async def _finished(self, op: Operation, effect: Effect) -> StepResult:
        at = self._clock()
        done = await self._ledger.operations.finish(op, effect=effect, at=at)
        await self._loads.give_back(op.id)
        return StepResult(done.effect or effect, at=at)

    # --- what must be so before -----------------------------------------------------------------

    async def _refusal(self, request: TreatmentRequest, node: Node) -> StepResult | None:
        """Why the act may not go on now."""
        return (await self._word(request, node)).refused

    async def _word(self, request: TreatmentRequest, node: Node) -> "_Word":
        """Whether the act may happen now: everything is read again."""
        step = request.step
        fleet = await self._out.inventory.nodes()
        reached = {*radius(request.treatment, node=node, fleet=fleet), *request.radius}
        witness = ""
        for name in sorted(reached):
            leave = await self._leave(name, request)
            if not leave.given:
                return _Word(self._no(f"{NOT_DRAINED}: {name}: {leave.why}"))
            witness = leave.witness if name == node.id else witness
        action = Action(request.treatment.value)
        permission = await self._out.safety.permission(pool=step.pool, action=action)
        held = withheld_by(permission, step=step)
        if held is None:
            return _Word(witness=witness)
        await self._out.safety.would_have(
            node=step.node, pool=step.pool, action=action, detail="the node", why=str(held)
        )
        return _Word(StepResult(Effect(Outcome.PERMANENT, "withheld"), withheld=held))

    async def _leave(self, name: str, request: TreatmentRequest) -> Leave:
        """Whether this node may lose its power; only the patient itself may be silent."""
        drain, _ = await drained_and_not_lent(self._out.scheduler, name)
        drained = drain.state is DrainState.DRAINED
        silent = request.silent and name == request.step.node
        sight = Sight(drained=drained, jobs=drain.blocking)
        if silent and not drained and request.treatment is Treatment.POWER_CYCLE:
            sight = Sight(
                drained=False,
                jobs=drain.blocking,
                marked=await self._marked(name, request.mark),
                page=await self._out.witness.pulse(name),
                power=await self._power(name),
            )
        leave = may_power_off(sight, silent=silent)
        detail = f"{leave.why} [{drain.state}: {drain.detail}]" if drain.detail else leave.why
        return leave if leave.given else Leave(False, why=detail)

    async def _marked(self, name: str, mark: str) -> bool:
        try:
            return mark in {found for found, _ in await self._out.scheduler.marks(name)}
        except Unreachable:
            return False

    async def _power(self, name: str) -> PowerState:
        try:
            return await self._out.bmc.power_state(name)
        except BmcError:
            return PowerState.UNKNOWN

    async def _lease(self, request: TreatmentRequest) -> StepResult | None:
        """Take the place in rack and power unit, or wait for it. Raises `ApplicationError`."""
        times = self._rules.times
        return await self._loads.take(
            Load.POWER_CYCLE,
            step=request.step,
            lasts_s=request.deadline_s + 2 * times.back_s + times.off_s,
            longest_s=request.deadline_s,
        )

    async def _plan(self, request: TreatmentRequest, node: Node) -> FlashPlan | StepResult:
        """What to flash, reserved; or why nothing is."""
        try:
            versions = await self._versions(node, within_s=request.deadline_s)
        except BmcError as error:
            return self._no(error.message)
        plan: FlashPlan | None
        target = request.firmware
        if target is None:
            plan = wanted(versions, node_class=node.node_class, images=self._rules.images)
            if plan is None:
                what = f"{NOTHING_TO_FLASH}: {node.id} has what the allow-list wants"
                return self._no(what)
        else:
            image = image_for(target, node_class=node.node_class, images=self._rules.images)
            if image is None:
                what = f"no image of {target.component} {target.version} for {node.node_class}"
                return self._no(f"{what} is in firmware.images")
            if versions.get(target.component) == target.version:
                done = f"{target.component} {target.version} is active already"
                return StepResult(Effect(Outcome.SUCCEEDED, done), at=self._clock())
            plan = FlashPlan(image, components=(target.component,))
        key = RolloutKey(node.node_class, plan.image.component, plan.image.version)
        turn = await self._ledger.rollouts.reserve(key, node=node.id, at=self._clock())
        if turn.wait:
            return wait_for_place(turn.why, now=self._clock(), longest_s=request.deadline_s)
        return plan if turn.granted else self._no(turn.why)

    async def _versions(self, node: Node, *, within_s: float) -> Mapping[str, str]:
        """What the node has; a controller that is away is asked again. Raises `BmcError`."""
        ends = time.monotonic() + min(within_s, self._rules.times.back_s)
        while True:
            try:
                return await self._out.firmware.versions(node.id)
            except BmcUnreachable:
                if time.monotonic() >= ends:
                    raise
            await asyncio.sleep(self._rules.times.poll_s)

    def _no(self, why: str) -> StepResult:
        return StepResult(Effect(Outcome.PERMANENT, why), at=self._clock())


async def _to_the_end(work: Awaitable[StepResult]) -> StepResult:
    """A repair that is called off while the power is cut still has the power given back."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details is None or not details.cancel_requested:
            task.cancel()
            raise
        return await task


@contextlib.asynccontextmanager
async def _heartbeats(what: Treatment) -> AsyncIterator[None]:
    """Beat beside the work: one question to a controller may take longer than a beat."""

    async def beat() -> None:
        while True:
            activity.heartbeat(str(what))
            await asyncio.sleep(HEARTBEAT_S)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating
