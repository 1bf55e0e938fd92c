"""How an adapter's classified outcome becomes Temporal's retry or a result.

Temporal retries what is transient; a permanent or ambiguous outcome is a result the loop decides
on, never an exception.
"""

from temporalio.exceptions import ApplicationError

from sickbay.contracts.steps import Effect, Outcome, Permission, StepRequest

TRANSIENT = "Transient"


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
