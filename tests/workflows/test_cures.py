"""Repairs from the finding to the proven return, one per way of being cured."""

import asyncio
import re
from collections import Counter
from dataclasses import replace

from temporalio.api.enums.v1 import EventType

from sickbay.contracts.names import CONTROL_QUEUE
from sickbay.domain.gate import mark_of
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Category, Severity, Treatment
from tests.workflows.conftest import POLICY, POOL, WITHIN_S, utc_now

MOST_EVENTS = 80
MOST_REMOTE = 7
RESET_CURED = [
    "permit granted",
    "drain drained",
    "diagnose confirmed",
    "reset done",
    "prove passed",
    "prove passed",
    "return returned",
]


async def test_a_reset_cures_and_two_passes_return_the_node(start, capsys):
    async with start() as loop:
        handle = await loop.broken("n001", Treatment.RESET)
        # Not polled: a query that meets a local activity adds a workflow task to the history.
        await asyncio.wait_for(handle.result(), WITHIN_S)
        view = await loop.repairs.status("n001")
        assert (view.ending, view.passes, view.passes_owed) == ("returned", 2, 2)
        assert await loop.story() == RESET_CURED
        assert loop.fleet.done() == [Treatment.RESET]
        assert loop.fleet["n001"].gate_open
        assert [(node, repair) for node, repair, _ in loop.records.returns] == [
            ("n001", view.repair_id)
        ]
        assert await loop.records.holds("n001") == ()
        assert loop.records.repairs[view.repair_id].cured_by is Treatment.RESET

        async def given_back():
            return (await loop.permits.status(POOL)).out == ()

        await loop.until("the permit is given back", given_back)
        budget = await loop.permits.status(POOL)
        assert (budget.granted, budget.spent) == (1, 1)

        history = await handle.fetch_history()
        size = sum(event.ByteSize() for event in history.events)
        kinds = Counter(event.event_type for event in history.events)
        remote = kinds[EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
        with capsys.disabled():
            print(f"\nreset-cured: {len(history.events)} events, {size} bytes, {remote} remote")
        assert len(history.events) < MOST_EVENTS
        assert remote <= MOST_REMOTE


async def test_the_gate_closes_before_the_first_check_and_opens_after_the_last(start):
    async with start() as loop:
        await loop.broken("n001", Treatment.RESET)
        await loop.ended()
        verbs = [v for v in loop.fleet.log.verbs(node="n001") if v != "scheduler.drain_state"]
        assert verbs[0] == "scheduler.close_gate"
        # After the opening only the ledger's own look at the marks follows.
        assert verbs[-2:] == ["scheduler.open_gate", "scheduler.marks"]
        marks = {c.detail for c in loop.fleet.log.calls if c.verb.endswith("_gate")}
        assert marks == {mark_of((await loop.repairs.status("n001")).repair_id)}


async def test_what_no_check_confirms_owes_one_pass_and_gets_no_treatment(start):
    async with start() as loop:
        await loop.report("n001")
        view = await loop.ended()
        assert (view.ending, view.passes_owed) == ("returned", 1)
        assert await loop.story() == [
            "permit granted",
            "drain drained",
            "diagnose not_confirmed",
            "prove passed",
            "return returned",
        ]
        assert loop.fleet.done() == []
        assert loop.records.repairs[view.repair_id].confirmed is False


async def test_after_a_reboot_the_second_pass_runs_on_a_fresh_boot(start):
    async with start() as loop:
        await loop.broken("n001", Treatment.REBOOT, treatment=Treatment.REBOOT)
        view = await loop.ended()
        assert view.ending == "returned"
        assert loop.fleet.done() == [Treatment.REBOOT, Treatment.REBOOT]
        assert (await loop.story())[3:6] == ["reboot done", "prove passed", "prove passed"]
        proofs = [s for s in loop.records.steps if s.stage == "prove"]
        boots = []
        for proof in proofs:
            raw = [(await loop.evidence.get(digest)).decode() for digest in proof.evidence]
            boots.append({re.findall(r"boot-\d+", text)[0] for text in raw})
        assert boots == [{"boot-2"}, {"boot-3"}]


async def test_a_failing_proof_climbs_one_rung(start):
    async with start() as loop:
        await loop.broken("n001", Treatment.REBOOT)
        assert (await loop.ended()).ending == "returned"
        assert (await loop.story())[3:] == [
            "reset done",
            "prove failed",
            "reboot done",
            "prove passed",
            "prove passed",
            "return returned",
        ]


async def test_what_failed_to_hold_last_week_is_not_tried_a_third_time(start):
    """Attempts count over repairs: after two resets that did not hold, the third is a reboot."""
    async with start(policy=replace(POLICY, probation_s=0.0)) as loop:
        for _ in range(3):
            await loop.broken("n001", Treatment.RESET, Treatment.REBOOT)
            assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done() == [
            Treatment.RESET,
            Treatment.RESET,
            Treatment.REBOOT,
            Treatment.REBOOT,
        ]


async def test_a_fault_in_probation_starts_beyond_the_last_rung(start):
    async with start() as loop:
        for _ in range(2):
            await loop.broken("n001", Treatment.RESET, Treatment.REBOOT)
            assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done()[:2] == [Treatment.RESET, Treatment.REBOOT]


async def test_a_critical_finding_evicts_and_a_minor_one_waits_for_the_job(start):
    async with start() as loop:
        loop.fleet["n001"].jobs.append("job7")
        loop.fleet["n002"].jobs.append("job8")
        await loop.broken("n001", Treatment.RESET, severity=Severity.CRITICAL)
        await loop.broken("n002", Treatment.RESET, severity=Severity.WARNING)
        assert (await loop.ended("n001")).ending == "returned"
        await loop.until_stage("drain", "n002")
        assert loop.fleet["n002"].jobs == ["job8"]
        loop.fleet["n002"].jobs.clear()
        assert (await loop.ended("n002")).ending == "returned"
        assert loop.fleet.log.count("scheduler.evict", node="n002") == 0


async def test_findings_before_the_first_task_are_one_repair(start):
    async with start() as loop:
        loop.fleet.break_part("n001", "gpu0", cured_by={Treatment.RESET})
        for number in range(5):
            await loop.report("n001", id=f"same-{number % 2}")
        assert (await loop.ended()).ending == "returned"
        assert len(loop.records.repairs) == 1
        assert loop.fleet.done() == [Treatment.RESET]


async def test_a_finding_older_than_the_last_return_is_dropped(start):
    async with start() as loop:
        before = utc_now()
        await loop.records.returned("n001", repair_id="n001.earlier", at=utc_now())
        await loop.report("n001", observed_at=before)
        assert (await loop.ended()).ending == "stale"
        assert loop.fleet.log.calls == []
        assert loop.records.permits == []


async def test_a_soft_reason_that_is_gone_withdraws_while_a_hard_one_keeps_its_place(start):
    async with start() as loop:
        await loop.freeze()
        await loop.report("n001", reason="min:memory", hard=False, category=Category.MEMORY)
        await loop.report("n002")
        for node in ("n001", "n002"):
            await loop.until_queued(node)
            well = Health(0.95, 1.0, Category.MEMORY, "min:memory")
            await loop.records.save_health(
                node, health=well, standing=Standing.HEALTHY, at=utc_now(), rules="1"
            )
        assert (await loop.ended("n001")).ending == "withdrawn"
        await loop.until_stage("permit", "n002")
        assert (await loop.permits.status(POOL)).queue == ("n002",)
        assert loop.fleet.log.count("scheduler.close_gate", node="n001") == 0


async def test_unknown_health_withdraws_nothing(start):
    async with start(policy=replace(POLICY, permit_recheck_s=900.0)) as loop:
        await loop.freeze()
        await loop.report("n001", reason="min:memory", hard=False)
        await loop.until_queued("n001")
        unknown = Health(None, 0.0, None, "no_fresh_data")
        await loop.records.save_health(
            "n001", health=unknown, standing=Standing.UNKNOWN, at=utc_now(), rules="1"
        )
        await loop.jump(loop.repair(), hours=1)
        assert (await loop.until_stage("permit")).ending is None


async def test_a_hard_fail_newer_than_the_treatment_counts_against_the_proof(start):
    async with start() as loop:
        loop.control["n001"].hold()
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("reset")
        loop.runner.hold("n001")
        loop.control["n001"].let_go()
        await loop.until_stage("prove")
        await loop.report("n001", id="again", reason="hard_fail:xid_48")
        loop.runner.let_go("n001")
        assert (await loop.ended()).ending == "returned"
        story = await loop.story()
        assert story[3:7] == ["reset done", "prove failed", "reboot done", "prove passed"]
        failed = next(s for s in loop.records.steps if s.outcome == "failed")
        assert "hard_fail:xid_48 came since" in failed.detail


async def test_a_hard_fail_older_than_the_treatment_is_merged(start):
    async with start() as loop:
        early = utc_now()
        loop.control["n001"].hold()
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("reset")
        await loop.report("n001", id="late mail", observed_at=early, reason="hard_fail:xid_48")
        loop.control["n001"].let_go()
        assert (await loop.ended()).ending == "returned"
        assert await loop.story() == RESET_CURED


async def test_a_failure_only_dcgm_sees_opens_no_ticket(start):
    async with start() as loop:
        loop.fleet.break_part(
            "n001", "gpu0", cured_by=(), first_rung=Treatment.SWAP, seen_by={"dcgm_diag"}
        )
        await loop.report("n001", source="dcgm", treatment=Treatment.SWAP)
        await loop.until_stage("needs_human")
        assert loop.tickets.all == {}
        assert (await loop.story()).count("diagnose confirmed") == 2


async def test_an_answer_too_large_for_temporal_is_not_asked_for_for_ever(start):
    async with start() as loop:
        parts = loop.fleet["n001"].parts
        parts[0] = replace(parts[0], uuid="x" * 3_000_000)
        await loop.report("n001")
        await loop.until_stage("needs_human")
        assert await loop.story() == [
            "permit granted",
            "drain drained",
            "diagnose inconclusive",
            "diagnose inconclusive",
            "diagnose inconclusive",
        ]
        assert loop.fleet.log.count("checks.gpu_state") == POLICY.inconclusive_limit


async def test_a_node_not_on_record_fails_its_repair_with_a_clear_error(start):
    async with start() as loop:
        handle = await loop.report("n999")

        async def failed():
            return (await handle.describe()).status.name == "FAILED"

        await loop.until("the repair fails", failed)
        assert loop.fleet.log.calls == []


async def test_the_list_and_the_details_show_where_a_repair_is(start):
    async with start() as loop:
        await loop.freeze()
        handle = await loop.report("n001")
        await loop.until_stage("permit", waits="permit")

        async def listed():
            query = "SickbayStage = 'permit' AND SickbayNode = 'n001' AND SickbayPool = 'train'"
            return [row.id async for row in loop.client.list_workflows(query)] == [handle.id]

        await loop.until("the repair is listed", listed)
        described = await handle.describe()
        assert described.task_queue == CONTROL_QUEUE
        details = await loop.details(handle)
        assert "permit" in details
        assert "hard_fail:xid_79" in details
