"""One signal source out of two readers: pages and kernel records of each node.

It knows neither of them: it is given two callables, so that any page and any journal go together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from sickbay.ports import KernelEntry, NodeSample


class PageAnswer(Protocol):
    """A page as text, or why there is none."""

    @property
    def node(self) -> str:
        """The node asked."""

    @property
    def text(self) -> str | None:
        """The page."""

    @property
    def error(self) -> str:
        """Why there is no page."""


class EntriesAnswer(Protocol):
    """New kernel records of a node."""

    @property
    def node(self) -> str:
        """The node asked."""

    @property
    def entries(self) -> tuple[KernelEntry, ...]:
        """The records."""


class Past(Protocol):
    """Reads the pages of the last minutes, where something remembers them."""

    async def __call__(
        self, nodes: Sequence[str], *, window_s: float, step_s: float, now: datetime
    ) -> Sequence[tuple[datetime, Sequence[PageAnswer]]]:
        """The pages at each past moment, oldest first."""


class NodeSignals:
    """A `SignalSource` made of a page reader and a journal reader.

    Args:
        pages: reads one page per node, in order.
        entries: reads new kernel records per node, in order; they are told once.
        clock: the present moment, UTC-aware.
        past: reads the pages of the last minutes; None where nothing remembers them.
    """

    def __init__(
        self,
        pages: Callable[[Sequence[str]], Awaitable[Sequence[PageAnswer]]],
        *,
        entries: Callable[[Sequence[str]], Awaitable[Sequence[EntriesAnswer]]],
        clock: Callable[[], datetime],
        past: Past | None = None,
    ) -> None:
        self._past = past
        self._pages = pages
        self._entries = entries
        self._clock = clock

    async def read(self, nodes: Sequence[str]) -> list[NodeSample]:
        """Page and new kernel records of each node, in the order asked."""
        pages, entries = await asyncio.gather(self._pages(nodes), self._entries(nodes))
        now = self._clock()
        records = {answer.node: answer.entries for answer in entries}
        return [
            NodeSample(p.node, now, p.text, error=p.error, events=records.get(p.node, ()))
            for p in pages
        ]

    async def read_events(self, nodes: Sequence[str]) -> list[NodeSample]:
        """New kernel records alone."""
        entries = await self._entries(nodes)
        now = self._clock()
        return [NodeSample(e.node, now, None, events=e.entries) for e in entries]

    async def read_window(
        self, nodes: Sequence[str], *, window_s: float, step_s: float
    ) -> list[list[NodeSample]]:
        """The pages of the last `window_s` seconds, oldest first; empty where nobody kept them.

        Raises:
            Unreachable: who keeps them does not answer.
        """
        if self._past is None:
            return []
        moments = await self._past(nodes, window_s=window_s, step_s=step_s, now=self._clock())
        return [[NodeSample(p.node, at, p.text, error=p.error) for p in ps] for at, ps in moments]
