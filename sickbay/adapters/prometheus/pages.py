"""One metrics page per node out of Prometheus, now and over the last minutes.

A query that fails or is answered in part makes every node silent: which series are missing is not
known, and a missing one must not read as a lost GPU.
"""

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sickbay.adapters.prometheus.queries import Queries
from sickbay.errors import Unreachable
from sickbay.readers.prometheus import LabelMap, NodePage, Series, node_pages, up_by_node

DOWN = "prometheus cannot scrape the node's exporter (up is 0)"
EMPTY = "the node's exporter answers prometheus but speaks of no GPU"
ABSENT = "no target of prometheus names this node"


@dataclass(frozen=True)
class PrometheusPage:
    """One node's page as text, or None and why there is none."""

    node: str
    text: str | None
    error: str = ""


class PrometheusPages:
    """Pages by node.

    Args:
        queries: the way to Prometheus.
        metrics: the metric names wanted, as the rule set has them.
        named: what Prometheus calls a metric, where it is another name.
        matcher: label matchers for every query, e.g. `job="dcgm"`; empty for none.
        labels: which labels say what.
        stale_after_s: a sample older than this is no number.
    """

    def __init__(
        self,
        queries: Queries,
        *,
        metrics: Collection[str],
        named: Mapping[str, str] | None = None,
        matcher: str = "",
        labels: LabelMap | None = None,
        stale_after_s: float = 60.0,
    ) -> None:
        self._queries = queries
        chosen = {name: (named or {}).get(name, name) for name in sorted(metrics)}
        braces = f"{{{matcher}}}" if matcher else ""
        self._selectors = {name: f"{theirs}{braces}" for name, theirs in chosen.items()}
        self._up = f"up{braces}"
        self._labels = labels or LabelMap()
        self._stale_after_s = stale_after_s

    async def read(self, nodes: Sequence[str]) -> list[PrometheusPage]:
        """One page per node asked, in the same order."""
        try:
            values, sampled, up = await self._now()
        except Unreachable as error:
            return [PrometheusPage(node, None, error.message) for node in nodes]
        found = self._pages(values, sampled, instant=True).get(0.0, {})
        reached = up_by_node(up, labels=self._labels)
        return [self._page(node, found.get(node), reached.get(node)) for node in nodes]

    async def read_window(
        self, nodes: Sequence[str], *, window_s: float, step_s: float, now: datetime
    ) -> list[tuple[datetime, list[PrometheusPage]]]:
        """The pages of the last `window_s`, oldest first, by our clock (`now`, UTC-aware).

        The last step before now is left out: `read` tells it.

        Raises:
            Unreachable: Prometheus does not answer in full.
        """
        there_s = await self._queries.now_s()
        steps = max(1, int(window_s / step_s))
        start_s, end_s = there_s - steps * step_s, there_s - step_s

        async def ask(query: str) -> tuple[Series, ...]:
            return await self._queries.over(query, start_s=start_s, end_s=end_s, step_s=step_s)

        values = await _all({name: ask(s) for name, s in self._selectors.items()})
        sampled = await _all({n: ask(f"timestamp({s})") for n, s in self._selectors.items()})
        found = self._pages(values, sampled, instant=False)
        out = []
        for at_s, pages in sorted(found.items()):
            here = now.astimezone(UTC) + timedelta(seconds=at_s - there_s)
            out.append((here, [self._page(node, pages.get(node), None) for node in nodes]))
        return out

    async def _now(
        self,
    ) -> tuple[dict[str, tuple[Series, ...]], dict[str, tuple[Series, ...]], tuple[Series, ...]]:
        ask = self._queries.instant
        values = await _all({name: ask(s) for name, s in self._selectors.items()})
        sampled = await _all({n: ask(f"timestamp({s})") for n, s in self._selectors.items()})
        return values, sampled, await ask(self._up)

    def _pages(
        self,
        values: Mapping[str, Sequence[Series]],
        sampled: Mapping[str, Sequence[Series]],
        *,
        instant: bool,
    ) -> dict[float, dict[str, NodePage]]:
        return node_pages(
            values,
            sampled=sampled,
            labels=self._labels,
            stale_after_s=self._stale_after_s,
            instant=instant,
        )

    def _page(self, node: str, page: NodePage | None, up: bool | None) -> PrometheusPage:  # noqa: FBT001
        if page is None:
            why = ABSENT if up is None else EMPTY if up else DOWN
            return PrometheusPage(node, None, why)
        if page.youngest_s > self._stale_after_s:
            why = f"its newest sample in prometheus is {page.youngest_s:.0f} s old"
            return PrometheusPage(node, None, why)
        return PrometheusPage(node, page.text())


async def _all(
    asked: Mapping[str, Coroutine[Any, Any, tuple[Series, ...]]],
) -> dict[str, tuple[Series, ...]]:
    """All answers by name. Raises the first `Unreachable`, the other queries then end too."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(ask) for name, ask in asked.items()}
    except* Unreachable as errors:
        first = errors.exceptions[0]
        raise (first if isinstance(first, Unreachable) else Unreachable(str(first))) from None
    return {name: task.result() for name, task in tasks.items()}
