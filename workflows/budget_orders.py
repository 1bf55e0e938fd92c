"""A person's orders to a budget: what they see of it, and why an order is refused."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from sickbay.contracts.budget import BudgetView
    from sickbay.domain.budget_state import BudgetPolicy, BudgetState


def view_of(state: BudgetState, policy: BudgetPolicy) -> BudgetView:
    """The budget as people see it."""
    return BudgetView(
        pool=state.pool,
        nodes_on_record=state.nodes_on_record,
        allowed=policy.allowed(state.nodes_on_record),
        window_s=policy.window_s,
        spent=len(state.spent),
        extra=state.extra,
        out=state.out(),
        withheld=tuple(w.node for w in state.withheld if w.placed),
        cap=policy.closures(state.nodes_on_record),
        queue=tuple(a.node for a in state.queue),
        frozen_by=state.frozen_by,
        storm_until=state.storm_until,
        refused=state.refused,
        granted=state.granted,
    )


def order_id() -> str:
    """The id of the order (a Temporal update) being handled."""
    info = workflow.current_update_info()
    return info.id if info else ""


def named(by: str, reason: str) -> None:
    """Refuse an order without a name or a reason.

    Raises:
        ApplicationError: of type `Refused`.
    """
    if not by.strip():
        refuse("give your name (--by)")
    if not reason.strip():
        refuse("give a reason (--reason)")


def refuse(sentence: str) -> None:
    """Reject an order. Raises: ApplicationError: of type `Refused`, always."""
    raise ApplicationError(sentence, type="Refused", non_retryable=True)
