"""How an adapter's classified outcome becomes Temporal's retry or a result.

Temporal retries what is transient; a permanent or ambiguous outcome is a result the loop decides
on, never an exception.
"""

from datetime import datetime, timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from sickbay.contracts.steps import Effect, Outcome, Permission, StepRequest, StepResult

TRANSIENT = "Transient"
WAITS = "waits"


def retry_transient(effect: Effect) -> Effect:
    """The effect, unless it is transient: then the attempt fails and Temporal retries it.

    Raises:
        ApplicationError: of type `Transient`, retryable.
    """
    if effect.outcome is Outcome.TRANSIENT:
        raise ApplicationError(effect.detail or "transient failure", type=TRANSIENT)
    return effect


def withheld_by(permission: Permission, *, step: StepRequest) -> Permission | None:
    """What keeps the act from happening, None when it may happen now."""
    if permission is Permission.ACT:
        return None
    if permission is Permission.APPROVE and step.approved_by:
        return None
    return permission


def wait_for_place(why: str, *, now: datetime, longest_s: float) -> StepResult:
    """An act that must wait for others: Temporal tries again, until it waited long enough.

    Args:
        why: who or what it waits for; begins with `WAITS`.
        now: the present time.
        longest_s: how long after the first attempt was scheduled the wait becomes the answer, so
            that nobody waits for ever unseen.

    Raises:
        ApplicationError: of type `Transient`, retryable.
    """
    if now - activity.info().scheduled_time < timedelta(seconds=longest_s):
        retry_transient(Effect(Outcome.TRANSIENT, why))
    return StepResult(Effect(Outcome.PERMANENT, why), at=now)
