"""A small client of the simulated fleet's own switches: inventory, faults, technician, log."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from sickbay.errors import Refused, Unreachable
from sickbay.simulator.bmc.behaviours import Behaviour
from sickbay.simulator.kinds import FaultKind, Work


@dataclass(frozen=True)
class InventoryPart:
    """One part as the asset list has it."""

    slot: str
    kind: str
    uuid: str
    serial: str
    bus_id: str


@dataclass(frozen=True)
class InventoryNode:
    """One node as the asset list has it."""

    node: str
    pool: str
    group: str
    rack: str
    node_class: str
    parts: tuple[InventoryPart, ...]


@dataclass(frozen=True)
class NewPart:
    """What a technician put in, and the serial number of what came out."""

    old_serial: str
    serial: str
    uuid: str


class SimulatorClient:
    """Talks to a running simulated fleet.

    Args:
        base_url: where it listens.
        client: an HTTP client; its owner closes it.

    Every method raises `Refused` with the simulator's own sentence when it says no, and
    `Unreachable` when it does not answer.
    """

    def __init__(self, base_url: str, *, client: httpx.AsyncClient) -> None:
        self._base_url = base_url.rstrip("/")
        self._client = client

    def metrics_url(self, node: str) -> str:
        """Where the node's exporter page is."""
        return f"{self._base_url}/nodes/{node}/metrics"

    def entries_url(self, node: str) -> str:
        """Where the node's journal is."""
        return f"{self._base_url}/nodes/{node}/entries"

    async def inventory(self) -> tuple[InventoryNode, ...]:
        """All nodes with their parts."""
        data = await self._get("/inventory")
        return tuple(
            InventoryNode(**{**n, "parts": tuple(InventoryPart(**p) for p in n["parts"])})
            for n in data["nodes"]
        )

    async def kinds(self) -> Mapping[str, str]:
        """The fault kinds and what each one means."""
        return {row["kind"]: row["says"] for row in await self._get("/faults/kinds")}

    async def inject(
        self, node: str, *, kind: FaultKind | str, slot: str | None = None
    ) -> Mapping[str, Any]:
        """Break something now: id, node, slot and kind of the fault."""
        body = {"node": node, "kind": str(kind)} | ({"slot": slot} if slot else {})
        answer: Mapping[str, Any] = await self._post("/faults", body)
        return answer

    async def replace(self, node: str, *, slot: str) -> NewPart:
        """Put a new part into a slot."""
        return NewPart(**await self._post("/technician/replace", {"node": node, "slot": slot}))

    async def work(self, node: str, *, slot: str, work: Work | str) -> None:
        """Work on a part that stays in."""
        await self._post("/technician/work", {"node": node, "slot": slot, "work": str(work)})

    async def misbehave(
        self, node: str, *, fault: Behaviour | str, **how: str | float
    ) -> Mapping[str, Any]:
        """Let the node's management controller misbehave; what is set now.

        Args:
            node: the node.
            fault: how it misbehaves.
            **how: `times`, `act`, `status`, `minutes`, `needs`, `hang_s` of the misbehaviour.
        """
        answer: Mapping[str, Any] = await self._post(
            "/bmc-faults", {"node": node, "fault": str(fault), **how}
        )
        return answer

    async def behave(self, node: str, *, fault: Behaviour | str | None = None) -> int:
        """Take away one misbehaviour of a node, or all; how many there were."""
        body = {"node": node} | ({"fault": str(fault)} if fault else {})
        return int((await self._post("/bmc-faults/clear", body))["cleared"])

    async def images(self) -> list[dict[str, Any]]:
        """The firmware images there are, with file and digest."""
        rows: list[dict[str, Any]] = await self._get("/firmware")
        return rows

    async def log(self, *, after: int = 0) -> list[dict[str, Any]]:
        """The rows of the simulator's own log behind a row number."""
        rows: list[dict[str, Any]] = await self._get(f"/log?after={after}")
        return rows

    async def truth(self) -> Mapping[str, Any]:
        """What is really wrong now: for tests and reports only."""
        answer: Mapping[str, Any] = await self._get("/truth")
        return answer

    async def _get(self, path: str) -> Any:
        return await self._send("GET", path, None)

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._send("POST", path, body)

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            answer = await self._client.request(method, self._base_url + path, json=body)
        except httpx.HTTPError as error:
            raise Unreachable(
                f"the simulated fleet does not answer: {type(error).__name__} {error}".rstrip()
            ) from error
        if answer.is_error:
            raise Refused(_sentence(answer))
        return answer.json()


def _sentence(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}: {answer.text[:200]}"
