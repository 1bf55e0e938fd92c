"""What people may order, and what no order can do."""

import asyncio

import pytest

from sickbay.contracts.repair import OperatorNote, Skip
from sickbay.domain.node import Treatment
from sickbay.errors import Refused
from tests.workflows.conftest import POOL


async def paused_before_the_reset(loop):
    """A repair that is paused with the reset as its next stage."""
    loop.runner.hold("n001")
    await loop.broken("n001", Treatment.RESET)
    await loop.until_stage("diagnose")
    await loop.order("pause")
    loop.runner.let_go("n001")
    await loop.until_stage("reset")


async def test_a_pause_lets_the_stage_end_and_begins_no_other(start):
    async with start() as loop:
        await paused_before_the_reset(loop)
        with pytest.raises(Refused, match="already paused by ann"):
            await loop.order("pause")
        # A whole other repair runs meanwhile: the paused one had every chance to act.
        await loop.report("n002")
        assert (await loop.ended("n002")).ending == "returned"
        assert loop.fleet.done("n001") == []
        assert (await loop.repairs.status("n001")).paused_by == "ann"
        await loop.order("resume")
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.done("n001") == [Treatment.RESET]


async def test_an_abort_while_paused_acts_no_more(start):
    """A destructive stage is uninterrupted once begun, so it must not begin."""
    async with start() as loop:
        await paused_before_the_reset(loop)
        await loop.order("abort")
        assert (await loop.ended()).ending == "aborted"
        assert loop.fleet.done() == []


async def test_an_abort_keeps_the_gate_closed_and_the_permit(start):
    async with start() as loop:
        loop.runner.hold("n001")
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("diagnose")
        await loop.order("abort")
        view = await loop.ended()
        loop.runner.let_go("n001")
        assert view.ending == "aborted"
        (hold,) = await loop.records.holds("n001")
        assert hold.owner == "ann"
        assert "because" in hold.reason
        assert not loop.fleet["n001"].gate_open
        (hold,) = await loop.records.holds("n001")
        assert hold.repair_id == view.repair_id
        assert (await loop.permits.status(POOL)).out == ("n001",)
        assert loop.records.repairs[view.repair_id].ended_by == "ann"
        assert loop.records.returns == []
        assert loop.records.steps[-1].outcome == "abort"


async def aborted_at_diagnose(loop) -> None:
    loop.runner.hold("n001")
    await loop.broken("n001", Treatment.RESET)
    await loop.until_stage("diagnose")
    await loop.order("abort")
    assert (await loop.ended()).ending == "aborted"
    loop.runner.let_go("n001")


async def test_a_new_repair_takes_over_what_an_abort_left(start):
    async with start() as loop:
        await aborted_at_diagnose(loop)
        await loop.report("n001", id="again", source="person", hard=False, reason="requested")
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet["n001"].gate_open
        assert await loop.records.holds("n001") == ()
        assert (await loop.permits.status(POOL)).out == ()


async def test_a_release_ends_the_hold_an_earlier_abort_left(start):
    async with start() as loop:
        await aborted_at_diagnose(loop)
        await loop.freeze()
        await loop.report("n001", id="again", source="person", hard=False, reason="requested")
        await loop.until_stage("permit", waits="permit")
        await loop.order("release")
        assert (await loop.ended()).ending == "released_by_person"
        assert loop.fleet["n001"].gate_open
        assert await loop.records.holds("n001") == ()


async def test_an_abort_before_the_gate_closed_gives_the_place_in_the_queue_back(start):
    async with start() as loop:
        await loop.freeze()
        await loop.report("n001")
        await loop.until_queued("n001")
        await loop.until("n001 is withheld", lambda: not loop.fleet["n001"].gate_open)
        await loop.order("abort")
        assert (await loop.ended()).ending == "aborted"

        async def forgotten():
            budget = await loop.permits.status(POOL)
            return budget.queue == () and budget.withheld == ()

        await loop.until("the ask is forgotten", forgotten)
        await loop.until("the gate is open again", lambda: loop.fleet["n001"].gate_open)


async def test_a_destructive_act_that_began_is_waited_for(start):
    async with start() as loop:
        loop.control["n001"].hold()
        await loop.broken("n001", Treatment.RESET)
        await loop.until("the reset", loop.fleet.done)
        await loop.order("abort")
        with pytest.raises(Refused, match="abort by ann is being carried out"):
            await loop.order("release")
        assert (await loop.repairs.status("n001")).ending is None
        loop.control["n001"].let_go()
        assert (await loop.ended()).ending == "aborted"
        assert "reset done" in await loop.story()


async def test_a_release_by_a_person_is_no_return(start):
    async with start() as loop:
        loop.runner.hold("n001")
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("diagnose")
        loop.fleet.mark("n001", "kernel update", reason="by ops")
        await loop.order("release")
        view = await loop.ended()
        loop.runner.let_go("n001")
        assert view.ending == "released_by_person"
        assert loop.records.returns == []
        assert loop.fleet["n001"].marks == {"kernel update": "by ops"}
        (hold,) = loop.records.every_hold
        assert hold.lifted_by == "ann"
        assert loop.records.repairs[view.repair_id].ended_by == "ann"

        async def given_back():
            return (await loop.permits.status(POOL)).out == ()

        await loop.until("the permit is given back", given_back)


async def test_a_skip_goes_to_a_stage_but_never_around_the_proof(start):
    async with start() as loop:
        await paused_before_the_reset(loop)
        for stage, sentence in {
            "return": "cannot skip to 'return': choose one of diagnose, reset",
            "permit": "cannot skip to 'permit'",
            "nonsense": "cannot skip to 'nonsense'",
            "reflash": "reflash is not available in this pool",
        }.items():
            with pytest.raises(Refused, match=sentence):
                await loop.send("skip", Skip(stage=stage, by="ann", reason="because"))
        loop.fleet.mend("n001")
        await loop.send("skip", Skip(stage="prove", by="ann", reason="I mended it"))
        view = await loop.ended()
        assert (view.ending, view.passes) == ("returned", 2)
        assert (await loop.story())[3:] == [
            "reset skip",
            "prove passed",
            "prove passed",
            "return returned",
        ]
        assert loop.fleet.done() == []
        ordinals = [step.ordinal for step in await loop.repairs.history("n001")]
        assert ordinals == sorted(set(ordinals))


async def test_a_skip_waits_for_the_gate(start):
    async with start() as loop:
        await loop.freeze()
        await loop.report("n001")
        await loop.until_queued("n001")
        with pytest.raises(Refused, match="its gate is not closed yet"):
            await loop.send("skip", Skip(stage="reset", by="ann", reason="because"))


async def test_an_order_without_a_name_or_out_of_place_is_refused(start):
    async with start() as loop:
        await loop.freeze()
        await loop.report("n001")
        await loop.until_stage("permit")
        for order, sentence in {
            "abort": "give your name",
            "release": "give your name",
            "pause": "give your name",
            "resume": "is neither paused nor waiting for a person",
            "approve": "waits for an approval",
        }.items():
            with pytest.raises(Refused, match=sentence):
                await loop.send(order, OperatorNote(by=" ", reason="because"))
        for order in ("abort", "release"):
            with pytest.raises(Refused, match="give a reason"):
                await loop.send(order, OperatorNote(by="ann"))


async def test_orders_to_a_finished_repair_are_refused(start):
    async with start() as loop:
        await loop.report("n001")
        await loop.ended()
        for order in ("abort", "release", "pause"):
            with pytest.raises(Refused):
                await loop.order(order)
        assert (await loop.repairs.status("n001")).ending == "returned"


async def test_one_of_two_orders_at_once_is_obeyed(start):
    async with start() as loop:
        loop.runner.hold("n001")
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("diagnose")
        orders = [loop.order("abort"), loop.order("release")]
        answers = await asyncio.gather(*orders, return_exceptions=True)
        view = await loop.ended()
        loop.runner.let_go("n001")
        refused = [a for a in answers if isinstance(a, Refused)]
        assert view.ending in {"aborted", "released_by_person"}
        assert len(refused) == 1
