"""The health tuple and the standing that hysteresis makes of it."""

from dataclasses import dataclass
from enum import StrEnum

from sickbay.domain.node import Category

HARD_FAIL = "hard_fail:"
SOFT_REASON = "min:"
NO_FRESH_DATA = "no_fresh_data"


class Standing(StrEnum):
    """Where a node stands after hysteresis; unlike a stage, it exists for every node."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    QUARANTINED = "quarantined"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Health:
    """Health of one node or part.

    `value` is 0…1 or None for unknown; `confidence` 0…1 is fresh wanted signals over wanted ones;
    `reason` is `hard_fail:<code>`, `min:<category>` or `no_fresh_data`; `signal` is the argmin;
    `part` the slot that carries it; `detail` is for people only.
    """

    value: float | None
    confidence: float
    worst: Category | None
    reason: str
    signal: str | None = None
    part: str | None = None
    detail: str = ""

    @property
    def is_hard_fail(self) -> bool:
        """Whether a fatal signal decided the value."""
        return self.reason.startswith(HARD_FAIL)


UNKNOWN_HEALTH = Health(value=None, confidence=0.0, worst=None, reason=NO_FRESH_DATA)
