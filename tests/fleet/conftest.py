"""A whole installation in a temporary directory: real Temporal, simulator, workers as processes."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sickbay.cli.installation import Installation
from sickbay.client import TemporalRepairs, connect
from sickbay.settings import Settings, load_settings
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords

POLL_S = 0.2


@dataclass
class Fleet:
    """A running installation and the ways into it a test needs."""

    installation: Installation
    settings: Settings
    http: httpx.AsyncClient
    records: StoreRecords
    repairs: TemporalRepairs

    def log(self) -> list[dict[str, Any]]:
        """The simulator's own log, complete lines only."""
        path = self.settings.simulator_dir / "log.jsonl"
        rows = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        return rows

    async def inject(self, node: str, kind: str, slot: str | None = None) -> None:
        """Break a node."""
        body = {"node": node, "kind": kind, **({"slot": slot} if slot else {})}
        answer = await self.http.post("/faults", json=body)
        assert answer.status_code < 300, answer.text

    async def stage(self, node: str) -> str | None:
        """The stage of the node's running repair, None when none runs."""
        rows = await self.rows()
        return rows[node].stage

    async def rows(self) -> dict[str, Any]:
        """The fleet as the console shows it, by node."""
        from sickbay.store.queries import fleet_rows

        return {row.node: row for row in await fleet_rows(self.records.store)}

    async def until(
        self, what: str, condition: Callable[[], Awaitable[bool]], *, within_s: float
    ) -> None:
        """Wait for a condition with a deadline."""
        ends_at = time.monotonic() + within_s
        while time.monotonic() < ends_at:
            if await condition():
                return
            await asyncio.sleep(POLL_S)
        tails = {c.name: c.last_lines(8) for c in self.installation.processes.children}
        pytest.fail(f"not within {within_s:.0f} s: {what}\n{json.dumps(tails, indent=1)}")

    def kill(self, name: str) -> None:
        """Kill -9 one process kind that this installation started."""
        for child in self.installation.processes.children:
            if child.name.startswith(name) and child.pid is not None and child.running:
                os.kill(child.pid, 9)


@pytest.fixture
def fleet(tmp_path: Path, temporal_cli: Path):
    """A context manager that starts an installation with the given settings."""

    @asynccontextmanager
    async def start(settings_toml: str, *, watch: bool = True):
        config = tmp_path / "sickbay.toml"
        config.write_text(settings_toml, encoding="utf-8")
        settings = load_settings(
            config,
            state_dir=str(tmp_path / "state"),
            temporal__port=0,
            temporal__ui_port=0,
        )
        installation = Installation(settings)
        watcher = None
        try:
            await installation.start()
            if watch:
                watcher = asyncio.create_task(installation.processes.watch())
            settings = installation.settings
            base = json.loads((settings.simulator_dir / "simulator.json").read_text())["base_url"]
            store = await open_store(settings.store_url)
            client = await connect(settings.temporal.address, namespace="default", wait_s=20)
            async with httpx.AsyncClient(base_url=base, timeout=10) as http:
                running = Fleet(
                    installation,
                    settings,
                    http,
                    StoreRecords(store),
                    TemporalRepairs(client, policy_of=settings.repair_policy),
                )

                async def booked() -> bool:
                    rows = await running.rows()
                    return bool(rows) and all(r.health for r in rows.values())

                await running.until("the fleet is booked and scored", booked, within_s=60)
                yield running
            await store.close()
        finally:
            installation.processes.stopping = True
            if watcher is not None:
                watcher.cancel()
            await installation.stop()

    return start
