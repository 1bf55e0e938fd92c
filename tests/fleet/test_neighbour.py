"""A slow link that only a run across two nodes sees, in a whole installation."""

from datetime import UTC, datetime

import pytest

from sickbay.contracts.repair import Fault, Work, WorkDone
from sickbay.domain.node import Category, Severity

SETTINGS = """
time_scale = 720

[simulator]
enabled = true
nodes = 12
pools = 1
group_size = 4
nodes_per_rack = 4
seed = 9
faults = 0
technician = false

[budget]
allowance = 4
cap = 4
max_out = 4

[policy]
available = ["reset", "reboot", "swap"]

[classes.h200x8]
nccl_network = "IB"

[classes.h200x8.floors]
nccl_busbw_gbps = 431
nccl_pair_busbw_gbps = 345
"""
BORROW = "sickbay:borrow:"


def borrows(f):
    """(node, mark, placed) of every borrow in the simulator's own log, in order."""
    return [
        (r["node"], r["mark"], r["kind"] == "gate_closed")
        for r in f.log()
        if r["kind"] in {"gate_closed", "gate_opened"} and r["mark"].startswith(BORROW)
    ]


def no_job_beside_a_borrow(f):
    """No job started on a node while a mark of a borrow stood there; none was ended for it."""
    lent = set()
    for row in f.log():
        if row["kind"] == "gate_closed" and row["mark"].startswith(BORROW):
            lent.add(row["node"])
            assert row["node"] != "n002"
        elif row["kind"] == "gate_opened" and row["mark"].startswith(BORROW):
            lent.discard(row["node"])
        elif row["kind"] in {"job_started", "job_evicted", "job_killed"}:
            assert row["node"] not in lent, row
        assert len(lent) <= 1, "one repair borrows one neighbour at a time"
    assert lent == set(), "every neighbour was given back"


def kill(f, name):
    """Kill -9 every process of this name; there must be one."""
    children = f.installation.processes.children
    assert any(c.name.startswith(name) and c.running for c in children)
    f.kill(name)


@pytest.mark.slow
@pytest.mark.timeout(280)
async def test_a_slow_link_is_blamed_on_its_node_and_the_neighbours_are_cleared(fleet):
    """Both workers are killed while a neighbour is out: it comes back all the same."""
    async with fleet(SETTINGS) as f:
        await f.inject("n002", "slow_link", "nic5")
        slow = Fault(
            id="slow-job-1",
            node="n002",
            observed_at=datetime.now(UTC),
            reason="slow_job",
            severity=Severity.MAJOR,
            category=Category.FABRIC,
            source="person",
            hard=False,
        )
        await f.repairs.report(slow, pool="pool-a")

        async def lent() -> bool:
            return bool(borrows(f))

        await f.until("a neighbour is borrowed", lent, within_s=90)
        kill(f, "workers.control")

        async def lent_again() -> bool:
            return sum(placed for _, _, placed in borrows(f)) > 1

        await f.until("another neighbour is borrowed", lent_again, within_s=90)
        kill(f, "workers.node")

        async def at_swap() -> bool:
            return await f.stage("n002") == "swap"

        await f.until("hands are asked for", at_swap, within_s=150)
        no_job_beside_a_borrow(f)
        first, second = [node for node, _, placed in borrows(f) if placed][:2]
        assert first != second
        group = {"n001", "n002", "n003", "n004"}
        assert not group & {node for node, _, _ in borrows(f)}
        runs = [r for r in f.log() if r["kind"] == "tool_run" and r["tool"] == "mpirun"]
        assert {r["node"] for r in runs} == {"n002"}
        rows = await f.rows()
        assert [n for n, r in rows.items() if r.stage is not None] == ["n002"]
        assert [n for n, r in rows.items() if not r.gate_open] == ["n002"]

        answer = await f.http.post(
            "/technician/work", json={"node": "n002", "slot": "nics", "work": "reseated"}
        )
        assert answer.status_code == 200
        await f.repairs.send("n002", "work_done", WorkDone(work=Work.RESEATED, by="ann"))

        async def returned() -> bool:
            row = (await f.rows())["n002"]
            return row.stage is None and row.gate_open

        await f.until("the node is proven and back", returned, within_s=120)
        no_job_beside_a_borrow(f)
        story = [f"{s.stage} {s.outcome}" for s in await f.repairs.history("n002")]
        assert story == [
            "permit granted",
            "drain drained",
            "diagnose confirmed",
            "reboot done",
            "prove failed",
            "swap work_done",
            "prove passed",
            "prove passed",
            "return returned",
        ]


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_a_link_inside_a_node_is_proven_by_measured_bandwidth_and_borrows_nobody(fleet):
    async with fleet(SETTINGS) as f:
        await f.inject("n003", "nvlink_down", "gpu2")

        async def returned() -> bool:
            rows = [r for r in f.log() if r["kind"] == "gate_opened"]
            return any(r["node"] == "n003" for r in rows)

        await f.until("the node is proven and back", returned, within_s=150)
        ran = [r["tool"] for r in f.log() if r["kind"] == "tool_run" and r["node"] == "n003"]
        assert [r["slot"] for r in f.log() if r["kind"] == "gpu_reset"] == ["gpu2"]
        assert ran.count("nvbandwidth") == ran.count("all_reduce_perf") == 3
        assert borrows(f) == []
