"""Usable compute: the share of GPU-time on nodes that are healthy and behind an open gate.

Bands sum to one: usable, sick behind an open gate, closed though healthy, out, unknown and planned
maintenance. The headline is shown with and without the last two.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise

from sickbay.domain.health import Standing


class Band(StrEnum):
    """Where a GPU's time went."""

    USABLE = "usable"
    SICK_OPEN = "sick_open"
    HEALTHY_CLOSED = "healthy_closed"
    OUT = "out"
    UNKNOWN = "unknown"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True)
class Span:
    """A state that held from `start` until `end` (None: still)."""

    start: datetime
    end: datetime | None
    value: bool | Standing


@dataclass(frozen=True)
class NodeTime:
    """One node's ledger: its GPUs, when its gate was open, and how it stood."""

    gpus: int
    gate: Sequence[Span]
    standing: Sequence[Span]
    maintenance: Sequence[Span] = ()


@dataclass(frozen=True)
class Usage:
    """GPU-seconds per band, and the headline."""

    gpu_seconds: Mapping[Band, float]

    @property
    def total(self) -> float:
        """GPU-seconds of all GPUs on record."""
        return sum(self.gpu_seconds.values())

    def share(self, band: Band) -> float:
        """A band's share of all GPU-time, 0 when there is none."""
        return self.gpu_seconds[band] / self.total if self.total else 0.0

    @property
    def usable(self) -> float:
        """The headline: usable compute of all GPUs on record."""
        return self.share(Band.USABLE)

    @property
    def usable_of_known(self) -> float:
        """The headline without the unknown and maintenance bands in the denominator."""
        known = self.total - self.gpu_seconds[Band.UNKNOWN] - self.gpu_seconds[Band.MAINTENANCE]
        return self.gpu_seconds[Band.USABLE] / known if known else 0.0


def usage(nodes: Sequence[NodeTime], *, start: datetime, end: datetime) -> Usage:
    """Integrate the ledgers over [start, end).

    Time before a node's first standing is unknown; time before its first gate row is not counted.
    Where spans overlap, the one that began last holds; of two that began together, the worse one.
    """
    total = dict.fromkeys(Band, 0.0)
    for node in nodes:
        for band, seconds in _bands(node, start=start, end=end).items():
            total[band] += seconds * node.gpus
    return Usage(total)


def _bands(node: NodeTime, *, start: datetime, end: datetime) -> dict[Band, float]:
    gate, standing, maintenance = (
        _Timeline.of(spans) for spans in (node.gate, node.standing, node.maintenance)
    )
    edges = {*gate.edges, *standing.edges, *maintenance.edges}
    cuts = sorted({t for t in edges if start < t < end} | ({start, end} if start < end else set()))
    bands = dict.fromkeys(Band, 0.0)
    for left, right in pairwise(cuts):
        is_open = gate.at(left)
        if is_open is None:
            continue
        band = _band(
            is_open=bool(is_open), stands=standing.at(left), planned=bool(maintenance.at(left))
        )
        bands[band] += (right - left).total_seconds()
    return bands


def _band(*, is_open: bool, stands: bool | Standing | None, planned: bool) -> Band:
    if planned:
        return Band.MAINTENANCE
    if stands is None or stands is Standing.UNKNOWN:
        return Band.UNKNOWN
    if stands is Standing.HEALTHY:
        return Band.USABLE if is_open else Band.HEALTHY_CLOSED
    return Band.SICK_OPEN if is_open else Band.OUT


@dataclass(frozen=True)
class _Timeline:
    """What held when, without overlap: `values[i]` from `edges[i]` until the next edge."""

    edges: tuple[datetime, ...]
    values: tuple[bool | Standing | None, ...]

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "_Timeline":
        """Resolve overlaps: the span that began last is on top of the heap."""
        waiting = sorted(spans, key=lambda s: s.start)
        edges = sorted({s.start for s in waiting} | {s.end for s in waiting if s.end is not None})
        heap: list[tuple[float, int, int]] = []
        values: list[bool | Standing | None] = []
        following = 0
        for edge in edges:
            while following < len(waiting) and waiting[following].start <= edge:
                span = waiting[following]
                heappush(heap, (-span.start.timestamp(), _BADNESS[span.value], following))
                following += 1
            while heap and _ended(waiting[heap[0][2]], edge):
                heappop(heap)
            values.append(waiting[heap[0][2]].value if heap else None)
        return cls(tuple(edges), tuple(values))

    def at(self, moment: datetime) -> bool | Standing | None:
        """What held at a moment, None where nothing is on record."""
        index = bisect_right(self.edges, moment) - 1
        return self.values[index] if index >= 0 else None


_BADNESS: Mapping[bool | Standing, int] = {
    False: 0,
    True: 1,
    Standing.QUARANTINED: 0,
    Standing.UNKNOWN: 1,
    Standing.DEGRADED: 2,
    Standing.HEALTHY: 3,
}


def _ended(span: Span, moment: datetime) -> bool:
    return span.end is not None and span.end <= moment
