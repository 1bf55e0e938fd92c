"""Queries of Prometheus' HTTP API, a few at once; a doubtful answer is no answer."""

import asyncio
from collections.abc import Mapping

import httpx

from sickbay.errors import Unreachable
from sickbay.readers.prometheus import Series, parse_answer


class Queries:
    """Instant and range queries.

    Args:
        url: where Prometheus is, with the prefix it is served under.
        client: an HTTP client that has the access; its owner closes it.
        at_once: most queries in flight.
        timeout_s: longest wait for one answer.
        longest_bytes: an answer beyond this is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        client: httpx.AsyncClient,
        at_once: int = 4,
        timeout_s: float = 10.0,
        longest_bytes: int = 128_000_000,
    ) -> None:
        self._url = url.rstrip("/")
        self._client = client
        self._free = asyncio.Semaphore(at_once)
        self._timeout_s = timeout_s
        self._longest_bytes = longest_bytes

    async def instant(self, query: str) -> tuple[Series, ...]:
        """The answer for now, by Prometheus' own clock. Raises `Unreachable`."""
        return await self._ask("query", {"query": query})

    async def over(
        self, query: str, *, start_s: float, end_s: float, step_s: float
    ) -> tuple[Series, ...]:
        """The answers at every step of a range (epoch seconds). Raises `Unreachable`."""
        limits = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        return await self._ask("query_range", {"query": query, **limits})

    async def now_s(self) -> float:
        """The time by Prometheus' own clock, in epoch seconds. Raises `Unreachable`."""
        (row,) = await self.instant("time()")
        return row.points[0][0]

    async def _ask(self, what: str, params: Mapping[str, str]) -> tuple[Series, ...]:
        async with self._free:
            try:
                async with asyncio.timeout(self._timeout_s):
                    status, body = await self._fetch(f"{self._url}/api/v1/{what}", params)
            except TimeoutError:
                why = f"no whole answer within {self._timeout_s:g} s"
                raise Unreachable(f"prometheus: {why}") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise Unreachable(f"prometheus: {type(error).__name__}: {error}") from error
        try:
            series = parse_answer(body)
        except ValueError as error:
            # Who refuses by its status says nothing that helps in a body that is not the API's.
            why = str(error) if status < httpx.codes.MULTIPLE_CHOICES else f"HTTP {status}: {error}"
            raise Unreachable(f"prometheus: {why}") from error
        if status != httpx.codes.OK:
            raise Unreachable(f"prometheus: HTTP {status}")
        return series

    async def _fetch(self, url: str, params: Mapping[str, str]) -> tuple[int, bytes]:
        async with self._client.stream(
            "GET", url, params=dict(params), timeout=self._timeout_s
        ) as answer:
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > self._longest_bytes:
                    raise Unreachable(f"prometheus: more than {self._longest_bytes} bytes")
            return answer.status_code, bytes(body)
