"""Copies and collectives as checks: over scripted tools, and over the simulated fleet's own."""

import json
import os
from dataclasses import replace

import pytest

from sickbay.adapters.tool_checks import ToolCheckRunner
from sickbay.domain.node import Category, Node, Part, PartKind, Treatment
from sickbay.domain.proof import PAIR, Check, CheckName
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.simulator.config import JobLoad, SimulatorConfig
from sickbay.simulator.engine import Engine
from sickbay.simulator.install import install_tools
from sickbay.simulator.kinds import FaultKind
from sickbay.simulator.tool_socket import ToolSocket

COPIES = Check(CheckName.NVBANDWIDTH)
ALONE = Check(CheckName.NCCL_NODE)
FLOORS = {"nccl_busbw_gbps": 431.0, "nccl_pair_busbw_gbps": 345.0}
DEVICE = "#  Rank {:2d} Group  0 Pid 1 on {} device {:2d} [0000:1a:00] NVIDIA H200"
BLOCK = "  {us}  {gbps}  {gbps}  {wrong:>5}"


def devices(*hosts):
    """Rank lines: one GPU per host named."""
    seen = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    lines = (
        DEVICE.format(rank, host, gpu)
        for rank, (host, gpu) in enumerate(zip(hosts, seen, strict=True))
    )
    return "\n".join(lines)


def rows(gbps="440.00", *, wrong=0, hosts=("n001", "n001")):
    """One size of an all-reduce over these hosts."""
    blocks = [BLOCK.format(us="650.2", gbps=gbps, wrong=w) for w in (wrong, 0)]
    return "\n".join(
        (
            "# nThread 1 nGpus 1 minBytes 536870912 maxBytes 536870912 step: 2(factor)",
            devices(*hosts),
            "#       size         count      type   redop    root"
            + "     time   algbw   busbw #wrong" * 2,
            "#        (B)    (elements)                          "
            + "     (us)  (GB/s)  (GB/s)       " * 2,
            f"   536870912     134217728     float     sum      -1 {''.join(blocks)}",
            f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
            f"# Avg bus bandwidth    : {gbps}",
            "#",
        )
    )


HOST = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s) "
BETWEEN = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s) "
BOTH = ("n001", "n001", "n005", "n005")


def says(text, *, code=0):
    return f'echo "$0 $@" >>"$ROOM/calls"\ncat <<\'END\'\n{text}\nEND\nexit {code}'


async def run(env, check, node, *, floors=FLOORS, other=None, **more):
    runner = ToolCheckRunner(env, floors=floors, **more)
    return (await runner.run(check, node=node, deadline_s=20.0, neighbour=other)).reading


@pytest.fixture
def other(node):
    return replace(node, id="n005", group="g02")


@pytest.fixture
def nccl(tools, tmp_path):
    """`nccl(text)` puts the text behind both names that start a collective."""

    def write(text, *, code=0):
        env = tools(mpirun=says(text, code=code), all_reduce_perf=says(text, code=code))
        home = tmp_path / "bin"
        (home / "all-reduce-perf").rename(home / "all_reduce_perf")
        return env

    return write


@pytest.mark.parametrize(("gbps", "verdict"), [("440.00", Verdict.PASS), ("420.00", Verdict.FAIL)])
async def test_the_floor_of_one_node_decides(nccl, node, gbps, verdict):
    reading = await run(nccl(rows(gbps)), ALONE, node)
    assert reading.verdict is verdict
    if verdict is Verdict.FAIL:
        (finding,) = reading.hardware_findings()
        assert (finding.category, finding.part) == (Category.INTERCONNECT, None)


async def test_a_node_alone_runs_all_its_gpus_and_checks_each_value(nccl, node, tmp_path):
    await run(nccl(rows()), ALONE, node)
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.endswith("all_reduce_perf -b 512M -e 8G -f 2 -g 2 -c 1")


async def test_without_a_floor_the_run_and_its_data_are_proven_and_no_bandwidth(nccl, node):
    assert (await run(nccl(rows("1.00")), ALONE, node, floors={})).verdict is Verdict.PASS
    wrong = await run(nccl(rows(wrong=3)), ALONE, node, floors={})
    assert wrong.verdict is Verdict.FAIL
    assert [f.reason for f in wrong.hardware_findings()] == ["out_of_bounds"]


async def test_the_pair_has_its_own_floor_and_asks_for_a_boot_first(nccl, node, other, tmp_path):
    reading = await run(nccl(rows("372.00", hosts=BOTH)), PAIR, node, other=other)
    assert reading.verdict is Verdict.PASS
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert "mpirun -np 4 -H n001:2,n005:2 -x NCCL_DEBUG=INFO all_reduce_perf" in call
    assert call.endswith("-g 1 -c 1")
    slow = await run(nccl(rows("186.00", hosts=BOTH)), PAIR, node, other=other)
    (finding,) = slow.hardware_findings()
    assert (slow.verdict, slow.category) == (Verdict.FAIL, Category.FABRIC)
    assert (finding.treatment, finding.category) == (Treatment.REBOOT, Category.FABRIC)


async def test_the_floor_of_one_node_is_not_that_of_two(nccl, node, other):
    only = {"nccl_busbw_gbps": 431.0}
    reading = await run(nccl(rows("372.00", hosts=BOTH)), PAIR, node, other=other, floors=only)
    assert reading.verdict is Verdict.PASS


async def test_a_pair_asked_of_one_node_is_inconclusive(nccl, node):
    reading = await run(nccl(rows()), PAIR, node)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert [f.reason for f in reading.findings] == ["no_neighbour"]


async def test_c07_ranks_that_each_ran_alone_are_no_verdict_on_the_fabric(nccl, node, other):
    reading = await run(nccl(rows("0.00", hosts=BOTH)), PAIR, node, other=other)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reading.hardware_findings() == ()


async def test_c26_seven_of_eight_gpus_give_no_bandwidth_verdict(nccl, node, other):
    reading = await run(nccl(rows("120.00", hosts=BOTH[:3])), PAIR, node, other=other)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert any("n005 brings 1 GPUs, 2 are expected" in f.detail for f in reading.findings)


async def test_a_run_over_the_wrong_network_blames_no_hardware(nccl, node, other):
    line = "n001:1:1 [0] NCCL INFO Using network Socket\n"
    text = line + rows("8.00", hosts=BOTH)
    reading = await run(nccl(text), PAIR, node, other=other, nccl_network="IB")
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert FindingKind.CONFIGURATION in {f.kind for f in reading.findings}
    assert reading.hardware_findings() == ()


async def test_a_partner_that_cannot_be_reached_is_inconclusive(nccl, node, other):
    text = "ssh: connect to host n005 port 22: No route to host"
    reading = await run(nccl(text, code=1), PAIR, node, other=other)
    assert reading.verdict is Verdict.INCONCLUSIVE


def copies(*values):
    """A document over GPUs whose host copies have these values."""
    cases = [
        {"name": name, "status": "Passed", "bandwidth_description": HOST, "sum": 0,
         "bandwidth_matrix": [[f"{v:.2f}" for v in values]]}
        for name in ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
    ]  # fmt: skip
    n = len(values)
    between = [["N/A" if i == j else "370.00" for j in range(n)] for i in range(n)]
    cases += [
        {"name": f"device_to_device_memcpy_{way}_ce", "status": "Passed", "sum": 0,
         "bandwidth_description": BETWEEN,
         "bandwidth_matrix": between}
        for way in ("read", "write")
    ]  # fmt: skip
    listed = [f"{i}: NVIDIA H200 (00000000:{i + 10}:00)" for i in range(n)]
    return json.dumps({"nvbandwidth": {"GPU Device list": listed, "testcases": cases}})


@pytest.fixture
def five():
    parts = tuple(
        Part(f"gpu{i}", PartKind.GPU, f"GPU-{i}", f"S{i}", f"0000:{i + 10}:00") for i in range(5)
    )
    return Node("n001", "pool-a", "g01", "r01", "h200x5", parts)


async def test_a_gpu_far_below_its_peers_fails_without_any_floor(tools, five):
    env = tools(nvbandwidth=says(copies(55, 55, 54, 27, 55)))
    reading = await run(env, COPIES, five, floors={})
    assert reading.verdict is Verdict.FAIL
    assert [f.part for f in reading.hardware_findings()] == ["3"]
    assert "bandwidth_below_peers" in reading.why


async def test_what_is_slow_on_all_alike_takes_a_floor_to_see(tools, five):
    env = tools(nvbandwidth=says(copies(27, 27, 27, 27, 27)))
    assert (await run(env, COPIES, five, floors={})).verdict is Verdict.PASS
    floors = {"nvbandwidth_host_to_device_memcpy_ce_gbps": 48.0}
    reading = await run(env, COPIES, five, floors=floors)
    assert reading.verdict is Verdict.FAIL
    assert {f.part for f in reading.hardware_findings()} == {f"0000:{i + 10}:00" for i in range(5)}


async def test_the_distance_to_a_socket_is_no_fault(tools, five):
    env = tools(nvbandwidth=says(copies(55, 55, 55, 49, 49)))
    assert (await run(env, COPIES, five, floors={})).verdict is Verdict.PASS


async def test_c31_corrupt_data_fails_and_a_run_without_a_matrix_does_not(tools, five):
    text = (
        "Running device_to_device_memcpy_read_ce.\n"
        " Invalid value when checking the pattern at 0x7f0000000000\n"
        " Current offset : 128\n"
    )
    corrupt = await run(tools(nvbandwidth=says(text, code=1)), COPIES, five)
    assert corrupt.verdict is Verdict.FAIL
    assert [f.reason for f in corrupt.hardware_findings()] == ["data_corruption"]
    empty = await run(tools(nvbandwidth=says("nvbandwidth Version: v0.8")), COPIES, five)
    assert empty.verdict is Verdict.INCONCLUSIVE


# --- over the simulated fleet's own tools ---------------------------------------------------------


@pytest.fixture
async def fleet(tmp_path):
    """Two simulated nodes in this process, and their tools."""
    jobs = JobLoad(busy=0.0, median_h=1.0, sigma=0.0)
    engine = Engine(
        SimulatorConfig(dir=tmp_path / "sim", nodes=2, pools=1, jobs=jobs, time_scale=36_000)
    )
    socket = ToolSocket(engine)
    await socket.start()
    folder = install_tools(tmp_path / "sim")
    env = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "SICKBAY_SIM_NODE": "n001",
        "SICKBAY_SIM_SOCKET": str(tmp_path / "sim" / "tools.sock"),
    }
    yield engine, env, {n["node"]: _node(n) for n in engine.inventory()["nodes"]}
    await socket.stop()
    engine.close()


def _node(row):
    parts = tuple(
        Part(p["slot"], PartKind.GPU, p["uuid"], p["serial"], p["bus_id"]) for p in row["parts"]
    )
    return Node(row["node"], row["pool"], row["group"], row["rack"], row["node_class"], parts)


@pytest.mark.parametrize("sick", [None, "n001", "n002"])
async def test_over_the_fleet_a_slow_link_fails_the_pair_and_nothing_else(fleet, sick):
    engine, env, nodes = fleet
    if sick:
        engine.inject(sick, kind=FaultKind.SLOW_LINK, slot="nic2")
    one, two = nodes["n001"], nodes["n002"]
    assert (await run(env, COPIES, one)).verdict is Verdict.PASS
    assert (await run(env, ALONE, one)).verdict is Verdict.PASS
    reading = await run(env, PAIR, one, other=two, nccl_network="IB")
    assert reading.verdict is (Verdict.FAIL if sick else Verdict.PASS), reading.why


async def test_over_the_fleet_a_lost_gpu_is_no_bandwidth_verdict(fleet):
    engine, env, nodes = fleet
    engine.inject("n001", kind=FaultKind.OFF_BUS, slot="gpu3")
    for check in (COPIES, ALONE, PAIR):
        reading = await run(env, check, nodes["n001"], other=nodes["n002"])
        assert reading.verdict is Verdict.INCONCLUSIVE, (check, reading.why)
