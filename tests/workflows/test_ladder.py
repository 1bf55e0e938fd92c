"""The whole ladder: rung by rung when none holds, around a silent node, and waiting its turn."""

from dataclasses import replace
from datetime import timedelta

import pytest

from sickbay.contracts.firmware import FlashStart
from sickbay.contracts.repair import PartReplaced
from sickbay.contracts.steps import DrainResult, DrainState, Effect, Outcome
from sickbay.domain.firmware import RolloutKey, RolloutStage
from sickbay.domain.node import Category, Treatment
from sickbay.domain.radius import Lease, Limits, Load
from sickbay.testing import MemoryScheduler
from sickbay.testing.loop import NEW, OLD
from tests.workflows.conftest import POLICY, WHOLE_LADDER, utc_now

BEGUN = ["permit granted", "drain drained", "diagnose confirmed"]
PROVEN = ["prove passed", "prove passed", "return returned"]
KEY = RolloutKey("hgx-8", "GPU_*", NEW)


async def wants_firmware(loop, node, **changes):
    """A fault whose finding asks for a reflash, which cures it."""
    loop.fleet.break_part(node, "gpu0", cured_by={Treatment.REFLASH}, first_rung=Treatment.REFLASH)
    return await loop.report(node, treatment=Treatment.REFLASH, **changes)


async def the_rollout(loop):
    return next((r for r in await loop.ledger.rollouts.all() if r.key == KEY), None)


async def test_each_rung_that_does_not_hold_leads_to_the_next_and_none_is_left_out(start):
    async with start(policy=WHOLE_LADDER) as loop:
        await loop.broken("n001")
        await loop.until_stage("swap", waits="ticket")
        assert await loop.story() == [
            *BEGUN,
            "reset done",
            "prove failed",
            "reboot done",
            "prove failed",
            "power_cycle done",
            "prove failed",
            "reflash done",
            "prove failed",
        ]
        assert loop.bmc.flashed == [("n001", ("GPU_0", "GPU_1"), NEW)]
        assert loop.bmc.switched == [("n001", False), ("n001", True)] * 2
        rollout = await the_rollout(loop)
        assert rollout.stage is RolloutStage.FROZEN, "a version whose proof failed goes no further"

        loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        await loop.send("part_replaced", PartReplaced(slot="gpu0", serial="NEW1", by="tom"))
        view = await loop.ended()
        assert (await loop.story())[-4:] == ["swap replaced", *PROVEN]
        assert loop.records.repairs[view.repair_id].cured_by is Treatment.SWAP
        assert loop.ledger.leases.held == {}


@pytest.mark.parametrize(
    ("cure", "below"),
    [
        (Treatment.POWER_CYCLE, [Treatment.RESET, Treatment.REBOOT]),
        (Treatment.REFLASH, [Treatment.RESET, Treatment.REBOOT, Treatment.POWER_CYCLE]),
    ],
)
async def test_the_rung_that_holds_is_the_one_that_is_booked(start, cure, below):
    async with start(policy=WHOLE_LADDER) as loop:
        await loop.broken("n001", cure)
        view = await loop.ended()
        assert view.ending == "returned"
        climbed = [step for rung in below for step in (f"{rung} done", "prove failed")]
        assert await loop.story() == [*BEGUN, *climbed, f"{cure} done", *PROVEN]
        assert loop.records.repairs[view.repair_id].cured_by is cure


async def test_after_a_power_cycle_the_second_pass_runs_on_a_fresh_boot(start):
    async with start(policy=WHOLE_LADDER) as loop:
        await loop.broken("n001", Treatment.POWER_CYCLE, treatment=Treatment.POWER_CYCLE)
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done() == [Treatment.POWER_CYCLE, Treatment.REBOOT]


async def test_a_node_whose_worker_is_silent_is_power_cycled_and_returns_proven(start):
    policy = replace(WHOLE_LADDER, node_queue_timeout_s=0.5)
    async with start(policy=policy, silent=("n001",)) as loop:
        loop.fleet["n001"].up = False
        await loop.broken("n001", Treatment.POWER_CYCLE)
        await loop.until("the power cycle", lambda: len(loop.bmc.switched) == 2)
        async with loop.node_worker("n001"):
            view = await loop.ended()
        assert view.ending == "returned"
        story = await loop.story()
        assert story[2:4] == ["diagnose unreachable", "power_cycle done"]
        assert loop.fleet.done()[0] is Treatment.POWER_CYCLE
        assert "reset done" not in story
        operation = next(iter(loop.ledger.operations.rows.values()))
        assert operation.witness, "nobody is named by whose word the power was cut"


class LosesContact(MemoryScheduler):
    """A scheduler that cannot tell what a node runs once it is down."""

    async def drain_state(self, node):
        if not self._fleet[node].up:
            return DrainResult(DrainState.UNKNOWN, detail="no contact")
        return await super().drain_state(node)


async def test_a_node_nobody_can_call_drained_needs_a_second_witness_that_it_is_down(start):
    def lose_contact(loop):
        loop.scheduler = LosesContact(loop.fleet)

    policy = replace(WHOLE_LADDER, node_queue_timeout_s=2.0)
    async with start(policy=policy, silent=("n001",), prepare=lose_contact) as loop:
        await loop.broken("n001", Treatment.POWER_CYCLE)
        await loop.until_count("drain drained", 1)
        loop.fleet["n001"].up = False
        await loop.until("the power cycle", lambda: len(loop.bmc.switched) == 2)
        async with loop.node_worker("n001"):
            assert (await loop.ended()).ending == "returned"
        operation = next(iter(loop.ledger.operations.rows.values()))
        assert operation.witness == "worker silent, metrics page silent"


async def test_a_silent_node_with_a_living_metrics_page_and_a_job_keeps_its_power(start):
    """The worker alone is silent: a broken network looks the same."""
    policy = replace(WHOLE_LADDER, node_queue_timeout_s=0.5)
    async with start(policy=policy, silent=("n001",)) as loop:
        handle = await loop.broken("n001", Treatment.POWER_CYCLE)
        await loop.until_count("drain drained", 1)
        loop.fleet["n001"].jobs.append("job7")
        await loop.until_count("power_cycle blocked", 1)
        assert loop.bmc.switched == []
        assert loop.fleet["n001"].jobs == ["job7"]
        await handle.terminate("the test is over")


# --- waiting one's turn ---------------------------------------------------------------------------


async def test_a_power_cycle_that_waits_for_its_rack_does_not_climb(start):
    def one_per_rack(loop):
        loop.limits = Limits(per_rack={Load.POWER_CYCLE: 1})

    policy = replace(WHOLE_LADDER, treatment_deadline_s=0.4)
    async with start(policy=policy, prepare=one_per_rack) as loop:
        busy = Lease("other", Load.POWER_CYCLE, "n009", "rack0", "", utc_now() + timedelta(hours=1))
        loop.ledger.leases.held["other"] = busy
        await loop.broken("n001", Treatment.POWER_CYCLE, treatment=Treatment.POWER_CYCLE)
        await loop.until_count("power_cycle blocked", 2)
        blocked = [s.detail for s in loop.records.steps if s.outcome == "blocked"]
        assert all(d == "waits: 1 power cycles run in rack rack0" for d in blocked)
        assert loop.bmc.switched == []
        await loop.ledger.leases.give_back("other")
        view = await loop.ended()
        assert view.ending == "returned"
        assert {s.partition(" ")[0] for s in await loop.story()} == {
            *("permit", "drain", "diagnose", "power_cycle", "prove", "return")
        }
        assert loop.bmc.switched == [("n001", False), ("n001", True)]
        assert loop.records.repairs[view.repair_id].cured_by is Treatment.POWER_CYCLE


async def test_c53_the_second_node_is_flashed_only_when_the_first_has_returned(start):
    policy = replace(WHOLE_LADDER, reflash_deadline_s=0.5)
    async with start(policy=policy) as loop:
        loop.runner.hold("n001")
        await wants_firmware(loop, "n001")
        await loop.until_stage("diagnose", "n001")
        loop.runner.let_go("n001")
        await loop.until("the canary is flashed", lambda: loop.bmc.flashed)
        loop.runner.hold("n001")
        await wants_firmware(loop, "n002")
        await loop.until_count("reflash blocked", 2, "n002")
        assert [node for node, _, _ in loop.bmc.flashed] == ["n001"]
        waits = next(s.detail for s in loop.records.steps if s.outcome == "blocked")
        assert waits == f"waits: GPU_* {NEW} on hgx-8 is tried on n001 first"
        loop.runner.let_go("n001")
        assert (await loop.ended("n001")).ending == "returned"
        assert (await loop.ended("n002")).ending == "returned"
        assert [node for node, _, _ in loop.bmc.flashed] == ["n001", "n002"]
        returned = {node: at for node, _, at in loop.records.returns}
        second = next(s for s in loop.records.steps if s.node == "n002" and s.outcome == "done")
        assert second.treatment is Treatment.REFLASH
        assert returned["n001"] < second.ended_at
        assert (await the_rollout(loop)).stage is RolloutStage.PROVEN


async def test_a_stress_run_waits_for_its_rack_treats_nothing_and_does_not_climb(start):
    def one_per_rack(loop):
        loop.limits = Limits(per_rack={Load.STRESS: 1})

    policy = replace(WHOLE_LADDER, suite_deadline_s=0.4)
    async with start(policy=policy, prepare=one_per_rack) as loop:
        busy = Lease("other", Load.STRESS, "n009", "rack0", "", utc_now() + timedelta(hours=1))
        loop.ledger.leases.held["other"] = busy
        await loop.broken("n001", Treatment.RESET, category=Category.THERMAL)
        # A suite that stresses nothing waits for nobody.
        memory = Category.MEMORY
        loop.fleet.break_part("n002", "gpu0", cured_by={Treatment.RESET}, category=memory)
        await loop.report("n002", category=memory)
        await loop.until_count("diagnose blocked", 2)
        blocked = [s.detail for s in loop.records.steps if s.outcome == "blocked"]
        assert set(blocked) == {"waits: 1 stress runs run in rack rack0"}
        assert loop.fleet.log.count("checks.gpu_state", node="n001") == 0
        assert loop.fleet.done("n001") == []
        assert (await loop.ended("n002")).ending == "returned"
        await loop.ledger.leases.give_back("other")
        view = await loop.ended()
        assert view.ending == "returned"
        assert loop.fleet.done("n001") == [Treatment.RESET]
        assert {(lease.load, lease.node) for lease in loop.ledger.leases.taken} == {
            (Load.STRESS, "n001")
        }
        assert loop.ledger.leases.held == {}


# --- firmware that may not be flashed -------------------------------------------------------------


async def freeze_version(loop):
    await loop.ledger.rollouts.reserve(KEY, node="n009", at=utc_now())
    await loop.ledger.rollouts.settle("n009", proven=False, why="it died", at=utc_now())


def allow_nothing(loop):
    loop.images = ()


def refuse_the_flash(loop):
    refused = Effect(Outcome.PERMANENT, "the image is not signed")
    loop.fleet.script("bmc.flash", FlashStart(refused, sent=True), node="n001")


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (allow_nothing, "nothing to flash"),
        (refuse_the_flash, "the image is not signed"),
        (freeze_version, "is frozen: n009: it died"),
    ],
    ids=["unlisted", "refused", "frozen"],
)
async def test_wrong_firmware_that_may_not_be_flashed_is_for_a_person_and_never_a_swap(
    start, prepare, says
):
    frozen = prepare is freeze_version
    async with start(policy=WHOLE_LADDER, **({} if frozen else {"prepare": prepare})) as loop:
        if frozen:
            await freeze_version(loop)
        await wants_firmware(loop, "n001")
        view = await loop.until_stage("needs_human", waits="a person")
        assert await loop.story() == [*BEGUN, "reflash cannot_fix"]
        assert says in loop.records.steps[-1].detail
        assert loop.tickets.all == {}
        assert loop.bmc.flashed == []
        assert len(loop.pager.delivered) == 1
        assert view.slot == "gpu0"


async def test_on_the_way_up_a_rung_with_nothing_to_flash_is_passed_over(start):
    async with start(policy=WHOLE_LADDER, prepare=allow_nothing) as loop:
        await loop.broken("n001")
        await loop.until_stage("swap", waits="ticket")
        assert (await loop.story())[-2:] == ["prove failed", "reflash failed"]
        assert loop.bmc.flashed == []


async def test_c53_one_part_is_flashed_once(start):
    """The fault that comes back after a flash is met by the next rung, not by the same image."""
    async with start(policy=replace(WHOLE_LADDER, probation_s=0.0)) as loop:
        await wants_firmware(loop, "n001")
        assert (await loop.ended()).ending == "returned"
        loop.bmc.run_version("n001", component="GPU_0", version=OLD)
        await wants_firmware(loop, "n001")
        await loop.until_stage("swap", waits="ticket")
        assert loop.bmc.flashed == [("n001", ("GPU_0", "GPU_1"), NEW)]


def test_the_ladder_of_these_tests_is_the_whole_one():
    assert [str(t) for t in WHOLE_LADDER.available] == [
        *("reset", "reboot", "power_cycle", "reflash", "swap")
    ]
    assert Treatment.POWER_CYCLE not in POLICY.available
