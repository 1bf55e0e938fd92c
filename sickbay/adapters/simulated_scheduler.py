"""The scheduler of the simulated fleet, behind the Scheduler port.

Touches only the mark it is given. A request that was never sent is transient; one that was sent
and not answered is ambiguous, because it may have taken effect.
"""

from typing import Any

import httpx

from sickbay.contracts.steps import DrainResult, DrainState, Effect, Outcome
from sickbay.domain.gate import is_ours
from sickbay.errors import Unreachable


class SimulatedScheduler:
    """Talks to the fleet simulator's scheduler over HTTP."""

    def __init__(self, base_url: str, *, client: httpx.AsyncClient) -> None:
        self._base = f"{base_url}/scheduler/nodes"
        self._client = client

    async def close_gate(self, node: str, *, mark: str, reason: str) -> Effect:
        """Place our mark; placing it twice is once."""
        return await self._post(node, "drain", {"mark": mark, "reason": reason})

    async def open_gate(self, node: str, *, mark: str) -> Effect:
        """Take our mark away; a mark that is gone already is a success."""
        return await self._post(node, "resume", {"mark": mark}, gone_is_fine=True)

    async def evict(self, node: str, *, mark: str, reason: str) -> Effect:
        """End the jobs of a node that our mark closes."""
        return await self._post(node, "evict", {"mark": mark, "reason": reason})

    async def drain_state(self, node: str) -> DrainResult:
        """Drained only when a mark of ours stands, no job runs and the answer is whole."""
        try:
            row = await self._row(node)
            jobs = tuple(str(job["id"]) for job in row["jobs"])
            ours = any(is_ours(str(m["mark"])) for m in row["marks"])
            whole = row["node"] == node
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            return DrainResult(DrainState.UNKNOWN, detail=f"scheduler: {error!r}")
        if not whole:
            return DrainResult(DrainState.UNKNOWN, detail="the answer is about another node")
        if jobs:
            return DrainResult(DrainState.DRAINING, blocking=jobs)
        if not ours:
            return DrainResult(DrainState.UNKNOWN, detail="no mark of ours stands on the node")
        return DrainResult(DrainState.DRAINED)

    async def marks(self, node: str) -> tuple[tuple[str, str], ...]:
        """All marks on the node, ours and others'.

        Raises:
            Unreachable: the scheduler gives no whole answer.
        """
        try:
            row = await self._row(node)
            return tuple((str(m["mark"]), str(m["reason"])) for m in row["marks"])
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise Unreachable(
                f"scheduler: the marks of {node} cannot be read: {error!r}"
            ) from error

    async def _row(self, node: str) -> dict[str, Any]:
        answer = await self._client.get(f"{self._base}/{node}")
        answer.raise_for_status()
        return dict(answer.json())

    async def _post(
        self, node: str, verb: str, body: dict[str, str], *, gone_is_fine: bool = False
    ) -> Effect:
        try:
            answer = await self._client.post(f"{self._base}/{node}/{verb}", json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return Effect(Outcome.TRANSIENT, f"scheduler: {error!r}")
        except httpx.HTTPError as error:
            return Effect(Outcome.AMBIGUOUS, f"scheduler: {error!r}")
        if answer.is_success or (gone_is_fine and answer.status_code == httpx.codes.CONFLICT):
            return Effect(Outcome.SUCCEEDED)
        detail = f"scheduler: {answer.status_code} {answer.text[:200]}"
        return Effect(Outcome.TRANSIENT if answer.is_server_error else Outcome.PERMANENT, detail)
