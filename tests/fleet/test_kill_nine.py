"""kill -9 of each process kind, with a node in each stage: all come back, nothing acts twice."""

import asyncio

import pytest

SETTINGS = """
time_scale = 120

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
# One node held in each stage by what it waits for, or met there while it lasts.
FAULTS = {
    "n001": ("gsp_hang", "drain"),
    "n002": ("ecc_uncorrectable", "reset"),
    "n003": ("off_bus", "reboot"),
    "n004": ("remap_failure", "swap"),
    "n005": ("remap_pending", "prove"),
}
ACTS = {"gpu_reset", "reboot", "part_replaced"}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["workers.control", "workers.node", "temporal"])
async def test_killed_while_five_nodes_are_in_five_stages(fleet, victim):
    async with fleet(SETTINGS.format(processes="")) as f:
        seen: dict[str, set[str]] = {node: set() for node in FAULTS}
        killed_at: set[str] = set()
        for node, (kind, _) in FAULTS.items():
            await f.inject(node, kind, "gpu2")

        async def walk() -> bool:
            rows = await f.rows()
            for node, (_, stage) in FAULTS.items():
                now = rows[node].stage
                if now and now not in seen[node]:
                    seen[node].add(now)
                if now == stage and node not in killed_at:
                    killed_at.add(node)
                    f.kill(victim)
                    await asyncio.sleep(1.0)
                if now == "swap" and "swapped" not in seen[node]:
                    await swap(f, node, seen)
            return all(returned(f, n) for n in FAULTS)

        await f.until("all five nodes return", walk, within_s=270)
        assert killed_at == set(FAULTS), f"met only {sorted(killed_at)} in their stage"
        assert_each_act_happened_once(f)


def returned(f, node) -> bool:
    gates = [r["kind"] for r in f.log() if r.get("node") == node and "gate" in r["kind"]]
    return bool(gates) and gates[-1] == "gate_opened"


async def swap(f, node, seen):
    from sickbay.contracts.repair import PartReplaced
    from sickbay.errors import SickbayError

    parts = (await f.http.get("/inventory")).json()["nodes"]
    serial = next(p["serial"] for n in parts if n["node"] == node for p in n["parts"]
                  if p["slot"] == "gpu2")  # fmt: skip
    if "hands" not in seen[node]:
        seen[node].add("hands")
        answer = await f.http.post("/technician/replace", json={"node": node, "slot": "gpu2"})
        serial = answer.json()["serial"]
    try:
        await f.repairs.send(node, "part_replaced", PartReplaced("gpu2", serial, "chaos"))
        seen[node].add("swapped")
    except SickbayError:
        return


def assert_each_act_happened_once(f):
    """Acts the machine saw are as many as the operations the repairs asked for."""
    import sqlite3

    wanted: dict[str, int] = {}
    for node in FAULTS:
        journal = f.settings.state_dir / "nodes" / node / "journal.db"
        with sqlite3.connect(journal) as db:
            rows = db.execute("select operation_id from operations").fetchall()
        for (op,) in rows:
            verb = op.rsplit("-", maxsplit=1)[-1]
            wanted[f"{node}/{verb}"] = wanted.get(f"{node}/{verb}", 0) + 1
    seen: dict[str, int] = {}
    for row in f.log():
        if row["kind"] in {"gpu_reset", "reboot"} and row["node"] in FAULTS:
            verb = row["kind"].removeprefix("gpu_")
            seen[f"{row['node']}/{verb}"] = seen.get(f"{row['node']}/{verb}", 0) + 1
    assert seen == wanted
    assert seen, "no act was seen at all"
