"""What was read of one node at one moment: pages, kernel records, and the ways to have no number.

A blank is never a number: a value that is not there is one of three absences, and none of them is
healthy, and none alone closes a gate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sickbay.domain.node import Category, Severity, Treatment


class Absence(StrEnum):
    """Why there is no number.

    `unsupported`: the part has no such thing, so it is not wanted. `unreadable`: the part has it
    and the source said it could not read it. `missing`: the source said nothing, or nonsense.
    """

    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"
    MISSING = "missing"


class SignalKind(StrEnum):
    """How a reading behaves over time; only the change of a counter is ever scored."""

    GAUGE = "gauge"
    COUNTER = "counter"
    EVENT = "event"
    CODE = "code"
    BITMASK = "bitmask"
    FLAG = "flag"


class Component(StrEnum):
    """What a signal belongs to."""

    GPU = "gpu"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class PartPage:
    """What a page says of one part: numbers by metric name, and why others are not there.

    `bus_id` is `dddd:bb:dd` in lower case, empty when the page does not give it.
    """

    uuid: str
    index: str = ""
    bus_id: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, Absence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record of a node's kernel log; (boot id, monotonic_us, message) is its identity."""

    boot_id: str
    monotonic_us: int
    message: str
    at: datetime

    @property
    def identity(self) -> tuple[str, int, str]:
        """The key under which a record printed twice is one record."""
        return (self.boot_id, self.monotonic_us, self.message)


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """One answer about one node.

    `parts` is None when no page was had: `asked` then tells a silent page from one that nobody
    asked for, because only a silent page makes a node unknown.
    """

    node: str
    at: datetime
    parts: tuple[PartPage, ...] | None = None
    asked: bool = True
    error: str = ""
    records: tuple[KernelRecord, ...] = ()


@dataclass(frozen=True)
class ScoredFinding:
    """One thing the scorer wants repaired.

    `id` is the same for the same occurrence on the same part, also after the scorer restarted.
    `source` is the kind of evidence: `telemetry` or `kernel_log`. `treatment` is the first rung.
    """

    id: str
    node: str
    observed_at: datetime
    reason: str
    severity: Severity
    category: Category
    source: str
    hard: bool
    slot: str | None = None
    part_uuid: str | None = None
    treatment: Treatment | None = None
    detail: str = ""


@dataclass(frozen=True)
class JobNote:
    """An error that belongs to a job, not to the node it ran on."""

    node: str
    slot: str | None
    code: str
    pid: str
    at: datetime
    text: str
