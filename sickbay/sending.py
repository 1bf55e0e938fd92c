"""Sending one message to a workflow of ours so that it arrives once, or failing with one sentence.

A workflow that starts over takes no messages for a moment and drops the orders it has not answered;
whoever sends does not have to know.
"""

import asyncio
import time
import uuid
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from sickbay.contracts import names
from sickbay.contracts.repair import RepairView
from sickbay.errors import Refused, SickbayError, Unreachable

ANSWER_TIMEOUT = timedelta(seconds=20)
ATTEMPT_TIMEOUT = timedelta(seconds=6)
ATTEMPT_AT_LEAST_S = 1.0
BUSY_TIMEOUT_S = 60.0
ASK_AGAIN_S = 0.1
# How the server says that a run ended, or started over, before it answered an order.
DROPPED = "AcceptedUpdateCompletedWorkflow"


async def signal_with_start(
    client: Client,
    workflow: str,
    argument: Any,
    *,
    workflow_id: str,
    signal: str,
    message: Any,
    summary: str,
) -> None:
    """Signal a workflow, starting it where it does not run.

    A run that is starting over takes no messages for a moment, and says so before it has taken this
    one: it is sent again, for `BUSY_TIMEOUT_S`.
    """
    ends_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            await client.start_workflow(
                workflow,
                argument,
                id=workflow_id,
                task_queue=names.CONTROL_QUEUE,
                start_signal=signal,
                start_signal_args=[message],
                static_summary=summary,
            )
        except RPCError as error:
            busy = error.status is RPCStatusCode.RESOURCE_EXHAUSTED
            if not busy or time.monotonic() >= ends_at:
                raise
            await asyncio.sleep(ASK_AGAIN_S)
        else:
            return


async def update(
    handle: WorkflowHandle[Any, Any],
    name: str,
    message: Any,
    *,
    what: str,
    result: type = RepairView,
    keeps_orders: bool = False,
) -> Any:
    """Send one order under one id until it is answered, for `ANSWER_TIMEOUT` in all.

    A run that starts over drops the orders it has not answered: they are sent again. One whose
    answer was lost is sent again only to a workflow that `keeps_orders`, and so knows it by its id.

    Raises:
        Refused: the workflow refused it, or does not run.
        Unreachable: no answer in time.
    """
    order = str(uuid.uuid4())  # noqa: TID251 - a client's own id, not workflow code
    ends_at = time.monotonic() + ANSWER_TIMEOUT.total_seconds()
    while True:
        left = timedelta(seconds=max(ends_at - time.monotonic(), ATTEMPT_AT_LEAST_S))
        limit = min(left, ATTEMPT_TIMEOUT) if keeps_orders else left
        try:
            return await handle.execute_update(
                name, message, id=order, result_type=result, rpc_timeout=limit
            )
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if not (isinstance(cause, ApplicationError) and cause.type == DROPPED):
                raise Refused(
                    cause.message if isinstance(cause, ApplicationError) else str(cause)
                ) from error
            failed: SickbayError = silent(what)
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            if not keeps_orders:
                raise silent(what) from error
            failed = silent(what)
        except RPCError as error:
            failed = _rpc(error, what)
            if not await _may_ask_again(handle, error, keeps_orders=keeps_orders):
                raise failed from error
        if time.monotonic() >= ends_at:
            raise failed
        await asyncio.sleep(ASK_AGAIN_S)


async def _may_ask_again(
    handle: WorkflowHandle[Any, Any], error: RPCError, *, keeps_orders: bool
) -> bool:
    """Whether an order that failed this way may be sent again without being carried out twice."""
    if error.status is RPCStatusCode.NOT_FOUND:
        try:
            found = await handle.describe(rpc_timeout=ATTEMPT_TIMEOUT)
        except RPCError:
            return False
        return found.status is WorkflowExecutionStatus.RUNNING
    not_taken = {RPCStatusCode.ABORTED, RPCStatusCode.RESOURCE_EXHAUSTED}
    return keeps_orders or error.status in not_taken


async def query(handle: WorkflowHandle[Any, Any], name: str, shape: Any, *, what: str) -> Any:
    """Ask a workflow what it knows. Raises as `update` does."""
    try:
        return await handle.query(name, result_type=shape, rpc_timeout=ANSWER_TIMEOUT)
    except WorkflowQueryFailedError as error:
        raise Unreachable(f"{what} cannot be read: {error}") from error
    except RPCError as error:
        raise _rpc(error, what) from error


def _rpc(error: RPCError, what: str) -> Refused | Unreachable:
    if error.status is RPCStatusCode.NOT_FOUND:
        return Refused(
            f"{what} does not run: it has ended or never began",
            remedy="`sickbay status` shows what runs",
        )
    return silent(what)


def silent(what: str) -> Unreachable:
    """The error for something that does not answer."""
    return Unreachable(
        f"{what} does not answer",
        remedy="is `sickbay up` (or the control worker) running, and Temporal reachable?",
    )
