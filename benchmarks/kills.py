"""Five hundred repairs while processes are killed at random: lost, doubled, returned unproven.

A whole installation as `sickbay up` starts it, budgets lifted; kill -9 of the control worker, of a
node worker's process and of Temporal by a seeded schedule. Judged by the simulated fleet's own log.
"""

import asyncio
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sickbay.cli.installation import Installation
from sickbay.settings import Settings, load_settings
from sickbay.store.engine import Store, open_store
from sickbay.store.queries import fleet_rows
from sickbay.testing import judge

REPAIRS = 500
NODES = 48
SCALE = 720
SEED = 1
# Mostly what a reset or a reboot cures: it is the number of repairs that counts here.
KINDS = {
    "remap_pending": 5,
    "ecc_uncorrectable": 5,
    "gsp_hang": 3,
    "off_bus": 3,
    "remap_failure": 1,
    "off_bus_cold": 1,
}
AT_ONCE = 16
VICTIMS = ("workers.control", "workers.node", "temporal")
# One kind is killed each time so many more nodes were broken, however fast the machine is.
BETWEEN_KILLS = (4, 12)
POLL_S = 1.0
# A slow machine breaks fewer nodes, and still waits for the end of all repairs.
BREAK_FOR_S = 1800.0
GIVE_UP_S = 2700.0


async def main() -> None:
    """Break nodes until so many were repaired, kill meanwhile, wait for the end, judge."""
    with tempfile.TemporaryDirectory() as name:
        installation = Installation(settings_in(Path(name)))
        processes = installation.processes
        try:
            await installation.start()
            watching = asyncio.create_task(processes.watch())
            place = installation.settings.simulator_dir / "simulator.json"
            base = json.loads(place.read_text(encoding="utf-8"))["base_url"]
            store = await open_store(installation.settings.store_url)
            async with httpx.AsyncClient(base_url=base) as http:
                run = Run(installation, store, http)
                await run.until_over()
                await run.say()
            await store.close()
            watching.cancel()
        finally:
            processes.stopping = True
            await installation.stop()


def settings_in(home: Path) -> Settings:
    """Budgets lifted, a technician who is quick, no faults but ours."""
    budget = {"allowance": NODES, "cap": NODES, "max_out": NODES, "per_group": 4}
    return load_settings(
        None,
        environ={},
        time_scale=SCALE,
        state_dir=str(home / "state"),
        temporal={"port": 0, "ui_port": 0},
        budget={**budget, "storm_factor": 1e9},
        simulator={
            "enabled": True,
            "nodes": NODES,
            "pools": 2,
            "seed": SEED,
            "node_processes": 2,
            "technician_h": 0.25,
        },
    )


@dataclass
class Run:
    """One run: what was broken, what was killed, and what became of it."""

    installation: Installation
    store: Store
    http: httpx.AsyncClient
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    killed: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    over: bool = False
    began: float = field(default_factory=time.monotonic)

    async def until_over(self) -> None:
        """As many sick nodes at once as wanted, kills at random, then the end of all repairs."""
        next_at = AT_ONCE
        while time.monotonic() < self.began + GIVE_UP_S and not self.over:
            await asyncio.sleep(POLL_S)
            sick = await self.sick()
            if self.broken < REPAIRS and time.monotonic() < self.began + BREAK_FOR_S:
                await self.break_some(sick)
                if self.broken >= next_at:
                    self.kill(self.rng.choice(VICTIMS))
                    next_at = self.broken + self.rng.randint(*BETWEEN_KILLS)
            else:
                self.over = not sick

    async def break_some(self, sick: Mapping[str, str]) -> None:
        """Break healthy nodes until enough are sick."""
        names = [r.node for r in await fleet_rows(self.store) if r.node not in sick]
        self.rng.shuffle(names)
        for node in names[: max(AT_ONCE - len(sick), 0)]:
            kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
            answer = await self.http.post("/faults", json={"node": node, "kind": kind})
            self.broken += answer.is_success

    def kill(self, victim: str) -> None:
        """Kill -9 the processes of one kind; each is started again however often it died."""
        for child in self.installation.processes.children:
            if child.name.startswith(victim) and child.running and child.pid is not None:
                child.restarts = 0
                os.kill(child.pid, 9)
                self.killed[victim] += 1

    async def sick(self) -> dict[str, str]:
        """Nodes with a fault that nobody mended, a closed gate or a repair, and which."""
        truth = (await self.http.get("/truth")).json()["faults"]
        rows = (await self.http.get("/scheduler/nodes")).json()
        found = {t["node"]: f"still has {t['kind']}" for t in truth}
        found |= {r["node"]: f"is held by {r['marks']}" for r in rows if r["marks"]}
        busy = [r for r in await fleet_rows(self.store) if r.stage]
        return found | {r.node: f"is at {r.stage}" for r in busy}

    async def say(self) -> None:
        """Print what was found, with every finding."""
        log = judge.read_log(self.installation.settings.simulator_dir)
        left = [f"{node} {why}" for node, why in (await self.sick()).items()]
        doubled = judge.doubled(log, judge.asked_of(self.installation.settings.state_dir))
        returns, undrained = judge.judge_returns(log), judge.undrained(log)
        deaths = ", ".join(f"{what} {count}" for what, count in sorted(self.killed.items()))
        took = time.monotonic() - self.began
        print(f"{self.broken} faults on {NODES} nodes in {took:.0f} s; killed: {deaths}")
        lost = "lost" if self.over else f"not over after {GIVE_UP_S:.0f} s, unfinished"
        print(
            f"{returns.proven} proven returns; {lost} {len(left)}, doubled {len(doubled)}, "
            f"returned unproven {len(returns.unproven)}, acts on undrained nodes {len(undrained)}"
        )
        for wrong in (*left, *doubled, *returns.unproven, *undrained):
            print(f"  {wrong}")
