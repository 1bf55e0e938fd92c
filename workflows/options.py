"""Every activity's timeouts and retries, in one table.

Local activities are quick control steps. Remote ones run on a node's own queue or take long; they
heartbeat, and a queue nobody polls is `unreachable` after the policy's time, not a retry.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

# Matched by class name, without inheritance. PayloadsTooLarge would otherwise be retried for ever.
NON_RETRYABLE = (
    "PayloadsTooLarge",
    "UnknownNode",
    "UnknownTicket",
    "UsageError",
    "Refused",
    "SchemaTooNew",
    "TypeError",
    "ValidationError",
)
RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    maximum_interval=timedelta(seconds=10),
    non_retryable_error_types=list(NON_RETRYABLE),
)
NODE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    backoff_coefficient=1.5,
    maximum_interval=timedelta(seconds=15),
    non_retryable_error_types=list(NON_RETRYABLE),
)
MARGIN_S = 60.0
# One node's gate that does not answer must not keep a whole pool waiting: it is tried again later.
MARK_WITHIN_S = 30.0


@dataclass(frozen=True)
class Timing:
    """How long one attempt of a local activity may take, in seconds."""

    attempt_s: float


LOCAL: Mapping[str, Timing] = {
    "load_node": Timing(10),
    "record_stage": Timing(10),
    "present_health": Timing(10),
    "replace_part": Timing(10),
    "record_return": Timing(10),
    "keep_hold": Timing(10),
    "record_permits": Timing(20),
    "ask_permit": Timing(20),
    "adopt_permit": Timing(20),
    "release_permit": Timing(20),
    "reconcile_permits": Timing(60),
    "recheck_health": Timing(60),
    "open_ticket": Timing(30),
    "comment_ticket": Timing(30),
    "close_ticket": Timing(30),
    "page": Timing(30),
    "page_budget": Timing(30),
}


DURABLE: Mapping[str, Timing] = {
    "close_gate": Timing(30),
    "open_gate": Timing(30),
    "withhold": Timing(30),
    "end_withhold": Timing(30),
    "give_back_neighbour": Timing(30),
    "report_neighbour": Timing(30),
}


def local(name: str) -> workflow.LocalActivityConfig:
    """Options of a local activity of the table."""
    return {
        "start_to_close_timeout": timedelta(seconds=LOCAL[name].attempt_s),
        "retry_policy": RETRY,
    }


def durable(name: str) -> workflow.ActivityConfig:
    """Options of a quick act whose decision must be durable before it happens.

    A local activity runs inside a workflow task that may be lost and taken again with other
    messages, and so with another decision. Gates move only by activities the server has recorded.
    """
    return {
        "start_to_close_timeout": timedelta(seconds=DURABLE[name].attempt_s),
        "retry_policy": RETRY,
        "cancellation_type": workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        "summary": name,
    }


def mark(name: str) -> workflow.ActivityConfig:
    """Options of a durable act on one node for which others do not wait long."""
    return {**durable(name), "schedule_to_close_timeout": timedelta(seconds=MARK_WITHIN_S)}


def remote(*, deadline_s: float, heartbeat_s: float, summary: str) -> workflow.ActivityConfig:
    """Options of a long activity on the control queue."""
    return {
        "start_to_close_timeout": timedelta(seconds=deadline_s + MARGIN_S),
        "heartbeat_timeout": timedelta(seconds=heartbeat_s),
        "retry_policy": NODE_RETRY,
        "cancellation_type": workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        "summary": summary,
    }


def out_of_band(*, deadline_s: float, heartbeat_s: float, summary: str) -> workflow.ActivityConfig:
    """Options of an act on a management controller.

    It may wait its whole deadline for its turn (rack, power unit, canary) before it begins.
    """
    return {
        **remote(deadline_s=deadline_s, heartbeat_s=heartbeat_s, summary=summary),
        "schedule_to_close_timeout": timedelta(seconds=3 * (deadline_s + MARGIN_S)),
    }


def on_node(
    queue: str,
    *,
    deadline_s: float,
    heartbeat_s: float,
    unreachable_s: float,
    summary: str,
    in_all_s: float | None = None,
) -> workflow.ActivityConfig:
    """Options of an activity on one node's queue.

    Retries end as well, after `in_all_s` (default: room for one attempt that was lost and one that
    runs its full time): a node that answers with nothing but errors must not hold a stage for ever.
    """
    most_s = unreachable_s + 2 * (deadline_s + MARGIN_S) if in_all_s is None else in_all_s
    return {
        **remote(deadline_s=deadline_s, heartbeat_s=heartbeat_s, summary=summary),
        "task_queue": queue,
        "schedule_to_start_timeout": timedelta(seconds=unreachable_s),
        "schedule_to_close_timeout": timedelta(seconds=most_s),
    }
