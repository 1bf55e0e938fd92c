"""Shapes of the fleet's sweep: what is compared, mended and removed, and how often."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """For how many seconds of the wall clock each kind of row is kept; None keeps it for ever."""

    kernel_events_s: float | None = None
    would_have_s: float | None = None
    health_changes_s: float | None = None
    evidence_s: float | None = None


@dataclass(frozen=True)
class SweepInput:
    """Argument of `FleetSweep`, and of the message that makes it sweep now."""

    every_s: float
    retention: Retention = Retention()


@dataclass(frozen=True)
class Pruned:
    """How many rows (and evidence files) a sweep removed."""

    kernel_events: int = 0
    would_have: int = 0
    health_changes: int = 0
    evidence: int = 0
