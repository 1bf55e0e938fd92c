"""Observe, approve, stop: read where the act happens, repairs in flight included."""

from dataclasses import replace

import pytest

from sickbay.contracts.repair import OperatorNote
from sickbay.contracts.steps import Action, Permission
from sickbay.domain.node import Severity, Treatment
from sickbay.errors import Refused
from tests.workflows.conftest import POLICY, POOL


async def test_in_observe_mode_the_outside_is_never_called(start):
    async with start(mode=Permission.OBSERVE) as loop:
        loop.fleet["n001"].jobs.append("job7")
        await loop.broken("n001", Treatment.RESET, severity=Severity.CRITICAL)
        view = await loop.ended()
        assert view.ending == "observed"
        assert loop.fleet.log.calls == []
        assert loop.fleet["n001"].jobs == ["job7"]
        assert loop.records.every_hold == []
        (row,) = loop.safety.withheld
        assert (row.node, row.action, row.why) == ("n001", Action.CLOSE_GATE, "observe")

        async def given_back():
            budget = await loop.permits.status(POOL)
            return budget.out == () and budget.spent == 0

        await loop.until("the permit is given back uncharged", given_back)


async def test_observing_one_treatment_stops_the_repair_at_it(start):
    async with start() as loop:
        loop.safety.set(Action.RESET, Permission.OBSERVE)
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("needs_human")
        assert loop.fleet.done() == []
        assert [w.action for w in loop.safety.withheld] == [Action.RESET]
        assert len(loop.pager.about("needs a human")) == 1


async def test_each_act_of_approve_mode_waits_for_its_own_approval(start):
    async with start() as loop:
        loop.safety.set(Action.CLOSE_GATE, Permission.APPROVE)
        loop.safety.set(Action.RESET, Permission.APPROVE)
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("permit", waits="approval of close_gate")
        assert loop.fleet["n001"].gate_open
        with pytest.raises(Refused, match="give your name"):
            await loop.send("approve", OperatorNote(by=""))
        await loop.send("approve", OperatorNote(by="ann"))
        await loop.until_stage("reset", waits="approval of reset")
        assert loop.fleet.done() == []
        assert len(loop.pager.about("waits for approval")) == 2
        await loop.send("approve", OperatorNote(by="bob"))
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done() == [Treatment.RESET]


async def test_an_approval_that_does_not_come_is_asked_for_again_each_reminder(start):
    async with start() as loop:
        loop.safety.set(Action.RESET, Permission.APPROVE)
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("reset", waits="approval of reset")
        await loop.jump(loop.repair(), hours=9)
        await loop.until("a reminder", lambda: len(loop.pager.about("waits for approval")) == 2)
        assert loop.fleet.done() == []


async def test_a_stop_holds_a_destructive_step_of_a_repair_in_flight_until_go(start):
    async with start() as loop:
        loop.runner.hold("n001")
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("diagnose")
        loop.safety.stop(POOL)
        loop.runner.let_go("n001")
        await loop.until_stage("reset", waits="sickbay go")
        asked = loop.safety.asked.count(Action.RESET)
        again = lambda: loop.safety.asked.count(Action.RESET) > asked + 1  # noqa: E731
        await loop.until("the switch is read again", again)
        assert loop.fleet.done() == []
        loop.safety.go(POOL)
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done() == [Treatment.RESET]


async def test_a_stop_evicts_nobody(start):
    async with start() as loop:
        loop.safety.set(Action.EVICT, Permission.STOPPED)
        loop.fleet["n001"].jobs.append("job7")
        await loop.broken("n001", Treatment.RESET, severity=Severity.CRITICAL)
        await loop.until_stage("drain", waits="sickbay go")
        assert loop.fleet["n001"].jobs == ["job7"]
        loop.safety.set(Action.EVICT, Permission.ACT)
        assert (await loop.ended()).ending == "returned"


async def test_a_stop_does_not_keep_a_proven_node_from_returning(start):
    async with start() as loop:
        await loop.report("n001")
        loop.runner.hold("n001")
        await loop.until_stage("diagnose")
        loop.safety.set(Action.RESET, Permission.STOPPED)
        loop.safety.set(Action.EVICT, Permission.STOPPED)
        loop.runner.let_go("n001")
        assert (await loop.ended()).ending == "returned"


async def test_a_withheld_ticket_is_no_ticket(start):
    async with start(policy=replace(POLICY)) as loop:
        loop.safety.set(Action.TICKET, Permission.OBSERVE)
        await loop.broken("n001", Treatment.SWAP, treatment=Treatment.SWAP)
        await loop.until_stage("needs_human")
        assert loop.tickets.all == {}
        assert "tickets.open" not in loop.fleet.log.verbs()


async def test_an_order_ends_the_wait_for_an_approval(start):
    async with start() as loop:
        loop.safety.set(Action.RESET, Permission.APPROVE)
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("reset", waits="approval of reset")
        await loop.order("release")
        assert (await loop.ended()).ending == "released_by_person"
        assert loop.fleet.done() == []
