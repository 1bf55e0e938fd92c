"""A reflash, phase by phase: sent once, followed to its end, activated by a power cycle, read back.

Only the inventory's versions tell success. A flash whose answer or task was lost is never sent
again: what it did is read off the versions, and no power is cut while it may still be at work.
"""

import asyncio
import time
from collections.abc import Mapping

from activities.clock import Clock
from activities.effects import retry_transient
from activities.power_cycle import May, PowerCycle, Withheld
from sickbay.contracts.firmware import TaskState
from sickbay.contracts.operations import Operation, OutOfBandTimes, Phase
from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.firmware import FlashPlan
from sickbay.errors import BmcError
from sickbay.ports import Firmware
from sickbay.ports_out_of_band import Operations

TASK, WITHOUT_TASK = "task", "flash_why"
COMPONENTS, VERSION = "components", "version"
FLASHES = frozenset({Phase.FLASH_ASKED, Phase.FLASHING})


def memo_of(plan: FlashPlan) -> dict[str, str]:
    """What a later attempt must know of the plan."""
    return {COMPONENTS: "\n".join(plan.components), VERSION: plan.image.version}


def active(versions: Mapping[str, str], *, memo: Mapping[str, str]) -> bool:
    """Whether every component of the plan shows the wanted version."""
    wanted = memo[COMPONENTS].split("\n")
    return all(versions.get(component) == memo[VERSION] for component in wanted)


class NeverSent(Exception):
    """The image did not reach the controller; carries the operation and why."""

    def __init__(self, operation: Operation, *, effect: Effect) -> None:
        super().__init__(effect.detail)
        self.operation = operation
        self.effect = effect


class Reflash:
    """Carries one operation's reflash on from whatever phase it is in."""

    def __init__(
        self,
        firmware: Firmware,
        *,
        cycle: PowerCycle,
        operations: Operations,
        times: OutOfBandTimes,
        clock: Clock,
    ) -> None:
        self._firmware = firmware
        self._cycle = cycle
        self._operations = operations
        self._times = times
        self._clock = clock

    async def run(
        self, operation: Operation, *, plan: FlashPlan | None, may: May, deadline_s: float
    ) -> tuple[Operation, Effect]:
        """Go on to the end; the operation as it then is on record, and how the reflash ended.

        `plan` is needed until the image is sent.

        Raises:
            NeverSent: the image did not reach the controller. Withheld: it may not go on.
            Superseded: another attempt does. ApplicationError: transient, nothing was sent.
        """
        op, ends = operation, time.monotonic() + deadline_s
        if op.phase is Phase.STARTED and plan is not None:
            op, refused = await self._send(op, plan, may=may)
            if refused is not None:
                return op, refused
        elif op.phase is Phase.FLASH_ASKED:
            memo = {TASK: "", WITHOUT_TASK: "the answer to the flash was lost"}
            op = await self._advance(op, Phase.FLASHING, memo=memo)
        if op.phase is Phase.FLASHING:
            effect = await self._follow(op, ends=ends)
            if effect is not None:
                return op, effect
            op = await self._advance(op, Phase.FLASHED)
        if op.phase is Phase.FLASHED and await self._is_active(op):
            return op, Effect(Outcome.SUCCEEDED, f"{_said(op)} is active")
        left = max(ends - time.monotonic(), self._times.answer_wait_s)
        op, cycled = await self._cycle.run(op, may=may, deadline_s=left)
        if cycled.outcome is not Outcome.SUCCEEDED:
            return op, Effect(cycled.outcome, f"activation: {cycled.detail}")
        return op, await self._read_back(op)

    async def _send(
        self, op: Operation, plan: FlashPlan, *, may: May
    ) -> tuple[Operation, Effect | None]:
        held = await may()
        if held is not None:
            raise Withheld(held)
        op = await self._advance(op, Phase.FLASH_ASKED, memo=memo_of(plan))
        start = await self._firmware.flash(op.node, image=plan.image, components=plan.components)
        outcome = start.effect.outcome
        if outcome is Outcome.TRANSIENT:
            await self._advance(op, Phase.STARTED)
            retry_transient(start.effect)
        if outcome is Outcome.PERMANENT and not start.sent:
            raise NeverSent(op, effect=start.effect)
        if outcome is Outcome.PERMANENT:
            return op, start.effect
        lost = "" if start.task else start.effect.detail or "no task was named"
        memo = {TASK: start.task, WITHOUT_TASK: lost}
        return await self._advance(op, Phase.FLASHING, memo=memo), None

    async def _follow(self, op: Operation, *, ends: float) -> Effect | None:
        """Until the flash is over; None then, else how it failed."""
        task, lost = op.memo.get(TASK, ""), op.memo.get(WITHOUT_TASK, "")
        quiet_ends = time.monotonic() + self._times.flash_quiet_s
        seen = ""
        while True:
            if task:
                found = await self._firmware.task(op.node, task=task)
                seen = f"{found.state} {found.detail}".strip()
                if found.state is TaskState.SUCCEEDED:
                    return None
                if found.state is TaskState.FAILED:
                    return Effect(Outcome.PERMANENT, f"the flash failed: {found.detail}")
                if found.state is TaskState.GONE:
                    task, lost = "", found.detail
                    quiet_ends = time.monotonic() + self._times.flash_quiet_s
            elif await self._is_active(op) or time.monotonic() >= quiet_ends:
                # Long enough for any flash: whether it took shows after the activation.
                return None
            if time.monotonic() >= ends:
                why = f"the flash did not end in time ({seen or lost}); the power is left alone"
                return Effect(Outcome.AMBIGUOUS, why)
            await asyncio.sleep(self._times.poll_s)

    async def _read_back(self, op: Operation) -> Effect:
        """A controller may answer minutes after the boot: it is asked until `back_s`."""
        ends = time.monotonic() + self._times.back_s
        seen = "the controller tells no version"
        while time.monotonic() < ends:
            try:
                versions = await self._firmware.versions(op.node)
            except BmcError as error:
                seen = error.message
            else:
                if active(versions, memo=op.memo):
                    return Effect(Outcome.SUCCEEDED, f"{_said(op)} is active after the boot")
                seen = _shown(versions, op)
            await asyncio.sleep(self._times.poll_s)
        return Effect(Outcome.PERMANENT, f"{_said(op)} is not active after the boot: {seen}")

    async def _is_active(self, op: Operation) -> bool:
        try:
            return active(await self._firmware.versions(op.node), memo=op.memo)
        except BmcError:
            return False

    async def _advance(
        self, op: Operation, phase: Phase, *, memo: dict[str, str] | None = None
    ) -> Operation:
        return await self._operations.advance(op, phase=phase, at=self._clock(), memo=memo)


def _said(op: Operation) -> str:
    return f"{op.memo[COMPONENTS].replace(chr(10), ', ')} {op.memo[VERSION]}"


def _shown(versions: Mapping[str, str], op: Operation) -> str:
    wanted = op.memo[COMPONENTS].split("\n")
    return ", ".join(f"{c} {versions.get(c) or 'unknown'}" for c in wanted)
