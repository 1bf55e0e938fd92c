"""What is pushed to us rather than read by us, as it is kept until the scorer has read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class PushedEvent:
    """One record of a node's kernel log, told by whoever saw it first.

    `id` is the sender's: the same one again is the same event. (boot_id, monotonic_us, message) is
    what the scorer knows it by.
    """

    id: str
    node: str
    boot_id: str
    monotonic_us: int
    message: str
    at: datetime


@dataclass(frozen=True)
class PushedSignal:
    """One reading of one part. `part` is the part's UUID, `signal` a name of the rule set.

    `value` is None for a reading the sender could not take. `labels` say what the part did: job,
    role, pipeline stage, rank.
    """

    id: str
    node: str
    part: str
    signal: str
    value: float | None
    at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)
