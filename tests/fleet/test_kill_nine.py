"""kill -9 of each process kind, with a node in each stage: all come back, nothing acts twice."""

import asyncio
import contextlib
import sqlite3

import pytest

from sickbay.contracts.repair import PartReplaced
from sickbay.errors import SickbayError

SETTINGS = """
time_scale = 240

[simulator]
enabled = true
nodes = 20
pools = 1
group_size = 1
seed = 5
faults = 0
technician = false
{processes}

[budget]
allowance = 50
cap = 20
max_out = 20
"""
# A fault and the stage it is met in; the drain waits for a job's end, the swap for a technician.
STAGES = {
    "drain": "remap_pending",
    "reset": "ecc_uncorrectable",
    "reboot": "off_bus",
    "swap": "remap_failure",
    "prove": "gsp_hang",
}
SLOT = "gpu2"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["workers.control", "workers.node", "temporal"])
async def test_killed_while_five_nodes_are_in_five_stages(fleet, victim):
    async with fleet(SETTINGS.format(processes="")) as f:
        nodes = await choose_nodes(f)
        met: set[str] = set()
        hands: set[str] = set()
        reports: list[asyncio.Task[None]] = []
        for stage, node in nodes.items():
            await f.inject(node, STAGES[stage], SLOT)

        async def walk() -> bool:
            rows = await f.rows()
            for stage, node in nodes.items():
                if rows[node].stage == stage and stage not in met:
                    met.add(stage)
                    f.kill(victim)
                    await asyncio.sleep(0.5)
            if rows[nodes["swap"]].stage == "swap" and (not reports or reports[-1].done()):
                reports.append(asyncio.create_task(swap(f, nodes["swap"], hands)))
            return all(returned(f, node) for node in nodes.values())

        await f.until("all five nodes return", walk, within_s=270)
        await asyncio.gather(*reports)
        assert met == set(STAGES), f"met only {sorted(met)}"
        assert_each_act_happened_once(f, list(nodes.values()))


async def choose_nodes(f) -> dict[str, str]:
    """A node with a job for the drain, others for the rest."""
    answer: list[str] = []

    async def busy() -> bool:
        rows = (await f.http.get("/scheduler/nodes")).json()
        rows = rows["nodes"] if isinstance(rows, dict) else rows
        answer[:] = sorted(r["node"] for r in rows if r["jobs"])
        return bool(answer)

    await f.until("a node runs a job", busy, within_s=30)
    drain = answer[0]
    others = [n for n in sorted(await f.rows()) if n != drain]
    return {"drain": drain, **dict(zip(["reset", "reboot", "swap", "prove"], others, strict=False))}


def returned(f, node) -> bool:
    gates = [r["kind"] for r in f.log() if r.get("node") == node and "gate" in r["kind"]]
    return bool(gates) and gates[-1] == "gate_opened"


async def swap(f, node, hands):
    """Replace the part once, then report it until the repair takes the report."""
    inventory = (await f.http.get("/inventory")).json()["nodes"]
    mine = next(n for n in inventory if n["node"] == node)
    serial = next(p["serial"] for p in mine["parts"] if p["slot"] == SLOT)
    if node not in hands:
        hands.add(node)
        answer = await f.http.post("/technician/replace", json={"node": node, "slot": SLOT})
        serial = answer.json()["serial"]
    with contextlib.suppress(SickbayError):
        await f.repairs.send(node, "part_replaced", PartReplaced(SLOT, serial, "chaos"))


def assert_each_act_happened_once(f, nodes):
    """Acts the machine saw are as many as the operations the repairs asked for."""
    wanted: dict[str, int] = {}
    for node in nodes:
        journal = f.settings.state_dir / "nodes" / node / "journal.db"
        with sqlite3.connect(journal) as db:
            rows = db.execute("select operation_id from operations").fetchall()
        for (op,) in rows:
            verb = op.rsplit("-", maxsplit=1)[-1]
            wanted[f"{node}/{verb}"] = wanted.get(f"{node}/{verb}", 0) + 1
    seen: dict[str, int] = {}
    for row in f.log():
        if row["kind"] in {"gpu_reset", "reboot"} and row["node"] in nodes:
            verb = row["kind"].removeprefix("gpu_")
            seen[f"{row['node']}/{verb}"] = seen.get(f"{row['node']}/{verb}", 0) + 1
    assert seen == wanted
    assert seen, "no act was seen at all"
