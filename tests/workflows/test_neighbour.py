"""Runs across two nodes: a neighbour is borrowed, cleared or blamed, and always given back."""

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta

import pytest

from sickbay.contracts.steps import Action, Permission
from sickbay.domain.gate import HoldKind, borrow_mark
from sickbay.domain.health import Health, Standing
from sickbay.domain.neighbour import neighbours
from sickbay.domain.node import Category, Treatment
from sickbay.domain.proof import CheckName
from sickbay.domain.reading import Verdict
from tests.workflows.conftest import POLICY, POOL, utc_now

PAIR_ONLY = frozenset({CheckName.NCCL_PAIR})
FABRIC = {"category": Category.FABRIC, "reason": "slow_job", "source": "person", "slot": None}
CALM = replace(POLICY, neighbour_wait_s=0.3)
WELL = Health(value=1.0, confidence=1.0, worst=None, reason="", signal=None)


@pytest.fixture
def start_healthy(start):
    """As `start`, with every node healthy on record."""

    @contextlib.asynccontextmanager
    async def begin(**options):
        options.setdefault("policy", CALM)
        async with start(**options) as loop:
            for node in loop.fleet.nodes:
                await loop.records.save_health(
                    node, health=WELL, standing=Standing.HEALTHY, at=utc_now(), rules="1"
                )
            yield loop

    return begin


def slow(loop, node, *cured_by):
    loop.fleet.break_part(
        node,
        None,
        cured_by=cured_by,
        reason="slow",
        category=Category.FABRIC,
        seen_by=PAIR_ONLY,
    )


async def order_of(loop, suspect="n001"):
    known = await loop.records.bystanders(POOL)
    return neighbours(loop.records.on_record[suspect], known)


def borrows(loop):
    return [h for h in loop.records.every_hold if h.kind is HoldKind.BORROWED]


def all_given_back(loop):
    assert all(h.lifted_at for h in borrows(loop))
    assert all(
        not any(m.startswith("sickbay:borrow:") for m in n.marks) for n in loop.fleet.nodes.values()
    )


async def test_a_fault_only_the_pair_sees_is_blamed_on_the_node_and_its_neighbours_are_cleared(
    start_healthy,
):
    async with start_healthy(count=4) as loop:
        slow(loop, "n001", Treatment.REBOOT)
        await loop.report("n001", **FABRIC)
        view = await loop.ended()
        assert view.ending == "returned"
        assert await loop.story() == [
            "permit granted",
            "drain drained",
            "diagnose confirmed",
            "reboot done",
            "prove passed",
            "prove passed",
            "return returned",
        ]
        diagnosis = next(s for s in loop.records.steps if s.stage == "diagnose")
        assert "to blame: n001" in diagnosis.detail
        partners = [h.node for h in borrows(loop)]
        assert len(set(partners[:2])) == 2, "a third partner broke the tie"
        assert len(partners) == 4, "two for the diagnosis, one for each pass"
        assert {r.node for r in loop.records.repairs.values()} == {"n001"}
        all_given_back(loop)
        assert {h.mark for h in borrows(loop)} == {borrow_mark(view.repair_id)}


async def test_a_sick_neighbour_is_blamed_instead_and_gets_a_repair_of_its_own(start_healthy):
    async with start_healthy(count=4) as loop:
        culprit = (await order_of(loop))[0]
        slow(loop, culprit, Treatment.REBOOT)
        await loop.report("n001", **FABRIC)
        assert (await loop.ended("n001")).ending == "returned"
        assert (await loop.story("n001"))[2] == "diagnose not_confirmed"
        assert loop.fleet.done("n001") == []
        assert (await loop.ended(culprit)).ending == "returned"
        assert "diagnose confirmed" in await loop.story(culprit)
        own = next(r for r in loop.records.repairs.values() if r.node == culprit)
        assert own.reason == "bandwidth_below_floor"
        assert loop.fleet.done(culprit)[0] is Treatment.REBOOT
        all_given_back(loop)


async def test_without_a_third_partner_nobody_is_blamed(start_healthy):
    async with start_healthy(count=2) as loop:
        slow(loop, "n001", Treatment.REBOOT)
        await loop.report("n001", **FABRIC)
        await loop.until_stage("needs_human")
        assert (await loop.story()).count("diagnose inconclusive") == CALM.inconclusive_limit
        assert loop.fleet.done() == []
        assert any("undecided" in p.detail for p in loop.records.steps)
        all_given_back(loop)


async def test_with_no_neighbour_the_fabrics_own_fault_waits_and_then_asks_a_person(start_healthy):
    async with start_healthy(count=2, group_size=2) as loop:
        await loop.report("n001", **FABRIC)
        await loop.until_stage("needs_human")
        assert (await loop.story()).count("diagnose inconclusive") == CALM.inconclusive_limit
        assert loop.pager.about("no neighbour")
        assert borrows(loop) == []
        assert loop.fleet["n002"].gate_open
        assert not loop.fleet["n001"].gate_open


async def test_a_busy_neighbour_is_waited_for_and_its_job_left_alone(start_healthy):
    async with start_healthy(count=2, policy=replace(CALM, neighbour_wait_s=30.0)) as loop:
        loop.fleet["n002"].jobs.append("job-1")
        await loop.report("n001", **FABRIC)
        await loop.until_stage("diagnose", waits="idle neighbour")
        await asyncio.sleep(0.3)
        assert loop.fleet["n002"].jobs == ["job-1"]
        assert loop.fleet["n002"].gate_open
        loop.fleet["n002"].jobs.clear()
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.log.count("scheduler.evict", node="n002") == 0
        all_given_back(loop)


async def test_a_fault_of_another_trigger_is_proven_without_the_pair_when_nobody_is_free(
    start_healthy,
):
    async with start_healthy(count=2, group_size=2) as loop:
        loop.fleet.break_part("n001", "gpu0", cured_by={Treatment.RESET}, category=Category.FABRIC)
        await loop.report("n001")
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.log.count("checks.nccl_node", node="n001") == 2, "in both proofs"
        assert loop.fleet.log.count("checks.across") == 0


async def test_a_pair_check_that_may_be_left_out_waits_for_no_approval(start_healthy):
    async with start_healthy(count=3) as loop:
        loop.fleet.break_part("n001", "gpu0", cured_by={Treatment.RESET}, category=Category.FABRIC)
        loop.control["n001"].hold()
        await loop.report("n001")
        await loop.until_stage("reset")
        loop.safety.set(Action.CLOSE_GATE, Permission.APPROVE)
        loop.control["n001"].let_go()
        assert (await loop.ended()).ending == "returned"
        assert loop.fleet.log.count("checks.across") == 0


async def test_what_the_node_fails_alone_borrows_nobody(start_healthy):
    async with start_healthy(count=3) as loop:
        loop.fleet.break_part(
            "n001",
            "gpu0",
            cured_by={Treatment.RESET},
            category=Category.INTERCONNECT,
            seen_by={CheckName.NVLINK_STATE},
        )
        loop.runner.hold("n001")
        await loop.report("n001", **{**FABRIC, "slot": "gpu0"})
        await loop.until_stage("diagnose")
        assert borrows(loop) == []
        loop.runner.let_go("n001")
        await loop.until_count("diagnose confirmed", 1)
        assert borrows(loop) == []
        assert (await loop.ended()).ending == "returned"
        all_given_back(loop)


async def test_an_abort_in_the_middle_of_the_run_gives_the_neighbour_back(start_healthy):
    async with start_healthy(count=3) as loop:
        partner = (await order_of(loop))[0]
        run = loop.runner.run

        async def held_across(check, *, node, deadline_s, neighbour=None):
            if check.name is CheckName.NCCL_PAIR:
                await asyncio.sleep(30)
            return await run(check, node=node, deadline_s=deadline_s, neighbour=neighbour)

        loop.runner.run = held_across
        await loop.report("n001", **FABRIC)
        await loop.until_stage("diagnose", waits=f"with {partner}")
        assert not loop.fleet[partner].gate_open
        await loop.order("abort")
        assert (await loop.ended()).ending == "aborted"
        all_given_back(loop)
        assert loop.fleet[partner].gate_open


async def test_a_lent_node_that_falls_sick_is_not_drained_before_it_is_given_back(start_healthy):
    """Its own repair waits for the end of the run, so nothing is reset under a test's feet."""
    async with start_healthy(count=3) as loop:
        partner = (await order_of(loop))[0]
        gate = asyncio.Event()
        run = loop.runner.run

        async def held_across(check, *, node, deadline_s, neighbour=None):
            if check.name is CheckName.NCCL_PAIR:
                await gate.wait()
            return await run(check, node=node, deadline_s=deadline_s, neighbour=neighbour)

        loop.runner.run = held_across
        await loop.report("n001", **FABRIC)
        await loop.until_stage("diagnose", waits=f"with {partner}")
        await loop.broken(partner, Treatment.RESET)
        await loop.until_stage("drain", partner)
        await asyncio.sleep(0.2)
        assert loop.fleet.done(partner) == []
        assert (await loop.story(partner)).count("drain drained") == 0
        gate.set()
        assert (await loop.ended("n001")).ending == "returned"
        assert (await loop.ended(partner)).ending == "returned"
        assert loop.fleet.done(partner) == [Treatment.RESET]
        all_given_back(loop)


async def test_a_neighbour_is_out_for_the_run_alone(start_healthy):
    """Nothing else of the suite runs while a neighbour stands behind our mark."""
    async with start_healthy(count=3) as loop:
        await loop.report("n001", **FABRIC)
        await loop.ended()
        lent = set()
        runs = 0
        for call in loop.fleet.log.calls:
            if call.verb == "scheduler.close_gate" and call.detail.startswith("sickbay:borrow:"):
                lent.add(call.node)
            elif call.verb == "scheduler.open_gate" and call.detail.startswith("sickbay:borrow:"):
                lent.discard(call.node)
            elif call.verb.startswith("checks."):
                runs += bool(lent)
                assert not lent or call.verb in {"checks.nccl_pair", "checks.across"}
        assert lent == set()
        assert runs


async def test_in_observe_mode_no_gate_of_a_neighbour_moves(start_healthy):
    async with start_healthy(count=3, mode=Permission.OBSERVE) as loop:
        await loop.report("n001", **FABRIC)
        assert (await loop.ended()).ending == "observed"
        assert loop.fleet.log.count("scheduler.close_gate") == 0


async def test_a_run_that_measures_nothing_is_tried_with_another_partner_and_blames_nobody(
    start_healthy,
):
    async with start_healthy(count=5) as loop:
        loop.fleet.script("checks.nccl_pair", Verdict.INCONCLUSIVE, node="n001")
        await loop.report("n001", **FABRIC)
        assert (await loop.ended()).ending == "returned"
        partners = [h.node for h in borrows(loop)]
        assert partners[0] != partners[1]
        assert {r.node for r in loop.records.repairs.values()} == {"n001"}
        all_given_back(loop)


async def test_a_borrow_that_has_expired_is_swept(start_healthy):
    async with start_healthy(count=3) as loop:
        partner = (await order_of(loop))[0]
        mark = borrow_mark("n009.0123456789ab")
        await loop.scheduler.close_gate(partner, mark=mark, reason="left behind")
        await loop.report("n001", id="only")
        await loop.ended()
        hold = replace(_hold(mark, partner), deadline=utc_now() + timedelta(hours=1))
        await loop.records.place_hold(hold)
        assert await loop.neighbours.sweep() == ()
        await loop.records.lift_hold(mark, by="x", at=utc_now())
        await loop.records.place_hold(replace(hold, deadline=utc_now() - timedelta(seconds=1)))
        assert await loop.neighbours.sweep() == (partner,)
        all_given_back(loop)
        assert loop.fleet[partner].gate_open


def _hold(mark, node):
    from sickbay.domain.gate import Hold

    return Hold(
        id=mark,
        node=node,
        kind=HoldKind.BORROWED,
        owner="sickbay",
        mark=mark,
        reason="left behind",
        placed_at=utc_now(),
        release_condition="expires",
        next_step="swept",
        repair_id="n009.0123456789ab",
    )
