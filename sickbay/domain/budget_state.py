"""What a budget knows: limits, asks, permits, closures in the window, withheld nodes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sickbay.domain.health import SOFT_REASON
from sickbay.domain.node import Severity

"""How the reason of a standing made of soft health begins."""


@dataclass(frozen=True)
class BudgetPolicy:
    """Limits of one pool; durations in seconds, already divided by the time scale.

    `allowance`, `cap` and `max_out` are absolute numbers that replace the fractions when set.
    Defaults are those of the design: 2 % per sliding hour, at least one; cap 10 %, at least three.
    `settle_s` is how long a page waits for more asks, so that it can name what they have in common.
    """

    fraction: float = 0.02
    window_s: float = 3600.0
    allowance: int | None = None
    cap_fraction: float = 0.10
    cap_minimum: int = 3
    cap: int | None = None
    max_out: int | None = None
    per_group: int = 1
    storm_factor: float = 3.0
    storm_window_s: float = 600.0
    cooldown_s: float = 1800.0
    settle_s: float = 0.0

    def allowed(self, nodes_on_record: int) -> int:
        """Closures one sliding window may hold; the next one is refused."""
        if self.allowance is not None:
            return self.allowance
        return max(1, math.floor(self.fraction * nodes_on_record))

    def closures(self, nodes_on_record: int) -> int:
        """Gates that may be closed automatically at once, withheld and quarantined together."""
        if self.cap is not None:
            return self.cap
        return max(self.cap_minimum, math.floor(self.cap_fraction * nodes_on_record))

    def out_at_once(self, nodes_on_record: int) -> int:
        """Nodes under a permit at once, never more than the cap."""
        cap = self.closures(nodes_on_record)
        return cap if self.max_out is None else min(cap, self.max_out)


@dataclass(frozen=True)
class Ask:
    """A repair that wants a permit. `hard` is a hard fail: it goes to the front and proceeds.

    `stale`: a person or a storm held it back, so its health is read again before it is granted.
    """

    repair_id: str
    workflow_id: str
    node: str
    group: str
    severity: Severity
    hard: bool
    reason: str
    asked_at: datetime
    factors: Mapping[str, str] = field(default_factory=dict)
    stale: bool = False

    @property
    def soft(self) -> bool:
        """Whether the reason is a standing made of soft health, which may end by itself."""
        return not self.hard and self.reason.startswith(SOFT_REASON)


@dataclass(frozen=True)
class Permit:
    """One grant: this node's gate may be closed for this repair."""

    repair_id: str
    workflow_id: str
    node: str
    group: str
    granted_at: datetime
    extra: bool = False


@dataclass(frozen=True)
class Spent:
    """One closure charged to the window. Without `closed_at` it cannot leave the window."""

    repair_id: str
    granted_at: datetime
    closed_at: datetime | None = None


@dataclass(frozen=True)
class Withheld:
    """A node kept from new work without a permit; `repair_id` when its repair waits for one."""

    node: str
    reason: str
    hard: bool
    since: datetime
    group: str = ""
    repair_id: str | None = None
    placed: bool = False
    factors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BudgetState:
    """All a budget knows; carried whole over continue-as-new.

    `turned_away` counts asks and marks refused for lack of room in the state; `orders` are the ids
    of people's latest orders, so that one asked twice is carried out once. `not_before`: when a
    node whose gate did not answer may be withheld again.
    """

    pool: str
    nodes_on_record: int
    permits: tuple[Permit, ...] = ()
    spent: tuple[Spent, ...] = ()
    queue: tuple[Ask, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    asked_at: tuple[datetime, ...] = ()
    extra: int = 0
    frozen_by: str | None = None
    frozen_reason: str = ""
    storm_until: datetime | None = None
    episode: int = 0
    episode_quiet_since: datetime | None = None
    paged: bool = False
    granted: int = 0
    refused: int = 0
    blocked_since: datetime | None = None
    turned_away: int = 0
    orders: tuple[str, ...] = ()
    not_before: Mapping[str, datetime] = field(default_factory=dict)

    def out(self) -> tuple[str, ...]:
        """Nodes that hold a permit."""
        return tuple(p.node for p in self.permits)

    def closed(self) -> frozenset[str]:
        """Nodes whose gate is, or may soon be, closed automatically."""
        return frozenset((*self.out(), *(w.node for w in self.withheld if w.placed)))


class Refusal(StrEnum):
    """Why an ask waits."""

    FROZEN = "frozen by a person"
    STORM = "storm: only hard fails proceed until it has been quiet"
    WINDOW = "the window's closures are spent"
    OUT = "as many nodes are out as the pool allows at once"
    GROUP = "another node of the same group is out"
    FULL = "the queue is full: ask again"
    RECOVERED = "its health has recovered: ask again if it has not"


class DecisionKind(StrEnum):
    """What the budget decided to do."""

    GRANT = "grant"
    WITHHOLD = "withhold"
    END_WITHHOLD = "end_withhold"
    PAGE = "page"
    REFUSE = "refuse"
    RECHECK = "recheck"


@dataclass(frozen=True)
class Decision:
    """One act the budget workflow carries out.

    A page carries how many nodes it is about (`failing`) and, per factor and value, how many of
    them have it (`carriers`). `since`: when a permit was granted, or after which moment health has
    to have been seen well.
    """

    kind: DecisionKind
    node: str = ""
    repair_id: str = ""
    workflow_id: str = ""
    text: str = ""
    failing: int = 0
    carriers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    since: datetime | None = None
