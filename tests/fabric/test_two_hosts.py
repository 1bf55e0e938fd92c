"""Hosts as network namespaces, a real Open MPI between them: the slowed host is the one blamed.

No GPU is in it: the collective is a small MPI program that prints as nccl-tests does. Real are the
launcher, the network between the hosts, the bandwidth, the reader, the floor and the blame.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sickbay.adapters.tool_checks import PAIR_FLOOR, ToolCheckRunner
from sickbay.domain.blame import PairRun, blame_pairs
from sickbay.domain.node import Category, Node, Part, PartKind
from sickbay.domain.proof import PAIR
from sickbay.domain.reading import Verdict

PROGRAM = Path(__file__).with_name("all_reduce.c")
HOSTS = tuple(f"10.77.31.{number}" for number in (1, 2, 3))
SOUND, SLOW = "800mbit", "100mbit"
# Between the two: a sound pair moves about 0.09 GB/s, one with a slowed host about 0.012.
FLOOR_GBPS = 0.03
MPI = (
    "--allow-run-as-root", "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "btl", "tcp,self",
    "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
    "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1",
)  # fmt: skip
AGENT = """#!/bin/sh
while case "$1" in -*) true;; *) false;; esac; do shift; done
host=$1; shift
exec ip netns exec {prefix}${{host##*.}} /bin/sh -c "$*"
"""


def sh(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout


def has_parts():
    tools = all(map(shutil.which, ("ip", "tc", "mpirun", "mpicc")))
    return tools and os.geteuid() == 0 and _namespaces()


def _namespaces():
    return subprocess.run(["unshare", "-n", "true"], check=False, timeout=10).returncode == 0


pytestmark = pytest.mark.skipif(
    not has_parts(), reason="needs root, network namespaces, tc and Open MPI (openmpi-bin, -dev)"
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The collective, compiled, under the name that the check starts."""
    home = tmp_path_factory.mktemp("mpi")
    sh("mpicc", "-O2", "-o", str(home / "all_reduce_perf"), str(PROGRAM))
    return home


@pytest.fixture
def hosts(tmp_path, tools):
    """Three hosts on one switch; `slow(host)` lowers the rate of one."""
    prefix = f"sb{os.getpid() % 100_000}-"
    switch = f"{prefix}sw"
    names = {host: f"{prefix}{host.rpartition('.')[2]}" for host in HOSTS}
    made = []
    try:
        sh("ip", "netns", "add", switch)
        made.append(switch)
        sh("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", switch, "link", "set", "br0", "up")
        for host, name in names.items():
            sh("ip", "netns", "add", name)
            made.append(name)
            port = f"p{host.rpartition('.')[2]}"
            sh("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0",
               "netns", name)  # fmt: skip
            sh("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            sh("ip", "-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            sh("ip", "-n", name, "link", "set", "lo", "up")
            rate(name, SOUND)
        agent = tmp_path / "agent"
        agent.write_text(AGENT.format(prefix=prefix))
        agent.chmod(0o755)
        yield names, agent
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=10)


def rate(name, speed):
    shape = ("root", "tbf", "rate", speed, "burst", "256k", "latency", "200ms")
    sh("tc", "-n", name, "qdisc", "replace", "dev", "eth0", *shape)


def a_node(host):
    parts = (Part("gpu0", PartKind.GPU, f"GPU-{host}", "1", "0000:1a:00"),)
    return Node(host, "pool-a", f"g{host[-1]}", "r01", "none", parts)


async def pair(hosts, tools, one, other):
    """The pair check of two of the hosts: its reading."""
    names, agent = hosts
    inside = ("ip", "netns", "exec", names[one], "mpirun")
    runner = ToolCheckRunner(
        {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tools)},
        floors={PAIR_FLOOR: FLOOR_GBPS},
        launcher=(*inside, *MPI, "--mca", "plm_rsh_agent", str(agent), "-x", "PATH"),
    )
    output = await runner.run(PAIR, node=a_node(one), deadline_s=90.0, neighbour=a_node(other))
    return output.reading


@pytest.mark.parametrize("slow", [None, HOSTS[0], HOSTS[1]], ids=["none", "suspect", "neighbour"])
async def test_a_slowed_host_is_blamed_and_its_neighbour_cleared(hosts, tools, slow):
    if slow is not None:
        rate(hosts[0][slow], SLOW)
    one, two, three = HOSTS
    runs = []
    for a, b in ((one, two), (one, three), (two, three)):
        reading = await pair(hosts, tools, a, b)
        assert reading.verdict is not Verdict.INCONCLUSIVE, reading.why
        if reading.verdict is Verdict.FAIL:
            assert reading.category is Category.FABRIC
        runs.append(PairRun(a, b, good=reading.verdict is Verdict.PASS))
    told = blame_pairs(runs)
    assert told.bad == (frozenset({slow}) if slow else frozenset()), runs
    assert told.good == frozenset(HOSTS) - {slow}, runs
