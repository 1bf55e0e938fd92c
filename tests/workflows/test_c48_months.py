"""C48: histories stay bounded however long a repair waits, and whatever the scorer evaluates."""

import asyncio
from dataclasses import replace

import pytest
from temporalio import activity
from temporalio.worker import Replayer, Worker

from sickbay.contracts import names
from sickbay.contracts.scoring import SCORE_POOL, ScoringEnded, ScoringInput
from sickbay.domain.node import Treatment
from sickbay.payloads import shared_data_converter
from tests.workflows.conftest import POLICY, POOL, Loop, running, small_server
from workers.process import sandbox
from workflows.node_repair import NodeRepair
from workflows.pool_budget import PoolBudget
from workflows.pool_scoring import PoolScoring

MOST_EVENTS = 10_000
MOST_BYTES = 5 * 1024 * 1024
DAYS = 30
EVALUATIONS = DAYS * 24 * 360
SUGGESTED = 400


async def sizes(handle):
    """Events and bytes of the present run's history."""
    info = (await handle.describe()).raw_description.workflow_execution_info
    return info.history_length, info.history_size_bytes


async def replays(handle):
    """The present run's history replays with today's code."""
    replayer = Replayer(
        workflows=[NodeRepair, PoolBudget, PoolScoring],
        data_converter=shared_data_converter,
        workflow_runner=sandbox(),
    )
    await replayer.replay_workflow(await handle.fetch_history())


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_c48_a_month_of_waiting_for_a_permit_stays_small_and_is_granted_in_the_end(
    temporal_cli,
):
    """A wait that looks again 2,900 times a month; here each look is shortened, none left out.

    The server suggests a new run after a tenth of the default, so the bound here is a tenth too.
    """
    looks = replace(POLICY, permit_recheck_s=0.02)
    async with (
        small_server(temporal_cli, events=SUGGESTED) as env,
        running(env, count=1, policy=looks) as loop,
    ):
        await loop.freeze()
        handle = await loop.broken("n001", Treatment.RESET)
        await loop.until_queued("n001")
        first = (await handle.describe()).run_id
        largest = 0

        async def rolled_over_twice():
            nonlocal largest
            events, size = await sizes(loop.repair("n001"))
            largest = max(largest, events)
            assert size < MOST_BYTES / 10
            return await count_runs(loop, "node-repair/n001", first) >= 3

        await loop.until("it has begun anew twice", rolled_over_twice)
        assert largest < MOST_EVENTS / 10
        await replays(loop.repair("n001"))
        view = await loop.repairs.status("n001")
        assert view.stage == "permit"
        assert (await loop.permits.status(POOL)).queue == ("n001",)
        await loop.unfreeze()
        view = await loop.ended()
        assert view.ending == "returned"
        assert {s.repair_id for s in loop.records.steps} == {view.repair_id}
        assert len(loop.fleet.acts) == 1


async def test_c48_a_month_of_a_stopped_pool_stays_small_and_acts_once_in_the_end(temporal_cli):
    waits = replace(POLICY, stopped_recheck_s=0.002)
    async with (
        small_server(temporal_cli, events=SUGGESTED) as env,
        running(env, count=1, policy=waits) as loop,
    ):
        loop.runner.hold("n001")
        handle = await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("diagnose")
        first = (await handle.describe()).run_id
        loop.safety.stop()
        loop.runner.let_go("n001")

        async def rolled_over():
            events, size = await sizes(loop.repair("n001"))
            assert events < MOST_EVENTS / 10
            assert size < MOST_BYTES / 10
            return await count_runs(loop, "node-repair/n001", first) >= 2

        await loop.until("it has begun anew", rolled_over)
        assert loop.fleet.acts == []
        assert not loop.fleet["n001"].gate_open
        loop.safety.go()
        assert (await loop.ended()).ending == "returned"
        assert len(loop.fleet.acts) == 1


async def test_c48_thirty_days_of_evaluations_add_no_history(temporal_env):
    """259,200 evaluations, one node: the scorer's workflow stays at its first few events."""
    done = asyncio.Event()
    count = 0

    @activity.defn(name=SCORE_POOL)
    async def evaluate(inp: ScoringInput) -> ScoringEnded:
        nonlocal count
        while count < EVALUATIONS:
            count += 1
            if count % 1000 == 0:
                activity.heartbeat(count)
                await asyncio.sleep(0)
        done.set()
        while True:
            activity.heartbeat(count)
            await asyncio.sleep(0.2)

    async with Worker(
        temporal_env.client,
        task_queue="q",
        workflows=[PoolScoring],
        activities=[evaluate],
        workflow_runner=sandbox(),
    ):
        handle = await temporal_env.client.start_workflow(
            names.SCORING_WORKFLOW,
            ScoringInput("train", {}, heartbeat_timeout_s=60.0),
            id=names.scoring_workflow_id("train"),
            task_queue="q",
        )
        await asyncio.wait_for(done.wait(), 60)
        events, size = await sizes(handle)
        assert count == EVALUATIONS
        assert events < 20
        assert size < 64 * 1024
        await replays(handle)
        await handle.signal("stop")
        await asyncio.wait_for(handle.result(), 30)


async def test_c48_repeated_findings_about_one_node_grow_neither_state_nor_history(temporal_cli):
    """A node that flaps for a month: hundreds of findings, one repair, one ticket, bounded runs."""
    async with (
        small_server(temporal_cli, events=SUGGESTED) as env,
        running(env, count=1, policy=replace(POLICY, permit_recheck_s=0.05)) as loop,
    ):
        await loop.freeze()
        await loop.broken("n001", Treatment.RESET)
        for _ in range(40):
            await asyncio.gather(*(loop.report("n001") for _ in range(25)))
        events, size = await sizes(loop.repair("n001"))
        assert events < MOST_EVENTS / 5
        assert size < MOST_BYTES / 5
        await loop.unfreeze()
        assert (await loop.ended()).ending == "returned"
        events, size = await sizes(loop.budget())
        assert events < MOST_EVENTS / 10
        assert size < MOST_BYTES / 10


async def count_runs(loop: Loop, workflow_id: str, first: str) -> int:
    """Runs of the chain that began with `first`, counted back from the present one."""
    run = (await loop.client.get_workflow_handle(workflow_id).describe()).run_id
    count = 1
    while run and run != first:
        handle = loop.client.get_workflow_handle(workflow_id, run_id=run)
        event = (await handle.fetch_history()).events[0]
        run = event.workflow_execution_started_event_attributes.continued_execution_run_id
        count += 1
    return count
