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
from pathlib import Path

import httpx

from sickbay.cli.installation import Installation
from sickbay.settings import Settings, load_settings
from sickbay.store.engine import Store, open_store
from sickbay.store.queries import fleet_rows
from sickbay.testing import judge

REPAIRS = 500
NODES = 128
SCALE = 720
SEED = 1
# Mostly what a reset or a reboot cures: it is the number of repairs that counts here.
WEIGHTS = {"remap_pending": 5, "ecc_uncorrectable": 5, "gsp_hang": 3, "off_bus": 3,
           "remap_failure": 1, "off_bus_cold": 1}  # fmt: skip
FAULTS_PER_H = 8.0
VICTIMS = ("workers.control", "workers.node", "temporal")
PAUSE_S = (6.0, 18.0)
POLL_S = 1.0
GIVE_UP_S = 1800.0


async def main() -> None:
    """Break nodes until so many repairs were begun, kill meanwhile, wait for the end, judge."""
    with tempfile.TemporaryDirectory() as name:
        installation = Installation(settings_in(Path(name)))
        processes = installation.processes
        try:
            await installation.start()
            # However often they are killed, they are started again.
            watching = asyncio.create_task(processes.watch())
            began = time.perf_counter()
            killed = await until_over(installation)
            took = time.perf_counter() - began
            watching.cancel()
            await say(installation, killed, took)
        finally:
            processes.stopping = True
            await installation.stop()


def settings_in(home: Path) -> Settings:
    """Budgets lifted, a technician who is quick, faults steadily."""
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
            "faults": REPAIRS,
            "faults_start_after_h": 2.0,
            "faults_until_h": 2.0 + REPAIRS / FAULTS_PER_H,
            "fault_weights": WEIGHTS,
            "node_processes": 2,
            "technician_h": 0.25,
        },
    )


async def until_over(installation: Installation) -> Counter[str]:
    """Kill at random while faults come; how often each kind was killed."""
    rng, killed = random.Random(SEED), Counter[str]()
    store = await open_store(installation.settings.store_url)
    ends_at, next_at = time.monotonic() + GIVE_UP_S, time.monotonic() + PAUSE_S[1]
    try:
        while time.monotonic() < ends_at:
            await asyncio.sleep(POLL_S)
            faults = [r for r in read(installation) if r["kind"].startswith("fault_")]
            if len(faults) >= REPAIRS and not await unfinished(installation, store):
                return killed
            if len(faults) < REPAIRS and time.monotonic() >= next_at:
                victim = rng.choice(VICTIMS)
                killed[victim] += kill(installation, victim)
                next_at = time.monotonic() + rng.uniform(*PAUSE_S)
    finally:
        await store.close()
    print(f"not over after {GIVE_UP_S:.0f} s")
    return killed


def kill(installation: Installation, victim: str) -> int:
    """Kill -9 each running process of this kind; it is forgiven, so that it is started again."""
    found = [c for c in installation.processes.children if c.name.startswith(victim)]
    for child in found:
        if child.running and child.pid is not None:
            child.restarts = 0
            os.kill(child.pid, 9)
    return len(found)


async def unfinished(installation: Installation, store: Store) -> list[str]:
    """Nodes with a repair, a closed gate or a fault that nobody mended."""
    busy = [f"{r.node}: {r.stage}" for r in await fleet_rows(store) if r.stage]
    place = installation.settings.simulator_dir / "simulator.json"
    async with httpx.AsyncClient(base_url=json.loads(place.read_text())["base_url"]) as http:
        rows = (await http.get("/scheduler/nodes")).json()
        truth = (await http.get("/truth")).json()["faults"]
    shut = [f"{r['node']}: {r['marks']}" for r in rows if r["marks"]]
    return [*busy, *shut, *(f"{t['node']}: {t['kind']}" for t in truth)]


def read(installation: Installation) -> list[dict[str, object]]:
    """The simulated fleet's own log."""
    return judge.read_log(installation.settings.simulator_dir)


async def say(installation: Installation, killed: Counter[str], took_s: float) -> None:
    """Print what was found, with every finding."""
    store = await open_store(installation.settings.store_url)
    lost = await unfinished(installation, store)
    await store.close()
    log = read(installation)
    begun = sum(r["kind"] == "gate_closed" for r in judge.moves(log))
    doubled = judge.doubled(log, judge.asked_of(installation.settings.state_dir))
    returns, undrained = judge.judge_returns(log), judge.undrained(log)
    deaths = ", ".join(f"{what} {count}" for what, count in sorted(killed.items()))
    print(f"{begun} repairs on {NODES} nodes in {took_s:.0f} s; killed: {deaths}")
    print(
        f"lost {len(lost)}, doubled {len(doubled)}, returned unproven {len(returns.unproven)} "
        f"(of {returns.proven + len(returns.unproven)}), acts on undrained nodes {len(undrained)}"
    )
    for wrong in (*lost, *doubled, *returns.unproven, *undrained):
        print(f"  {wrong}")
