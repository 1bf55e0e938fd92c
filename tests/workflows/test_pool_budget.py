"""The budget as a workflow: messages in, permits out, nothing lost, one page."""

import asyncio
import contextlib

import pytest

from sickbay.contracts.budget import (
    BudgetGrant,
    BudgetSwitch,
    PermitAsk,
    PermitReleased,
    WithholdAsk,
    WithholdEnded,
)
from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.node import Severity, Treatment
from sickbay.errors import Refused, Unreachable
from tests.workflows.conftest import POOL, utc_now

ONE = BudgetPolicy(allowance=1, cap=3)


def ask(node, *, group=None, hard=False, workflow="node-repair/nobody"):
    return PermitAsk(
        repair_id=f"{node}.1",
        workflow_id=workflow,
        node=node,
        group=group or f"g-{node}",
        severity=Severity.MAJOR,
        hard=hard,
        reason="hard_fail:xid_79",
        factors={"rack": "rack1"},
    )


async def test_a_permit_nobody_is_there_to_take_is_free_again(start):
    async with start() as loop:
        await loop.permits.ask(POOL, ask("n001"))

        async def released():
            events = [row.event for row in loop.records.permits]
            return events == ["asked", "released"]

        await loop.until("the permit is undone", released)
        budget = await loop.permits.status(POOL)
        assert (budget.out, budget.spent, budget.queue) == ((), 0, ())


async def test_two_nodes_of_one_group_are_never_out_together(start):
    async with start(count=2, group_size=2) as loop:
        loop.runner.hold("n001")
        await loop.report("n001")
        await loop.until_stage("diagnose", "n001")
        await loop.report("n002")
        await loop.until_queued("n002")
        assert (await loop.permits.status(POOL)).out == ("n001",)
        loop.runner.let_go("n001")
        for node in ("n001", "n002"):
            assert (await loop.ended(node)).ending == "returned"
        closed, opened = [
            [at for at, node, is_open in loop.fleet.gate_moves if is_open is wanted]
            for wanted in (False, True)
        ]
        assert len(closed) >= 2
        assert len(opened) >= 2


async def test_a_spent_window_pages_once_and_a_person_lends(start):
    async with start(count=3, budget=ONE) as loop:
        loop.runner.hold("n001")
        await loop.report("n001")
        await loop.until_stage("diagnose", "n001")
        for node in ("n002", "n003"):
            await loop.report(node)
            await loop.until_queued(node)
        await loop.until("a page", lambda: loop.pager.about("budget of train"))
        assert (await loop.permits.status(POOL)).out == ("n001",)
        with pytest.raises(Refused, match="give your name"):
            await loop.permits.grant(POOL, BudgetGrant(1, by="", reason="x"))
        with pytest.raises(Refused, match="lend between 1 and"):
            await loop.permits.grant(POOL, BudgetGrant(0, by="ann", reason="x"))
        await loop.permits.grant(POOL, BudgetGrant(1, by="ann", reason="a known bad batch"))
        assert (await loop.ended("n002")).ending == "returned"
        assert (await loop.repairs.status("n003")).stage == "permit"
        assert len(loop.pager.about("budget of train")) == 1
        loop.runner.let_go("n001")


async def test_the_window_opens_an_hour_after_the_gate_closed(start):
    async with start(budget=ONE) as loop:
        await loop.report("n001")
        assert (await loop.ended("n001")).ending == "returned"
        await loop.report("n002", hard=False, reason="person:slow")
        await loop.until_queued("n002")
        await loop.jump(loop.budget(), hours=0.9)
        assert (await loop.permits.status(POOL)).queue == ("n002",)
        await loop.jump(loop.budget(), hours=0.2)
        assert (await loop.ended("n002")).ending == "returned"


async def test_a_waiting_hard_fail_is_withheld_until_its_own_gate_closes(start):
    async with start(budget=ONE) as loop:
        await loop.freeze()
        await loop.broken("n001", Treatment.RESET)
        await loop.until("n001 is withheld", lambda: not loop.fleet["n001"].gate_open)
        assert list(loop.fleet["n001"].marks) == ["sickbay:withheld.n001"]
        await loop.unfreeze()
        assert (await loop.ended("n001")).ending == "returned"
        moves = [is_open for _, node, is_open in loop.fleet.gate_moves if node == "n001"]
        assert moves == [False, True]


async def test_frozen_is_frozen_until_somebody_unfreezes(start):
    async with start() as loop:
        switch = BudgetSwitch(by="ann", reason="maintenance")
        with pytest.raises(Refused, match="is not frozen"):
            await loop.permits.unfreeze(POOL, switch)
        await loop.permits.freeze(POOL, switch)
        with pytest.raises(Refused, match="already frozen by ann"):
            await loop.permits.freeze(POOL, switch)
        await loop.report("n001", hard=False, reason="person:slow")
        await loop.until_queued("n001")
        assert (await loop.permits.status(POOL)).out == ()
        await loop.unfreeze()
        assert (await loop.ended("n001")).ending == "returned"


async def test_a_permit_of_an_ended_repair_is_found_and_freed_unless_its_hold_stands(start):
    async with start() as loop:
        loop.runner.hold("n001")
        await loop.report("n001")
        await loop.until_stage("diagnose")
        loop.runner.hold("n002")
        await loop.report("n002")
        await loop.until_stage("diagnose", "n002")
        for node in ("n001", "n002"):
            await loop.repair(node).terminate("a test")
        hold = (await loop.records.holds("n001"))[0]
        await loop.records.lift_hold(hold.id, by="ann", at=utc_now())
        await loop.jump(loop.budget(), hours=1.1)

        async def freed():
            return (await loop.permits.status(POOL)).out == ("n002",)

        await loop.until("the permit of n001 is freed, that of n002 kept", freed)
        for node in ("n001", "n002"):
            loop.runner.let_go(node)


async def test_a_mark_that_ends_and_is_placed_again_does_not_race_itself(start):
    async with start() as loop:
        again = WithholdAsk("n001", "g1", "no_fresh_data", hard=False, factors={})
        await loop.permits.ask_withhold(POOL, again)
        await loop.until("n001 is withheld", lambda: not loop.fleet["n001"].gate_open)
        for _ in range(10):
            ends = loop.permits.end_withhold(POOL, WithholdEnded("n001", "data is back"))
            await asyncio.gather(ends, loop.permits.ask_withhold(POOL, again))
        await loop.permits.ask_withhold(POOL, again)

        async def settled():
            moves = len(loop.fleet.gate_moves)
            withheld = (await loop.permits.status(POOL)).withheld == ("n001",)
            return withheld and moves == len(loop.fleet.gate_moves)

        await loop.until("the budget holds it withheld", settled)
        await loop.until("the gate is closed", lambda: not loop.fleet["n001"].gate_open)
        await loop.permits.end_withhold(POOL, WithholdEnded("n001", "data is back"))
        await loop.until("the gate opens", lambda: loop.fleet["n001"].gate_open)
        assert await loop.records.holds("n001") == ()


async def test_continue_as_new_loses_no_message_and_no_permit(start_small):
    """Every ask is booked once while the budget starts over and over again."""
    async with start_small(count=2) as loop:
        await loop.freeze()
        asks = [ask(f"x{i:03d}") for i in range(60)]
        for some in range(0, 60, 6):
            await asyncio.gather(*(loop.permits.ask(POOL, a) for a in asks[some : some + 6]))
        await asyncio.gather(*(loop.permits.ask(POOL, a) for a in asks[:10]))

        async def all_there():
            queue = (await loop.permits.status(POOL)).queue
            return len(queue) == 60 and set(queue) == {a.node for a in asks}

        await loop.until("all 60 asks are queued once", all_there)
        described = await loop.budget().describe()
        info = described.raw_description.workflow_execution_info
        assert info.first_run_id != described.run_id
        await asyncio.gather(
            *(loop.permits.release(POOL, PermitReleased(a.repair_id)) for a in asks)
        )

        async def empty():
            return (await loop.permits.status(POOL)).queue == ()

        await loop.until("all are released", empty)

        async def unfrozen():
            # An update in flight while a run starts over may be aborted: a person asks again.
            with contextlib.suppress(Unreachable):
                await loop.unfreeze()
            return (await loop.permits.status(POOL)).frozen_by is None

        await loop.until("a person is answered again", unfrozen)


async def test_a_repair_keeps_its_name_and_its_place_over_continue_as_new(start_small):
    async with start_small(count=1) as loop:
        handle = await loop.broken("n001", Treatment.REBOOT)
        view = await loop.ended()
        described = await handle.describe()
        first = described.raw_description.workflow_execution_info.first_run_id
        assert first != described.run_id
        assert view.repair_id == f"n001.{first.replace('-', '')[:12]}"
        assert await loop.story() == [
            "permit granted",
            "drain drained",
            "diagnose confirmed",
            "reset done",
            "prove failed",
            "reboot done",
            "prove passed",
            "prove passed",
            "return returned",
        ]
        operations = [a.operation_id for a in loop.fleet.acts]
        assert len(set(operations)) == len(operations) == 3
        assert {s.repair_id for s in loop.records.steps} == {view.repair_id}

        async def given_back():
            return (await loop.permits.status(POOL)).out == ()

        await loop.until("the permit is given back", given_back)


async def test_an_order_waits_safely_over_continue_as_new(start_small):
    async with start_small(count=1) as loop:
        await loop.broken("n001", Treatment.SWAP, treatment=Treatment.SWAP)
        await loop.until_stage("swap", waits="ticket")
        await loop.order("pause")
        await loop.order("resume")
        await loop.order("release")
        assert (await loop.ended()).ending == "released_by_person"
