"""Finds workflows of ours that cannot go on: their code no longer fits their history, or it fails.

Temporal retries such a workflow for ever and tells nobody. Its node stays out, for nothing opens a
gate but the workflow itself; a person has to know.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from sickbay.contracts import names

KINDS = (names.REPAIR_WORKFLOW, names.BUDGET_WORKFLOW, names.SCORING_WORKFLOW)
RUNNING = f"ExecutionStatus = 'Running' AND WorkflowType IN ({', '.join(map(repr, KINDS))})"
# The server sets this after some tasks in a row that failed (five, unless configured).
REPORTED = (
    f"{RUNNING} AND TemporalReportedProblems IN "
    "('category=WorkflowTaskFailed', 'category=WorkflowTaskTimedOut')"
)
ATTEMPTS = 5


@dataclass(frozen=True)
class StuckWorkflow:
    """One run whose present task has failed `attempts` times."""

    workflow_id: str
    run_id: str
    kind: str
    attempts: int

    @property
    def subject(self) -> str:
        """The node or the pool it is about."""
        return self.workflow_id.partition("/")[2]


async def stuck_workflows(client: Client, *, attempts: int = ATTEMPTS) -> tuple[StuckWorkflow, ...]:
    """The running workflows of ours whose present task has failed at least `attempts` times.

    Raises:
        RPCError: the server could not be asked.
    """
    found = []
    async for workflow_id, run_id, kind in _suspects(client):
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        try:
            described = await handle.describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                continue
            raise
        raw = described.raw_description
        task = raw.pending_workflow_task if raw.HasField("pending_workflow_task") else None
        if task is not None and task.attempt >= attempts:
            found.append(StuckWorkflow(workflow_id, run_id, kind, task.attempt))
    return tuple(found)


async def _suspects(client: Client) -> AsyncIterator[tuple[str, str, str]]:
    """Those the server reports; every running one where the server keeps no such report."""
    try:
        async for row in client.list_workflows(REPORTED):
            yield row.id, row.run_id, row.workflow_type
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        async for row in client.list_workflows(RUNNING):
            yield row.id, row.run_id, row.workflow_type
