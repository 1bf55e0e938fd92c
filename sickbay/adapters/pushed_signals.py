"""Adds what was pushed to what another source reads.

A push never makes a part seen: its line is added only to a page that speaks of the part, so that a
lost GPU stays lost whatever its job still says of it.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from sickbay.contracts.pushes import PushedEvent, PushedSignal
from sickbay.ports import KernelEntry, NodeSample

# A sender's transaction may end after one that began later; what is read twice is known as such.
OVERLAP_S = 60.0
# The part's own labels are not the sender's to give.
_LABEL = re.compile(r"^(?!UUID$|uuid$|gpu$|pci_bus_id$|GPU_I_ID$)[A-Za-z_][A-Za-z0-9_]*$")
_PLAIN = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Inner(Protocol):
    """The source that is added to."""

    async def read(self, nodes: Sequence[str]) -> list[NodeSample]:
        """One sample per node asked, in the same order."""

    async def read_events(self, nodes: Sequence[str]) -> list[NodeSample]:
        """New kernel records alone."""

    async def read_window(
        self, nodes: Sequence[str], *, window_s: float, step_s: float
    ) -> list[list[NodeSample]]:
        """The samples of the last seconds."""


class Inbox(Protocol):
    """Where pushes are kept."""

    async def events_since(
        self, nodes: Collection[str], *, received_after: datetime
    ) -> list[PushedEvent]:
        """The events of these nodes received after a moment."""

    async def signals_of(
        self, nodes: Collection[str], *, taken_after: datetime
    ) -> list[PushedSignal]:
        """The readings of these nodes taken after a moment."""


class WithPushes:
    """A `SignalSource` that reads another one and the inbox.

    Args:
        inner: the other source.
        inbox: where pushes are kept.
        metric_of: the metric name under which a signal's reading stands on a page.
        clock: the present moment, UTC-aware.
        fresh_s: a pushed reading older than this is none.
        back_s: how far the first look at the events goes back.
    """

    def __init__(
        self,
        inner: Inner,
        *,
        inbox: Inbox,
        metric_of: Mapping[str, str],
        clock: Callable[[], datetime],
        fresh_s: float = 120.0,
        back_s: float = 3600.0,
    ) -> None:
        self._inner = inner
        self._inbox = inbox
        self._metric_of = metric_of
        self._clock = clock
        self._fresh_s = fresh_s
        self._back_s = back_s
        self._read_at: dict[str, datetime] = {}

    async def read(self, nodes: Sequence[str]) -> list[NodeSample]:
        """The other source's samples, with what was pushed for each node."""
        samples = await self._inner.read(nodes)
        taken_after = self._clock() - timedelta(seconds=self._fresh_s)
        lines: dict[str, list[PushedSignal]] = {}
        for signal in await self._inbox.signals_of(nodes, taken_after=taken_after):
            lines.setdefault(signal.node, []).append(signal)
        events = await self._events(nodes)
        return [
            replace(
                sample,
                text=self._text(sample.text, lines.get(sample.node, ())),
                events=(*sample.events, *events.get(sample.node, ())),
            )
            for sample in samples
        ]

    async def read_events(self, nodes: Sequence[str]) -> list[NodeSample]:
        """New kernel records alone, the pushed ones among them."""
        events = await self._events(nodes)
        return [
            replace(sample, events=(*sample.events, *events.get(sample.node, ())))
            for sample in await self._inner.read_events(nodes)
        ]

    async def read_window(
        self, nodes: Sequence[str], *, window_s: float, step_s: float
    ) -> list[list[NodeSample]]:
        """What the other source remembers. Pushes are not remembered."""
        return await self._inner.read_window(nodes, window_s=window_s, step_s=step_s)

    async def _events(self, nodes: Sequence[str]) -> dict[str, list[KernelEntry]]:
        now = self._clock()
        first = now - timedelta(seconds=self._back_s)
        overlap = timedelta(seconds=OVERLAP_S)
        since = {node: self._read_at.get(node, first + overlap) - overlap for node in nodes}
        if not since:
            return {}
        out: dict[str, list[KernelEntry]] = {}
        for event in await self._inbox.events_since(nodes, received_after=min(since.values())):
            entry = KernelEntry(event.boot_id, event.monotonic_us, event.message, event.at)
            out.setdefault(event.node, []).append(entry)
        self._read_at.update(dict.fromkeys(nodes, now))
        return out

    def _text(self, page: str | None, signals: Sequence[PushedSignal]) -> str | None:
        if page is None:
            return None
        lines = [page] if page.endswith("\n") or not page else [page, "\n"]
        for signal in signals:
            metric, label = self._metric_of.get(signal.signal), f'"{signal.part}"'
            if metric is not None and signal.value is not None and label in page:
                told = {k: v for k, v in signal.labels.items() if _LABEL.match(k)}
                told = {**told, "UUID": signal.part}
                inside = ",".join(f'{k}="{v.translate(_PLAIN)}"' for k, v in told.items())
                lines.append(f"{metric}{{{inside}}} {signal.value!r}\n")
        return "".join(lines)
