"""Messages and shapes of a pool's budget."""

from dataclasses import dataclass, field
from datetime import datetime

from sickbay.domain.budget_rows import BudgetRows
from sickbay.domain.budget_state import BudgetPolicy, BudgetState, Decision
from sickbay.domain.node import Severity


@dataclass(frozen=True)
class PermitAsk:
    """A repair asks to close a gate under a permit. Idempotent on `repair_id`.

    `at` is when it asked: part of the record's identity, so that it is recorded once.
    """

    repair_id: str
    workflow_id: str
    node: str
    group: str
    severity: Severity
    hard: bool
    reason: str
    factors: dict[str, str]
    at: datetime | None = None


@dataclass(frozen=True)
class PermitDecided:
    """The budget's answer to a repair.

    Not granted: the repair has no place in the queue and asks again when it next looks.
    """

    repair_id: str
    granted: bool
    reason: str = ""
    place: int = 0
    permit_id: str = ""


@dataclass(frozen=True)
class GateClosed:
    """The repair tells when the scheduler had closed the gate: the window counts from then."""

    repair_id: str
    at: datetime


@dataclass(frozen=True)
class PermitAdopted:
    """A repair goes on whose gate was closed at `closed_at` under an earlier permit.

    The node is out already: nothing is asked, and no second closure is charged.
    """

    ask: PermitAsk
    closed_at: datetime


@dataclass(frozen=True)
class PermitReleased:
    """The repair no longer needs its permit or its place in the queue.

    `closed`: a gate was, or may have been, closed under it, so the closure stays in the window.
    `at` is when it was given back, as for an ask.
    """

    repair_id: str
    closed: bool = False
    at: datetime | None = None


@dataclass(frozen=True)
class WithholdAsk:
    """The scorer asks to keep new work off a node without a permit (unknown past its grace)."""

    node: str
    group: str
    reason: str
    hard: bool
    factors: dict[str, str]


@dataclass(frozen=True)
class WithholdEnded:
    """The reason to withhold a node ended by itself or was retracted."""

    node: str
    why: str


@dataclass(frozen=True)
class BudgetGrant:
    """A person lends `count` more closures to the present window."""

    count: int
    by: str
    reason: str


@dataclass(frozen=True)
class BudgetSwitch:
    """A person freezes or unfreezes a pool's budget."""

    by: str
    reason: str


@dataclass(frozen=True)
class BudgetView:
    """Answer of the budget's `status` query and of its updates."""

    pool: str
    nodes_on_record: int
    allowed: int
    window_s: float
    spent: int
    extra: int
    out: tuple[str, ...]
    withheld: tuple[str, ...]
    cap: int
    queue: tuple[str, ...]
    frozen_by: str | None
    storm_until: datetime | None
    refused: int
    granted: int


@dataclass(frozen=True)
class PermitEvent:
    """One row of the permit history."""

    pool: str
    repair_id: str
    node: str
    event: str
    at: datetime
    detail: str = ""


@dataclass(frozen=True)
class BudgetInput:
    """Argument of `PoolBudget`. `rows` is the state of the run before, on continue-as-new.

    `carried` is the same as earlier releases wrote it. `pending` and `events` are what that run
    had decided and not yet done or recorded.
    """

    pool: str
    nodes_on_record: int
    policy: BudgetPolicy
    reconcile_s: float = 3600.0
    carried: BudgetState | None = None
    rows: BudgetRows | None = None
    pending: tuple[Decision, ...] = ()
    events: tuple[PermitEvent, ...] = ()


@dataclass(frozen=True)
class WithholdRequest:
    """Close or open one node's gate without a permit, as decided by the budget."""

    pool: str
    node: str
    reason: str
    deadline: datetime


@dataclass(frozen=True)
class BudgetPage:
    """A page of the budget: how many nodes wait, and how many of them carry which factor."""

    key: str
    pool: str
    text: str
    failing: int = 0
    carriers: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReconcileRequest:
    """The permits a budget holds: repair id to workflow id."""

    pool: str
    permits: dict[str, str]


@dataclass(frozen=True)
class Recheck:
    """One queued ask whose present health is read again: was it seen well since `since`?"""

    repair_id: str
    node: str
    since: datetime
