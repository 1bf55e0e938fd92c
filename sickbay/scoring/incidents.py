"""What happened on the nodes: events with a window, lasting states, and what was already reported.

A last-code gauge and the kernel line of the same occurrence are one event. Codes that follow from a
cause on the same node are attached to it. Nothing from before a node's last return counts again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.signal import JobNote, KernelRecord
from sickbay.scoring.ruleset import Times
from sickbay.scoring.xid import XidGate, XidLine, gate_of, is_consequence, meaning_of

TELEMETRY = "telemetry"
KERNEL_LOG = "kernel_log"
_RECORDS_KEPT = 50_000
_HARD, _SOFT = (XidGate.FATAL,), (XidGate.SOFT, XidGate.SUSPECT)


@dataclass(frozen=True)
class Incident:
    """One event or lasting state on one part.

    `occurrence` makes the id of its report; the same occurrence has the same one after a restart.
    `slot` is None when the part is not known.
    """

    node: str
    slot: str | None
    code: str
    gate: XidGate
    category: Category
    severity: Severity
    treatment: Treatment | None
    at: datetime
    source: str
    occurrence: str
    detail: str = ""
    consequence: bool = False

    @property
    def id(self) -> str:
        """The id of its report, the same for the same occurrence."""
        return f"{self.node}/{self.slot or 'node'}/{self.code}/{self.occurrence}"

    @property
    def hard(self) -> bool:
        """Whether this is a hard fail."""
        return self.gate is XidGate.FATAL


@dataclass
class NodeIncidents:
    """The open incidents of one node: events by (slot, code), lasting states by (slot, code)."""

    events: dict[tuple[str | None, str], Incident] = field(default_factory=dict)
    states: dict[tuple[str | None, str], Incident] = field(default_factory=dict)
    counts: dict[tuple[str | None, str], int] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    reported_at: dict[tuple[str | None, Category], datetime] = field(default_factory=dict)
    decoded: dict[tuple[str | None, str], datetime] = field(default_factory=dict)
    returned_at: datetime | None = None
    boot_id: str = ""

    @property
    def stamp(self) -> str:
        """Marks occurrences after the last return as other ones than those before."""
        return f"{self.returned_at.timestamp():.0f}" if self.returned_at else "0"

    def active(self, *, now: datetime, times: Times) -> list[Incident]:
        """Open incidents, the most telling first: causes before consequences, worst first."""
        limit = now - timedelta(seconds=times.event_window_s)
        self.events = {k: e for k, e in self.events.items() if e.at > limit}
        return sorted(
            (*self.events.values(), *self.states.values()),
            key=lambda i: (not i.hard, i.consequence, -i.severity.rank, i.at, i.code, i.slot or ""),
        )

    def set_state(self, state: Incident) -> None:
        """A lasting state holds; while it goes on it stays one occurrence."""
        key = (state.slot, state.code)
        if key not in self.states:
            self.counts[key] = self.counts.get(key, 0) + 1
            occurrence = f"{self.stamp}.{self.counts[key]}"
            self.states[key] = replace(state, occurrence=occurrence)

    def clear_state(self, slot: str | None, *, code: str) -> None:
        """A fresh reading says the state is over."""
        self.states.pop((slot, code), None)

    def after_return(self, at: datetime) -> None:
        """The node came back proven at that moment: what was before is over."""
        self.events = {k: i for k, i in self.events.items() if i.at > at}
        self.states = {k: i for k, i in self.states.items() if i.at > at}
        # What was seen but not told yet is still to be told.
        self.reported &= {i.id for i in (*self.events.values(), *self.states.values())}
        self.counts.clear()
        self.reported_at.clear()
        self.decoded.clear()
        self.returned_at = at


@dataclass
class Incidents:
    """The incidents of a pool and the notes for its jobs."""

    times: Times
    nodes: dict[str, NodeIncidents] = field(default_factory=dict)
    notes: list[JobNote] = field(default_factory=list)
    _seen: dict[tuple[str, str, int, str], None] = field(default_factory=dict)

    def of(self, node: str) -> NodeIncidents:
        """The incidents of one node."""
        return self.nodes.setdefault(node, NodeIncidents())

    def is_new(self, node: str, *, record: KernelRecord, now: datetime) -> bool:
        """Whether a record was not seen yet, is inside its window and after the last return."""
        key = (node, *record.identity)
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > _RECORDS_KEPT:
            for old in list(self._seen)[: _RECORDS_KEPT // 2]:
                del self._seen[old]
        returned = self.of(node).returned_at
        if returned is not None and record.at <= returned:
            return False
        return record.at > now - timedelta(seconds=self.times.event_window_s)

    def take_line(
        self, node: str, *, slot: str | None, line: XidLine, record: KernelRecord
    ) -> None:
        """Take one kernel line that carries an Xid; it outranks a gauge of the same occurrence."""
        here = self.of(node)
        key = (slot, f"xid_{line.code}")
        here.decoded[key] = record.at
        gate = gate_of(line)
        old = here.events.get(key)
        if old is not None and self._together(old.at, record.at):
            if old.hard or gate not in _HARD:
                if old.source == TELEMETRY and gate not in (*_HARD, *_SOFT):
                    del here.events[key]
                return
            del here.events[key]
        occurrence = f"{record.boot_id[:8]}.{record.monotonic_us}"
        self._add(
            here, node=node, slot=slot, code=line.code, gate=gate, at=record.at,
            source=KERNEL_LOG, occurrence=occurrence, pid=line.pid, text=line.text,
        )  # fmt: skip

    def take_gauge(self, node: str, *, slot: str, code: int, at: datetime) -> None:
        """Take one change of a last-code gauge, unless a kernel line already told it."""
        here = self.of(node)
        key = (slot, f"xid_{code}")
        told = here.decoded.get(key)
        old = here.events.get(key)
        if (told and self._together(told, at)) or (old and self._together(old.at, at)):
            return
        gate = gate_of(XidLine("", code, "", ""))
        self._add(
            here, node=node, slot=slot, code=code, gate=gate, at=at, source=TELEMETRY,
            occurrence=f"{here.stamp}.{at.timestamp():.0f}", pid="", text="last-code gauge changed",
        )  # fmt: skip

    def take_count(
        self, node: str, *, slot: str, code: str, category: Category, severity: Severity,
        treatment: Treatment | None, at: datetime, total: float,
    ) -> None:  # fmt: skip
        """A counter of which every growth is a hard fail has grown to `total`."""
        here = self.of(node)
        here.events[slot, code] = Incident(
            node, slot, code, XidGate.FATAL, category, severity, treatment, at, TELEMETRY,
            f"{here.stamp}.{total:.0f}", f"counter grew to {total:.0f}",
        )  # fmt: skip

    def _add(
        self, here: NodeIncidents, *, node: str, slot: str | None, code: int,
        gate: XidGate, at: datetime, source: str, occurrence: str, pid: str, text: str,
    ) -> None:  # fmt: skip
        if gate in {XidGate.APPLICATION, XidGate.UNKNOWN}:
            self.notes.append(JobNote(node, slot, f"xid_{code}", pid, at, text))
            return
        if gate is XidGate.NOTE or is_consequence(code, self._causes(here, at)):
            return
        meaning = meaning_of(code)
        here.events[slot, f"xid_{code}"] = Incident(
            node, slot, f"xid_{code}", gate, meaning.category, meaning.severity,
            meaning.treatment, at, source, occurrence, f"{meaning.says}: {text}"[:500],
        )  # fmt: skip

    def _causes(self, here: NodeIncidents, at: datetime) -> Iterable[int]:
        for event in here.events.values():
            if event.code.startswith("xid_") and self._together(event.at, at):
                yield int(event.code.removeprefix("xid_"))

    def _together(self, one: datetime, other: datetime) -> bool:
        return abs((one - other).total_seconds()) <= self.times.cause_window_s
