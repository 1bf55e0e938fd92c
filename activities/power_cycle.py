"""A cold power cycle, phase by phase: off, seen off, a wait, on, seen on, and the node back.

Each phase is journaled before its request is sent. An attempt that takes over looks at the power
before it asks for anything, so that a kill or a lost answer at any point leaves one cycle.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from activities.clock import Clock
from sickbay.contracts.operations import Operation, OutOfBandTimes, Phase
from sickbay.contracts.steps import Effect, Outcome, StepResult
from sickbay.domain.power import PowerState, Pulse
from sickbay.errors import BmcError
from sickbay.ports import Bmc
from sickbay.ports_out_of_band import Operations, Witness

BEFORE_OFF = frozenset({Phase.STARTED, Phase.FLASHED})
# How often one request is sent in all, when it visibly did nothing.
MOST_SENT = 3
RESET_BEFORE = "last_reset"

May = Callable[[], Awaitable[StepResult | None]]


class Withheld(Exception):
    """The act may not go on now; carries the answer of the step."""

    def __init__(self, result: StepResult) -> None:
        super().__init__(result.effect.detail)
        self.result = result


@dataclass
class _Asking:
    """One wanted state: how often it was asked for, when last, and what was answered."""

    on: bool
    sent: int
    asked_at: float
    said: str = ""

    @property
    def wanted(self) -> PowerState:
        return PowerState.ON if self.on else PowerState.OFF

    @property
    def contrary(self) -> PowerState:
        return PowerState.OFF if self.on else PowerState.ON


class PowerCycle:
    """Carries one operation's power cycle on from whatever phase it is in."""

    def __init__(
        self,
        bmc: Bmc,
        *,
        operations: Operations,
        witness: Witness,
        times: OutOfBandTimes,
        clock: Clock,
    ) -> None:
        self._bmc = bmc
        self._operations = operations
        self._witness = witness
        self._times = times
        self._clock = clock

    async def run(
        self, operation: Operation, *, may: May, deadline_s: float
    ) -> tuple[Operation, Effect]:
        """Go on to the end; the operation as it then is on record, and how the cycle ended.

        `may` is asked again just before each request to cut the power.

        Raises:
            Withheld: it may not go on. Superseded: another attempt does.
        """
        op, ends = operation, time.monotonic() + deadline_s
        fresh = op.phase in BEFORE_OFF
        if fresh:
            before = await self._last_reset(op.node)
            memo = {RESET_BEFORE: before.isoformat() if before else ""}
            await _check(may)
            op = await self._advance(op, Phase.OFF_ASKED, memo=memo)
        if op.phase is Phase.OFF_ASKED:
            failed = await self._until(op, on=False, fresh=fresh, ends=ends, may=may)
            if failed is not None:
                return op, failed
            cycled = await self._cycled(op)
            op = await self._advance(op, Phase.ON_SEEN if cycled else Phase.OFF_SEEN)
        if op.phase is Phase.OFF_SEEN:
            await self._stay_off(op)
            op, fresh = await self._advance(op, Phase.ON_ASKED), True
        if op.phase is Phase.ON_ASKED:
            # However late it is: a node that was switched off is switched on again.
            ends = max(ends, time.monotonic() + self._times.back_s)
            failed = await self._until(op, on=True, fresh=fresh, ends=ends, may=may)
            if failed is not None:
                return op, failed
            op = await self._advance(op, Phase.ON_SEEN)
        return op, await self._back(op)

    async def _until(
        self, op: Operation, *, on: bool, fresh: bool, ends: float, may: May
    ) -> Effect | None:
        """Ask until the power is as wanted; None then, else how it failed.

        What was asked before this attempt may still take effect: it is waited for first.
        """
        ask = _Asking(on=on, sent=0 if fresh else 1, asked_at=time.monotonic())
        if fresh:
            refused = await self._send(op, ask)
            if refused is not None:
                return refused
        while True:
            state = await self._power(op.node)
            if state is ask.wanted:
                return None
            late = time.monotonic() - ask.asked_at >= self._times.answer_wait_s
            if state is ask.contrary and late:
                if not on and await self._was_reset(op):
                    return None
                if ask.sent >= MOST_SENT:
                    why = f"power stays {state} though asked {ask.sent} times ({ask.said})"
                    return Effect(Outcome.PERMANENT, why)
                if not on:
                    await _check(may)
                # Still ours? Else a later attempt has cut and given back the power already.
                op = await self._advance(op, op.phase)
                refused = await self._send(op, ask)
                if refused is not None:
                    return refused
            if time.monotonic() >= ends:
                return _gave_up(state, ask)
            await asyncio.sleep(self._times.poll_s)

    async def _send(self, op: Operation, ask: _Asking) -> Effect | None:
        effect = await self._bmc.switch(op.node, on=ask.on)
        ask.said = effect.detail
        if effect.outcome is Outcome.PERMANENT:
            left = " (the power is off)" if ask.on else ""
            return Effect(Outcome.PERMANENT, f"{effect.detail}{left}")
        ask.asked_at = time.monotonic()
        if effect.outcome is Outcome.TRANSIENT:
            # It certainly did not happen: nothing need be waited for.
            ask.asked_at -= self._times.answer_wait_s
        else:
            ask.sent += 1
        return None

    async def _cycled(self, op: Operation) -> bool:
        return await self._power(op.node) is PowerState.ON and await self._was_reset(op)

    async def _was_reset(self, op: Operation) -> bool:
        """Whether the node came out of a reset since the operation began."""
        before = op.memo.get(RESET_BEFORE, "")
        now = await self._last_reset(op.node)
        return bool(before) and now is not None and now > datetime.fromisoformat(before)

    async def _stay_off(self, op: Operation) -> None:
        """Let the capacitors drain; what passed before a kill counts."""
        since = op.phase_at or op.started_at
        left = self._times.off_s - (self._clock() - since).total_seconds()
        if left > 0:
            await asyncio.sleep(min(left, self._times.off_s))

    async def _back(self, op: Operation) -> Effect:
        ends = time.monotonic() + self._times.back_s
        while time.monotonic() < ends:
            if await self._witness.pulse(op.node) is Pulse.ANSWERS:
                return Effect(Outcome.SUCCEEDED, f"{op.node} was off and is back")
            await asyncio.sleep(self._times.poll_s)
        waited = f"{self._times.back_s:.0f} s"
        why = f"the power is on again, but {op.node} did not come back within {waited}"
        return Effect(Outcome.PERMANENT, why)

    async def _power(self, node: str) -> PowerState:
        """A controller that fails to answer tells nothing; it restarts itself at times."""
        try:
            return await self._bmc.power_state(node)
        except BmcError:
            return PowerState.UNKNOWN

    async def _last_reset(self, node: str) -> datetime | None:
        try:
            return await self._bmc.last_reset(node)
        except BmcError:
            return None

    async def _advance(
        self, op: Operation, phase: Phase, *, memo: dict[str, str] | None = None
    ) -> Operation:
        return await self._operations.advance(op, phase=phase, at=self._clock(), memo=memo)


async def _check(may: May) -> None:
    held = await may()
    if held is not None:
        raise Withheld(held)


def _gave_up(state: PowerState, ask: _Asking) -> Effect:
    if ask.sent == 0:
        return Effect(Outcome.PERMANENT, f"nothing was done: {ask.said}")
    outcome = Outcome.AMBIGUOUS if state is PowerState.UNKNOWN else Outcome.PERMANENT
    return Effect(outcome, f"{ask.wanted} was asked for, the power is {state} ({ask.said})")
