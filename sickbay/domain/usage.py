"""Usable compute: the share of GPU-time on nodes that are healthy and behind an open gate.

Bands sum to one: usable, sick behind an open gate, closed though healthy, out, unknown and planned
maintenance. The headline is shown with and without the last two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
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

    gpu_seconds: dict[Band, float]

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
    """
    total = dict.fromkeys(Band, 0.0)
    for node in nodes:
        for band, seconds in _bands(node, start=start, end=end).items():
            total[band] += seconds * node.gpus
    return Usage(total)


def _bands(node: NodeTime, *, start: datetime, end: datetime) -> dict[Band, float]:
    spans = (*node.gate, *node.standing, *node.maintenance)
    edges = {start, end}
    for span in spans:
        edges |= {t for t in (span.start, span.end) if t is not None and start < t < end}
    cuts = sorted(edges)
    bands = dict.fromkeys(Band, 0.0)
    for left, right in pairwise(cuts):
        gate = _at(node.gate, left)
        if gate is None:
            continue
        bands[_band(node, gate=bool(gate), at=left)] += (right - left).total_seconds()
    return bands


def _band(node: NodeTime, *, gate: bool, at: datetime) -> Band:
    if _at(node.maintenance, at):
        return Band.MAINTENANCE
    standing = _at(node.standing, at)
    if standing is None or standing is Standing.UNKNOWN:
        return Band.UNKNOWN
    if standing is Standing.HEALTHY:
        return Band.USABLE if gate else Band.HEALTHY_CLOSED
    return Band.SICK_OPEN if gate else Band.OUT


def _at(spans: Sequence[Span], moment: datetime) -> bool | Standing | None:
    for span in spans:
        if span.start <= moment and (span.end is None or moment < span.end):
            return span.value
    return None
