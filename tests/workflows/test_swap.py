"""The swap: one ticket, a technician who is believed only when the machine agrees."""

from dataclasses import replace

import pytest

from sickbay.contracts.repair import NeedsTime, OperatorNote, PartReplaced, Skip, Work, WorkDone
from sickbay.domain.node import Treatment
from sickbay.errors import Refused
from tests.workflows.conftest import POLICY


async def waiting_for_the_technician(loop):
    """A repair that waits for gpu0 of n001 to be swapped; its ticket."""
    await loop.broken("n001", Treatment.SWAP, treatment=Treatment.SWAP)
    await loop.until_stage("swap", waits="ticket")
    (ticket,) = loop.tickets.all.values()
    return ticket


def swapped(slot="gpu0", serial="NEW1"):
    return PartReplaced(slot=slot, serial=serial, by="tom")


async def test_a_swap_is_proven_twice_and_starts_the_part_anew(start):
    async with start(policy=replace(POLICY, proof_passes=1)) as loop:
        ticket = await waiting_for_the_technician(loop)
        assert (ticket.draft.slot, ticket.draft.part_serial) == ("gpu0", "S0010")
        new = loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        await loop.send("part_replaced", swapped())
        view = await loop.ended()
        assert (view.ending, view.passes) == ("returned", 2)
        assert (await loop.story())[3:] == [
            "swap replaced",
            "prove passed",
            "prove passed",
            "return returned",
        ]
        assert not ticket.is_open
        assert loop.records.on_record["n001"].part_in("gpu0") == new
        context = await loop.records.node_context(
            "n001", now=loop.records.returns[0][2], memory_s=1e6, probation_s=0
        )
        # The swap is the only thing ever done to the part that is there now.
        assert {a.treatment for a in context.attempts if a.part == new.uuid} <= {Treatment.SWAP}


async def test_a_report_that_cannot_be_true_is_refused_with_what_is_wanted(start):
    async with start() as loop:
        ticket = await waiting_for_the_technician(loop)
        for report, sentence in (
            (swapped(serial="S0010"), "is the part that was in gpu0 before"),
            (swapped(serial="  "), "give the serial of the new part"),
            (swapped(serial="S0011"), "sits in gpu1 of this node"),
            (swapped(slot="gpu9"), "has no slot 'gpu9': its slots are gpu0, gpu1"),
        ):
            with pytest.raises(Refused, match=sentence):
                await loop.send("part_replaced", report)
        assert (await loop.until_stage("swap")).serial == "S0010"
        assert ticket.is_open


async def test_the_same_part_back_keeps_the_ticket_open_until_it_is_true(start):
    async with start() as loop:
        ticket = await waiting_for_the_technician(loop)
        await loop.send("part_replaced", swapped())
        still = "the machine still shows S0010 in gpu0: the ticket stays open"
        await loop.until("the ticket says so", lambda: still in ticket.lines)
        await loop.until_stage("swap")
        assert ticket.is_open
        assert loop.fleet.log.count("scheduler.open_gate") == 0

        loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        await loop.until_taken("part_replaced", swapped())
        assert (await loop.ended()).ending == "returned"
        assert not ticket.is_open


async def test_a_second_report_is_refused_while_the_first_is_checked(start):
    async with start() as loop:
        await waiting_for_the_technician(loop)
        loop.control["n001"].hold_facts()
        loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        await loop.send("part_replaced", swapped())
        with pytest.raises(Refused, match="is being checked"):
            await loop.send("part_replaced", swapped(serial="NEW2"))
        loop.control["n001"].let_go()
        assert (await loop.ended()).ending == "returned"
        assert loop.records.on_record["n001"].part_in("gpu0").serial == "NEW1"


async def test_a_report_is_refused_before_the_swap_and_after_the_end(start):
    async with start() as loop:
        await loop.freeze()
        await loop.report("n001")
        await loop.until_stage("permit")
        with pytest.raises(Refused, match="waits for no technician: its repair is at permit"):
            await loop.send("part_replaced", swapped())
        await loop.unfreeze()
        await loop.ended()
        with pytest.raises(Refused, match="has ended"):
            await loop.send("part_replaced", swapped())
        with pytest.raises(Refused, match="does not run"):
            await loop.send("part_replaced", swapped(), "n002")


async def test_a_slip_of_the_pen_is_noted_but_the_machine_decides(start):
    async with start() as loop:
        ticket = await waiting_for_the_technician(loop)
        loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        await loop.send("part_replaced", swapped(serial="NEW7"))
        await loop.ended()
        assert any("replaced by NEW1 (reported as NEW7), by tom" in line for line in ticket.lines)


async def test_work_that_changes_no_serial_keeps_the_part_and_owes_the_proof(start):
    async with start() as loop:
        ticket = await waiting_for_the_technician(loop)
        loop.fleet.mend("n001")
        await loop.send("work_done", WorkDone(Work.RESEATED, by="tom", slot="gpu0"))
        view = await loop.ended()
        assert (view.ending, view.serial, view.passes) == ("returned", "S0010", 2)
        assert "swap work_done" in await loop.story()
        assert "reseated by tom" in ticket.lines
        step = next(s for s in loop.records.steps if s.outcome == "work_done")
        assert (step.treatment, step.part) == (Treatment.SWAP, "GPU-n001-0")


async def test_work_that_did_not_help_asks_for_a_swap_again_and_then_for_a_person(start):
    async with start() as loop:
        ticket = await waiting_for_the_technician(loop)
        for attempt in (1, 2):
            await loop.until_taken("work_done", WorkDone(Work.CLEANED, by="tom"))
            await loop.until_count("prove failed", attempt)
        await loop.until_stage("needs_human")
        assert len(loop.tickets.all) == 1
        assert ticket.is_open
        assert loop.fleet.log.count("scheduler.open_gate") == 0


async def test_who_cannot_fix_it_hands_it_to_a_person_and_resume_goes_back_to_the_swap(start):
    async with start() as loop:
        await waiting_for_the_technician(loop)
        with pytest.raises(Refused, match="give a reason"):
            await loop.send("cannot_fix", OperatorNote(by="tom"))
        await loop.send("cannot_fix", OperatorNote(by="tom", reason="no spare"))
        await loop.until_stage("needs_human", waits="a person")
        (page,) = loop.pager.about("needs a human")
        assert "no spare" in page.detail
        await loop.order("resume")
        await loop.until_stage("swap", waits="ticket")
        assert len(loop.tickets.all) == 1


async def test_reminders_wait_for_the_time_the_technician_asked_for(start):
    async with start() as loop:
        ticket = await waiting_for_the_technician(loop)
        reminder = "reminder: this part still waits for a technician"
        with pytest.raises(Refused, match="hours must be more than 0"):
            await loop.send("needs_time", NeedsTime(hours=0, by="tom"))
        await loop.send("needs_time", NeedsTime(hours=24, by="tom"))
        await loop.jump(loop.repair(), hours=12)
        await loop.until_stage("swap")
        assert reminder not in ticket.lines
        await loop.jump(loop.repair(), hours=13)
        await loop.until("the reminder", lambda: reminder in ticket.lines)
        assert loop.pager.about("waits too long") == []


async def test_a_swap_that_takes_days_is_escalated_once(start):
    async with start() as loop:
        await waiting_for_the_technician(loop)
        await loop.jump(loop.repair(), hours=5 * 24)
        await loop.until("the page", lambda: loop.pager.about("waits too long"))
        await loop.jump(loop.repair(), hours=24)
        await loop.until_stage("swap")
        assert len(loop.pager.about("waits too long")) == 1


async def test_a_machine_that_cannot_be_asked_proves_no_swap(start):
    policy = replace(POLICY, node_queue_timeout_s=0.5)
    async with start(policy=policy, silent=("n001",)) as loop:
        worker = loop.node_worker("n001")
        async with worker:
            ticket = await waiting_for_the_technician(loop)
        loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        await loop.send("part_replaced", swapped())
        await loop.until("a page", lambda: loop.pager.about("cannot be verified"))
        await loop.until_stage("swap")
        assert ticket.is_open
        async with loop.node_worker("n001"):
            await loop.until_taken("part_replaced", swapped())
            assert (await loop.ended()).ending == "returned"


async def test_a_machine_that_answers_with_errors_only_holds_the_swap_no_longer_than_it_may(start):
    policy = replace(POLICY, node_queue_timeout_s=1.0, heartbeat_timeout_s=1.0)
    async with start(policy=policy) as loop:
        ticket = await waiting_for_the_technician(loop)
        loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        loop.fleet["n001"].up = False
        await loop.send("part_replaced", swapped())
        await loop.until("a page", lambda: loop.pager.about("cannot be verified"))
        assert ticket.is_open
        loop.fleet["n001"].up = True
        await loop.until_taken("part_replaced", swapped())
        assert (await loop.ended()).ending == "returned"


async def test_a_part_that_the_machine_does_not_see_is_paged_and_the_ticket_stays_open(start):
    async with start() as loop:
        ticket = await waiting_for_the_technician(loop)
        gone = loop.fleet["n001"].parts.pop(0)
        await loop.send("part_replaced", swapped())
        await loop.until("a page", lambda: loop.pager.about("still shows no part in gpu0"))
        assert ticket.is_open
        loop.fleet["n001"].parts.insert(0, gone)
        loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        await loop.until_taken("part_replaced", swapped())
        assert (await loop.ended()).ending == "returned"


async def test_a_part_replaced_between_two_passes_begins_the_proof_anew(start):
    async with start() as loop:
        await waiting_for_the_technician(loop)
        loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
        loop.runner.hold("n001")
        await loop.send("part_replaced", swapped())
        await loop.until_stage("prove")
        await loop.order("pause")
        loop.runner.let_go("n001")
        await loop.until_count("prove passed", 1)
        loop.fleet.swap_part("n001", "gpu1", serial="NEW2")
        await loop.order("resume")
        assert (await loop.ended()).ending == "returned"
        assert (await loop.story())[4:] == [
            "prove passed",
            "prove inconclusive",
            "prove passed",
            "prove passed",
            "return returned",
        ]


async def test_a_pass_on_a_node_that_cannot_name_its_parts_counts_for_nothing(start):
    async with start() as loop:
        await loop.broken("n001", Treatment.RESET)
        loop.runner.hold("n001")
        await loop.until_stage("diagnose")
        await loop.order("pause")
        loop.runner.let_go("n001")
        await loop.until_count("diagnose confirmed", 1)
        loop.fleet.mend("n001")
        parts, loop.fleet["n001"].parts[:] = [*loop.fleet["n001"].parts], []
        await loop.send("skip", Skip(stage="prove", by="ann", reason="a test"))
        await loop.until_count("prove inconclusive", 1)
        loop.fleet["n001"].parts[:] = parts
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.log.count("scheduler.open_gate") == 1
