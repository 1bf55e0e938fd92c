"""Reads the metrics page of each node over HTTP, many at once within a bound."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from sickbay.domain.power import Pulse

GATEWAY_ERRORS = frozenset({502, 503, 504})


@dataclass(frozen=True)
class Page:
    """One node's page as text, or None and why there is none."""

    node: str
    text: str | None
    error: str = ""
    pulse: Pulse = Pulse.UNKNOWN


class ExporterPages:
    """Metrics pages by node.

    Args:
        url_of: the page's URL by node id.
        client: an HTTP client; its owner closes it.
        at_once: most requests in flight.
        timeout_s: longest wait for one page. Its end is a silent page, never a fault.
        longest_bytes: a page beyond this is refused.
    """

    def __init__(
        self,
        url_of: Mapping[str, str],
        *,
        client: httpx.AsyncClient,
        at_once: int = 32,
        timeout_s: float = 10.0,
        longest_bytes: int = 8_000_000,
    ) -> None:
        self._url_of = url_of
        self._client = client
        self._free = asyncio.Semaphore(at_once)
        self._timeout_s = timeout_s
        self._longest_bytes = longest_bytes

    async def read(self, nodes: Sequence[str]) -> list[Page]:
        """One page per node asked, in the same order."""
        return list(await asyncio.gather(*(self._page(node) for node in nodes)))

    async def pulse(self, node: str) -> Pulse:
        """Whether the node's page answers. A gateway that cannot reach the node makes it silent."""
        return (await self._page(node)).pulse

    async def _page(self, node: str) -> Page:
        url = self._url_of.get(node)
        if url is None:
            return Page(node, None, "no page is configured for this node")
        async with self._free:
            try:
                answer = await self._client.get(url, timeout=self._timeout_s)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = f"{type(error).__name__}: {error}"
                away = isinstance(error, httpx.TransportError)
                return Page(node, None, why, Pulse.SILENT if away else Pulse.UNKNOWN)
        if answer.status_code != httpx.codes.OK:
            silent = answer.status_code in GATEWAY_ERRORS
            pulse = Pulse.SILENT if silent else Pulse.UNKNOWN
            return Page(node, None, f"HTTP {answer.status_code}", pulse)
        if len(answer.content) > self._longest_bytes:
            return Page(node, None, f"a page of {len(answer.content)} bytes is refused")
        return Page(node, answer.text, pulse=Pulse.ANSWERS)
