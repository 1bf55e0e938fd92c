"""The rules of management controllers, kept in memory, and broken by what must not pass."""

from datetime import UTC, datetime

import pytest

from sickbay.contracts.steps import Effect, Outcome
from sickbay.testing import MemoryBmc, MemoryFleet, some_nodes
from sickbay.testing import bmc_conformance as rules
from sickbay.testing.bmc_conformance import BMC_RULES, BmcBench
from sickbay.testing.conformance import NonConforming


def bench(bmc):
    async def acts():
        return len(bmc.switched)

    async def take_away():
        bmc.away.add("n001")

    return BmcBench(bmc, "n001", acts=acts, take_away=take_away, poll_s=0.001)


@pytest.fixture
def bmc():
    return MemoryBmc(MemoryFleet(some_nodes(1), now=lambda: datetime.now(UTC)))


@pytest.mark.parametrize("rule", BMC_RULES, ids=lambda rule: rule.__name__)
async def test_controllers_in_memory_conform(bmc, rule):
    await rule(bench(bmc))


async def test_a_switch_that_does_nothing_and_one_that_acts_twice_are_found(bmc):
    good = bmc.switch

    async def claims(node, *, on):
        return Effect(Outcome.SUCCEEDED)

    bmc.switch = claims
    with pytest.raises(NonConforming, match="becomes off"):
        await rules.off_and_on_are_seen(bench(bmc))

    async def twice(node, *, on):
        await good(node, on=on)
        await good(node, on=not on)
        return await good(node, on=on)

    bmc.switch = twice
    with pytest.raises(NonConforming, match="does nothing"):
        await rules.switching_to_what_is_so_is_a_success_and_no_act(bench(bmc))
    with pytest.raises(NonConforming, match="one act"):
        await rules.off_and_on_are_seen(bench(bmc))
