"""The rules every adapter of management controllers keeps, as those of `conformance`.

```python
@pytest.mark.parametrize("rule", BMC_RULES, ids=lambda rule: rule.__name__)
async def test_my_controllers(rule):
    await rule(BmcBench(MyControllers(...), node="n1", acts=..., take_away=...))
```
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sickbay.contracts.steps import Outcome
from sickbay.domain.power import PowerState
from sickbay.errors import BmcError, BmcUnreachable
from sickbay.ports import Bmc
from sickbay.testing.conformance import NonConforming

NOBODY = "conformance-nobody"
POLLS = 300


@dataclass(frozen=True)
class BmcBench:
    """Controllers, an empty node of theirs that is on, and what the test does behind them.

    Args:
        bmc: the port.
        node: a node whose power is on and that runs nothing.
        acts: how often the node's power truly changed so far.
        take_away: makes the node's controller answer nothing from now on.
        poll_s: how often the power is read while it changes.
    """

    bmc: Bmc
    node: str
    acts: Callable[[], Awaitable[int]]
    take_away: Callable[[], Awaitable[None]]
    poll_s: float = 0.1

    async def see(self, state: PowerState) -> None:
        """Read the power until it is `state`."""
        for _ in range(POLLS):
            if await self.bmc.power_state(self.node) is state:
                return
            await asyncio.sleep(self.poll_s)
        raise NonConforming(f"after a switch that succeeded the power becomes {state}")


def _must(holds: bool, rule: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise NonConforming(rule)


async def switching_to_what_is_so_is_a_success_and_no_act(bench: BmcBench) -> None:
    """A retry may follow an answer that was lost."""
    before = await bench.acts()
    effect = await bench.bmc.switch(bench.node, on=True)
    _must(effect.outcome is Outcome.SUCCEEDED, "switching on what is on succeeds")
    _must(await bench.acts() == before, "switching on what is on does nothing")


async def off_and_on_are_seen(bench: BmcBench) -> None:
    """One switch is one act, and the power state tells the truth afterwards."""
    before = await bench.acts()
    for count, on in enumerate((False, True), start=1):
        effect = await bench.bmc.switch(bench.node, on=on)
        _must(effect.outcome is Outcome.SUCCEEDED, "a switch that was accepted succeeds")
        await bench.see(PowerState.ON if on else PowerState.OFF)
        _must(await bench.acts() == before + count, "one switch is one act")


async def the_last_reset_moves_with_a_power_cycle(bench: BmcBench) -> None:
    """A time that is told is aware of its zone and grows; None is allowed."""
    before = await bench.bmc.last_reset(bench.node)
    await off_and_on_are_seen(bench)
    after = await bench.bmc.last_reset(bench.node)
    if before is None or after is None:
        return
    _must(after.tzinfo is not None, "last_reset is aware of its zone")
    _must(after > before, "last_reset grows with a power cycle")


async def a_node_nobody_knows_is_neither_on_nor_off(bench: BmcBench) -> None:
    """It is an error, and nothing can be done to it."""
    try:
        state = await bench.bmc.power_state(NOBODY)
    except BmcError:
        pass
    else:
        _must(state is PowerState.UNKNOWN, "a node nobody knows is never on or off")
    effect = await bench.bmc.switch(NOBODY, on=False)
    _must(effect.outcome is Outcome.PERMANENT, "a node nobody knows cannot be switched")


async def a_controller_that_is_away_may_come_back(bench: BmcBench) -> None:
    """Silence is no state, and no lasting refusal."""
    await bench.take_away()
    try:
        await bench.bmc.power_state(bench.node)
    except BmcUnreachable:
        pass
    else:
        raise NonConforming("the power of a node whose controller is silent is not known")
    effect = await bench.bmc.switch(bench.node, on=False)
    passing = {Outcome.TRANSIENT, Outcome.AMBIGUOUS}
    _must(effect.outcome in passing, "a silent controller is transient or ambiguous")


BMC_RULES = (
    switching_to_what_is_so_is_a_success_and_no_act,
    off_and_on_are_seen,
    the_last_reset_moves_with_a_power_cycle,
    a_node_nobody_knows_is_neither_on_nor_off,
    a_controller_that_is_away_may_come_back,
)
