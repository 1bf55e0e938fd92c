"""A storm on the real server: nothing lost, one page, present health read again, returns go on."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from sickbay.contracts.budget import BudgetGrant, PermitAsk, PermitReleased, WithholdAsk
from sickbay.contracts.steps import Effect, Outcome, PresentHealth
from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Severity, Treatment
from sickbay.errors import UnknownNode
from tests.workflows.conftest import BUDGET, POLICY, POOL, utc_now

STORM = 5000
SENDERS = 40


def ask(number, *, hard=True, node=None):
    node = node or f"x{number:04d}"
    return PermitAsk(
        repair_id=f"{node}.1",
        workflow_id="node-repair/nobody",
        node=node,
        group=f"g-{node}",
        severity=Severity.MAJOR,
        hard=hard,
        reason="hard_fail:xid_79" if hard else "min:memory",
        factors={"rack": f"rack{number // 16}"},
        at=utc_now(),
    )


async def send_all(permits, asks):
    left = list(asks)

    async def sender():
        while left:
            await permits.ask(POOL, left.pop())

    await asyncio.gather(*(sender() for _ in range(SENDERS)))


@pytest.mark.slow
@pytest.mark.timeout(480)
async def test_five_thousand_asks_at_once_lose_none_and_grants_go_out_in_chunks(start):
    """Two thousand grants at once would end a workflow task for ever; so would a large state."""
    quiet = BudgetPolicy(allowance=0, cap=3, per_group=9, storm_factor=1e9)
    async with start(budget=quiet) as loop:
        await send_all(loop.permits, [ask(i, hard=False) for i in range(STORM)])

        async def booked():
            return len((await loop.permits.status(POOL)).queue) == STORM

        await loop.until("all asks are in the queue", booked)
        names = (await loop.permits.status(POOL)).queue
        assert len(set(names)) == STORM
        asked = [row for row in loop.records.permits if row.event == "asked"]
        assert len(asked) == len({row.repair_id for row in asked}) == STORM
        await loop.permits.grant(POOL, BudgetGrant(1000, by="ann", reason="a test"))

        async def given():
            # Nobody is there to take them: each permit is free again.
            view = await loop.permits.status(POOL)
            return view.extra == 0 and view.out == () and len(view.queue) == STORM - 1000

        await loop.until("a thousand permits were told and came back", given)


async def test_opening_after_a_freeze_reads_present_health_before_it_grants(start):
    """Soft reasons that are gone get no permit; those that stand, and hard fails, do."""
    patient = replace(POLICY, permit_recheck_s=3600.0)
    async with start(count=3, policy=patient) as loop:
        await loop.freeze()
        await loop.report("n001", hard=False, reason="min:memory")
        await loop.report("n002", hard=False, reason="min:memory")
        await loop.report("n003", hard=True)
        for node in ("n001", "n002", "n003"):
            await loop.until_queued(node)
        well = Health(value=0.95, confidence=1.0, worst=None, reason="ok")
        later = utc_now() + timedelta(seconds=5)
        loop.records.health["n001"] = PresentHealth(well, Standing.HEALTHY, at=later)
        await loop.unfreeze()
        for node in ("n002", "n003"):
            assert (await loop.ended(node)).ending == "returned"

        async def told():
            return [r.node for r in loop.records.permits if r.event == "refused"] == ["n001"]

        await loop.until("n001 is told to look again", told)
        granted = {r.node for r in loop.records.permits if r.event == "granted"}
        assert granted == {"n002", "n003"}
        await loop.jump(loop.repair("n001"), hours=1.1)
        assert (await loop.ended("n001")).ending == "withdrawn"
        assert loop.fleet["n001"].gate_open


async def test_a_storm_pages_once_and_names_the_rack_its_nodes_share(start):
    """Sixteen nodes of one rack of sixty-four: the rack is named; what all carry is not."""
    settled = BudgetPolicy(allowance=0, cap=3, settle_s=3.0)
    async with start(
        count=64, silent=tuple(f"n{i:03d}" for i in range(1, 65)), budget=settled
    ) as loop:
        records = loop.records.on_record
        for number, (name, node) in enumerate(sorted(records.items())):
            records[name] = replace(node, rack=f"rack{number // 16}", node_class="h200x8")
        same = [n for n in records.values() if n.rack == "rack2"]
        asks = []
        for node in same:
            asked = ask(0, node=node.id)
            common = {"rack": node.rack, "node_class": node.node_class, "reason": asked.reason}
            asks.append(replace(asked, factors=common))
        await send_all(loop.permits, asks)
        [page] = await loop.until("a page", lambda: loop.pager.about("budget of train"))
        assert "rack=rack2" in page.detail
        assert "node_class" not in page.detail
        assert "hard_fail:xid_79" in page.detail
        for node in sorted(records)[:4]:
            await loop.permits.ask(POOL, ask(0, node=node))

        async def queued():
            return min(records) in (await loop.permits.status(POOL)).queue

        await loop.until("more asks are booked", queued)
        assert len(loop.pager.about("budget of train")) == 1


async def test_a_proven_node_returns_at_once_while_frozen_in_a_storm_with_a_full_queue(start):
    async with start(count=2, budget=replace(BUDGET, storm_factor=1.0)) as loop:
        loop.runner.hold("n001")
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("diagnose", "n001")
        await loop.freeze()
        await send_all(loop.permits, [ask(i, hard=False) for i in range(300)])

        async def full():
            view = await loop.permits.status(POOL)
            return len(view.queue) == 300 and view.storm_until and view.frozen_by

        await loop.until("frozen, a storm, and a long queue", full)
        loop.runner.let_go("n001")
        assert (await loop.ended("n001")).ending == "returned"
        assert loop.fleet["n001"].gate_open
        view = await loop.permits.status(POOL)
        assert (len(view.queue), view.frozen_by, view.out) == (300, "ann", ())


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_c58_a_hundred_simultaneous_faults_are_five_quarantines(start):
    """Two percent of 250 nodes: whoever decides at the same moment, five gates close, no more."""
    silent = tuple(f"n{i:03d}" for i in range(1, 101))
    never = replace(POLICY, node_queue_timeout_s=3600.0)
    async with start(count=100, silent=silent, budget=BudgetPolicy(cap=5), policy=never) as loop:
        loop.permits._sizes = {POOL: replace(loop.permits._sizes[POOL], nodes_on_record=250)}
        await loop.permits.resize(POOL)
        await asyncio.gather(*(loop.report(node) for node in silent))

        async def all_asked():
            view = await loop.permits.status(POOL)
            return len(view.queue) + len(view.out) == 100 and view.spent == 5

        await loop.until("a hundred have asked and five are out", all_asked)
        for node in (await loop.permits.status(POOL)).out:
            await loop.until_stage("diagnose", node)
        closed = [n for n in silent if not loop.fleet[n].gate_open]
        assert sorted(closed) == sorted((await loop.permits.status(POOL)).out)
        assert len(closed) == 5
        assert len(loop.pager.about("budget of train")) == 1


async def test_who_was_refused_asks_again_by_itself(start):
    """A refusal leaves no place in the queue: the repair takes a new one when it next looks."""
    async with start() as loop:
        await loop.freeze()
        handle = await loop.report("n001")
        await loop.until_queued("n001")
        view = await loop.repairs.status("n001")
        await loop.permits.release(POOL, PermitReleased(view.repair_id))
        refusal = {"repair_id": view.repair_id, "granted": False, "reason": "the queue is full"}

        async def gone():
            return (await loop.permits.status(POOL)).queue == ()

        await loop.until("it has lost its place", gone)
        await handle.signal("permit_decided", refusal)
        await loop.until_queued("n001")
        await loop.unfreeze()
        assert (await loop.ended("n001")).ending == "returned"


@pytest.mark.slow
async def test_one_gate_that_never_answers_does_not_keep_the_pool_waiting(start):
    """Its mark is tried again later; the permits of the others are granted meanwhile."""
    async with start(count=3, budget=BudgetPolicy(allowance=1, cap=3)) as loop:
        busy = [Effect(Outcome.TRANSIENT, "busy")] * 500
        loop.fleet.script("scheduler.close_gate", *busy, node="n001")
        stuck = WithholdAsk("n001", "g1", "no_fresh_data", hard=False, factors={})
        await loop.permits.ask_withhold(POOL, stuck)
        await loop.until(
            "its mark is tried", lambda: loop.fleet.log.count("scheduler.close_gate") > 0
        )
        await loop.report("n002")
        assert (await loop.ended("n002")).ending == "returned"
        failed = {r.node for r in loop.records.permits if r.event == "failed"}
        assert failed == {"n001"}
        assert (await loop.permits.status(POOL)).withheld == ()
        assert loop.fleet["n001"].gate_open


async def test_a_mark_that_can_never_be_placed_does_not_end_the_budget(start):
    """A node the scheduler does not know is recorded as failed, and the budget lives on."""
    async with start(count=1) as loop:
        unknown = WithholdAsk("not-a-node", "g", "no_fresh_data", hard=False, factors={})
        loop.fleet.script("scheduler.close_gate", UnknownNode("no such node"), node="not-a-node")
        await loop.permits.ask_withhold(POOL, unknown)

        async def recorded():
            return [r.node for r in loop.records.permits if r.event == "failed"] == ["not-a-node"]

        await loop.until("the failure is on record", recorded)
        await loop.report("n001")
        assert (await loop.ended("n001")).ending == "returned"
