"""Holds: who keeps a gate closed, why, until what, and what happens next.

The gate is open when no hold stands. Every closed gate has an owner, a reason, a release condition
and a next step with a deadline.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

MARK_PREFIX = "sickbay:"
BORROW_PREFIX = f"{MARK_PREFIX}borrow:"


class HoldKind(StrEnum):
    """What a hold is. Only a quarantine is charged to the budget and owes a proof."""

    QUARANTINE = "quarantine"
    WITHHELD = "withheld"
    OPERATOR = "operator"
    FOREIGN = "foreign"
    BORROWED = "borrowed"


@dataclass(frozen=True)
class Hold:
    """One owner's reason to keep a node's gate closed.

    `mark` is what the scheduler shows; ours starts with `sickbay:`. `deadline` belongs to
    `next_step`; only a person's own hold may stand without one.
    """

    id: str
    node: str
    kind: HoldKind
    owner: str
    mark: str
    reason: str
    placed_at: datetime
    release_condition: str
    next_step: str
    deadline: datetime | None = None
    repair_id: str | None = None
    lifted_at: datetime | None = None
    lifted_by: str | None = None


def mark_of(repair_id: str) -> str:
    """The scheduler mark of a repair's hold."""
    return f"{MARK_PREFIX}{repair_id}"


def withheld_mark(node: str) -> str:
    """The scheduler mark of a withheld node: closed without a permit, and without a treatment."""
    return f"{MARK_PREFIX}withheld.{node}"


def borrow_mark(repair_id: str) -> str:
    """The scheduler mark of the neighbour that a repair has borrowed; one at a time."""
    return f"{BORROW_PREFIX}{repair_id}"


def is_borrow(mark: str) -> bool:
    """Whether a mark says that a repair of another node has borrowed this one."""
    return mark.startswith(BORROW_PREFIX)


def is_ours(mark: str) -> bool:
    """Whether sickbay placed this mark; only such marks are ever removed by sickbay."""
    return mark.startswith(MARK_PREFIX)
