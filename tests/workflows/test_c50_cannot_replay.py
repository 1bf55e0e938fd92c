"""C50: a release that cannot replay a repair: the node stays out, a page names it, no act twice."""

import asyncio
from datetime import timedelta

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sickbay.contracts import names
from sickbay.contracts.repair import RepairInput, RepairView
from sickbay.domain.node import Treatment
from sickbay.stuck import stuck_workflows
from tests.workflows.conftest import Loop
from workers.stuck import sweep


@workflow.defn(name=names.REPAIR_WORKFLOW)
class AnotherOrder:
    """A release that begins a repair with something else than the recorded one did."""

    @workflow.run
    async def run(self, inp: RepairInput) -> RepairView | None:
        await workflow.sleep(timedelta(seconds=1))
        await workflow.execute_activity("drain", start_to_close_timeout=timedelta(seconds=5))
        return None

    @workflow.signal(name="permit_decided")
    def permit_decided(self, decision: dict) -> None:
        """Another release would know this message."""

    @workflow.signal(name="fault_reported")
    def fault_reported(self, fault: dict) -> None:
        """Another release would know this message."""


def other_release(loop: Loop) -> Worker:
    return Worker(
        loop.client,
        task_queue=names.CONTROL_QUEUE,
        workflows=[AnotherOrder],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_c50_what_cannot_replay_is_paged_once_stays_out_and_repeats_no_reset(start_outside):
    async with start_outside(count=1) as loop:
        async with loop.control_worker():
            await loop.broken("n001", Treatment.SWAP, treatment=Treatment.RESET)
            await loop.until_stage("swap", waits="ticket")
        before = list(loop.fleet.acts)
        assert before
        async with other_release(loop):
            # Any message wakes it: it is then taken up by code that does not fit its history.
            await loop.report("n001")
            paged: set[str] = set()

            async def found():
                await sweep(
                    loop.client, pager=loop.pager, inventory=loop.records, paged=paged, attempts=3
                )
                return paged

            await loop.until("it is found to be stuck", found)
            await found()
            [page] = loop.pager.about("the repair of n001 cannot go on")
            assert page.node == "n001"
            assert page.pool == "train"
            assert not loop.fleet["n001"].gate_open
            assert loop.fleet.acts == before
        async with loop.control_worker():
            await reset_to_the_start(loop, "node-repair/n001")
            await loop.until_stage("swap", waits="ticket")
            assert loop.fleet.acts == before
            assert not loop.fleet["n001"].gate_open
            loop.fleet.mend("n001")
            await loop.order("release")
            assert (await loop.ended()).ending == "released_by_person"
        assert await stuck_workflows(loop.client, attempts=1) == ()


async def reset_to_the_start(loop: Loop, workflow_id: str) -> None:
    """Reset to the first workflow task, as the page says; messages are applied again."""
    handle = loop.client.get_workflow_handle(workflow_id)
    events = (await handle.fetch_history()).events
    first = next(
        e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    )
    await loop.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=loop.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            reason="a test",
            workflow_task_finish_event_id=first,
            request_id="reset-1",
        )
    )
    await asyncio.sleep(0)


async def test_c50_a_repair_that_only_waits_is_not_reported(start):
    async with start(count=1) as loop:
        await loop.freeze()
        await loop.report("n001")
        await loop.until_queued("n001")
        assert await stuck_workflows(loop.client, attempts=2) == ()
        await loop.unfreeze()
        await loop.ended()
