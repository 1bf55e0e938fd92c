"""C21: the reset that causes the event that causes the reset; attempts are bounded and durable."""

import contextlib
from dataclasses import replace

import pytest

from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.node import Treatment
from tests.workflows.conftest import POLICY, WHOLE_LADDER

# A return must not answer by itself: probation would skip the reset already the second time.
TWICE = replace(WHOLE_LADDER, probation_s=0.0, attempts_per_rung=2)
MANY = BudgetPolicy(allowance=20, cap=20)
BOTH = (Treatment.RESET, Treatment.REBOOT)


async def test_c21_after_two_resets_the_third_fault_is_met_by_a_reboot(start_small):
    """Each time another control worker, and histories so short that every run is begun anew."""
    rolled_over = []
    async with start_small(policy=TWICE, control=False) as loop:
        for _ in range(3):
            async with loop.control_worker():
                handle = await loop.broken("n001", *BOTH)
                first = (await handle.describe()).run_id
                assert (await loop.ended()).ending == "returned"
                rolled_over.append((await loop.repair().describe()).run_id != first)
        assert loop.fleet.done()[:3] == [Treatment.RESET, Treatment.RESET, Treatment.REBOOT]
        assert loop.fleet.done().count(Treatment.RESET) == 2
    assert any(rolled_over), "no history was begun anew: the test did not test it"


async def test_c21_a_worker_that_dies_between_two_attempts_forgets_none(start):
    """Inside one repair: the control worker is exchanged while the node is on each rung."""
    async with start(policy=WHOLE_LADDER, control=False) as loop:
        await loop.broken("n001")
        for rung in ("reset", "reboot"):
            loop.control["n001"].hold()
            async with loop.control_worker():
                await loop.until_stage(rung)
            loop.control["n001"].let_go()
        async with loop.control_worker():
            await loop.until_stage("swap", waits="ticket")
        done = loop.fleet.done()
        assert [done.count(t) for t in (Treatment.RESET, Treatment.REBOOT)] == [1, 1]
        assert done.count(Treatment.POWER_CYCLE) == 2, "its own, and the one that activates"
        assert len(loop.bmc.flashed) == 1


async def test_c21_what_is_reported_again_during_the_act_resets_nothing_a_second_time(start):
    """The monitor forgets with the reset and reports every failing check anew, again and again."""
    async with start(policy=WHOLE_LADDER) as loop:
        loop.control["n001"].hold()
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("reset")
        for number in range(20):
            await loop.report("n001", id=f"echo-{number}", reason="hard_fail:xid_79")
        loop.control["n001"].let_go()
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done() == [Treatment.RESET]


@pytest.mark.parametrize("available", [(Treatment.RESET,), BOTH], ids=["reset", "reset+reboot"])
async def test_c21_a_spent_ladder_pages_a_person_once_and_keeps_the_node(start, available):
    async with start(policy=replace(POLICY, available=available)) as loop:
        await loop.broken("n001")
        await loop.until_stage("needs_human", waits="a person")
        assert loop.fleet.done() == list(available)
        for number in range(5):
            await loop.report("n001", id=f"again-{number}")
        view = await loop.until_stage("needs_human", waits="a person")
        assert len(loop.pager.delivered) == 1
        assert loop.pager.about("n001 needs a human")
        assert not loop.fleet["n001"].gate_open
        assert loop.fleet.done() == list(available)
        assert loop.records.repairs[view.repair_id].stage == "needs_human"


async def test_c21_another_part_and_another_category_have_their_own_count(start):
    async with start(policy=TWICE, budget=MANY) as loop:
        for slot in ("gpu0", "gpu0", "gpu1"):
            await loop.broken("n001", *BOTH, slot=slot)
            assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done() == [Treatment.RESET] * 3
        await loop.broken("n001", *BOTH, slot="gpu0")
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done()[3] is Treatment.REBOOT


async def test_c21_a_reboot_does_not_begin_the_count_anew_and_a_new_part_does(start):
    async with start(policy=TWICE, budget=MANY) as loop:
        for _ in range(3):
            await loop.broken("n001", *BOTH)
            assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done()[2] is Treatment.REBOOT
        before = len(loop.fleet.done())
        await loop.broken("n001", *BOTH)
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done()[before] is Treatment.REBOOT, "a boot gives no reset back"
        new = loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        await loop.records.replace_part("n001", slot="gpu0", part=new, at=loop.fleet.now())
        before = len(loop.fleet.done())
        await loop.broken("n001", *BOTH)
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done()[before] is Treatment.RESET


async def test_c21_a_control_worker_that_is_away_costs_no_attempt(start):
    async with start(policy=TWICE, control=False) as loop:
        await loop.broken("n001", *BOTH)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(loop.control_worker())
            assert (await loop.ended()).ending == "returned"
        attempts = (
            await loop.records.node_context(
                "n001", now=loop.fleet.now(), memory_s=3600.0, probation_s=0.0
            )
        ).attempts
        assert [(a.treatment, a.count) for a in attempts] == [(Treatment.RESET, 1)]
