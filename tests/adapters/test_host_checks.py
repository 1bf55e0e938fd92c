"""Ports, disk, kernel log and host as checks: scripted and real tools, and the fleet's own."""

import os
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from sickbay.adapters.tool_checks import Fittings, ToolCheckRunner
from sickbay.domain.node import Category, Node, Part, PartKind
from sickbay.domain.proof import Check, CheckName, suite_for
from sickbay.domain.reading import Verdict
from sickbay.simulator.config import JobLoad, SimulatorConfig
from sickbay.simulator.engine import Engine
from sickbay.simulator.install import install_tools
from sickbay.simulator.kinds import FaultKind
from sickbay.simulator.tool_socket import ToolSocket

BEGAN = datetime(2026, 12, 1, 12, tzinfo=UTC)
PORT = """CA 'mlx5_{index}'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: {state}
\t\tPhysical state: {physical}
\t\tRate: {rate}
\t\tBase lid: {lid}
\t\tLink layer: InfiniBand
"""
UP = {"state": "Active", "physical": "LinkUp", "rate": 400}
DOWN = {"state": "Down", "physical": "Polling", "rate": 10}
DISKS = """Filesystem     1024-blocks      Used Available Capacity Mounted on
/dev/nvme0n1p2   937367040 468683520 468683520      {used}% /
"""
BOOT_LINE = "2026-12-01T10:00:00+0000 n001 kernel: Linux version 6.8.0"
XID = "2026-12-01T12:01:00+0000 n001 kernel: NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off"


def listing(*ports):
    return "".join(PORT.format(index=i, lid=i + 1, **port) for i, port in enumerate(ports))


def prints(text, *, code=0):
    return f"cat <<'END'\n{text}\nEND\nexit {code}"


async def run(env, name, node, **has):
    runner = ToolCheckRunner(env, fittings=Fittings(**has))
    check = Check(name, since=BEGAN if name is CheckName.KERNEL_LOG else None)
    return (await runner.run(check, node=node, deadline_s=60.0)).reading


# --- ports ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ports", "has", "verdict"),
    [
        ((UP, UP), {"ib_ports": 2, "ib_rate_gbps": 400.0}, Verdict.PASS),
        ((UP, DOWN), {"ib_ports": 2, "ib_rate_gbps": 400.0}, Verdict.FAIL),
        ((UP, {**UP, "rate": 200}), {"ib_ports": 2, "ib_rate_gbps": 400.0}, Verdict.FAIL),
        ((UP, DOWN), {"ib_ports": 1}, Verdict.PASS),
    ],
)
async def test_ports_are_held_to_their_class(tools, node, ports, has, verdict):
    reading = await run(tools(ibstat=prints(listing(*ports))), CheckName.INFINIBAND, node, **has)
    assert reading.verdict is verdict, reading.why
    if verdict is Verdict.FAIL:
        assert reading.category is Category.FABRIC


async def test_a_class_without_infiniband_has_no_port_to_look_at(tools, node):
    env = tools(ibstat=prints("ibpanic: no device", code=1))
    assert (await run(env, CheckName.INFINIBAND, node, ib_ports=0)).verdict is Verdict.PASS


@pytest.mark.parametrize(("state", "verdict"), [("4: ACTIVE", "pass"), ("1: DOWN", "fail")])
async def test_without_ibstat_the_kernels_files_speak(tmp_path, node, state, verdict):
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    files = {"state": state, "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
             "link_layer": "InfiniBand"}  # fmt: skip
    if verdict == "fail":
        files["phys_state"] = "2: Polling"
    for name, text in files.items():
        (port / name).write_text(text + "\n")
    env = {"PATH": str(tmp_path)}
    reading = await run(env, CheckName.INFINIBAND, node, root=tmp_path, ib_ports=1)
    assert reading.verdict == verdict, reading.why


async def test_no_tool_and_no_file_is_neither_pass_nor_fail(tmp_path, node):
    reading = await run({"PATH": str(tmp_path)}, CheckName.INFINIBAND, node, root=tmp_path)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert "infiniband-diags" in reading.why


# --- disk -----------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
async def test_a_real_disk_is_written_read_back_and_left_empty(tools, node, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # fio takes what bears its job's name where it is started for the one file of all its jobs.
    (tmp_path / "sickbay").mkdir()
    monkeypatch.chdir(tmp_path)
    reading = await run(tools(), CheckName.STORAGE, node, storage_dir=str(scratch))
    assert reading.verdict is Verdict.PASS, reading.why
    rates = {m.name: m.value for m in reading.measurements}
    assert rates["write_bytes_per_s"] > 0
    assert rates["read_bytes_per_s"] > 0, "what was written was read back"
    assert list(scratch.iterdir()) == []


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
async def test_what_a_killed_run_left_is_removed_and_is_no_broken_disk(tools, node, tmp_path):
    left = tmp_path / "sickbay-disk-abc123"
    left.mkdir()
    (left / "sickbay.0.0").write_bytes(b"half")
    kept = tmp_path / "somebody-elses"
    kept.write_text("mine")
    reading = await run(tools(), CheckName.STORAGE, node, storage_dir=str(tmp_path))
    assert reading.verdict is Verdict.PASS, reading.why
    assert kept.read_text() == "mine"
    assert not list(tmp_path.glob("sickbay-disk-*"))


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
async def test_a_folder_that_is_not_there_is_no_broken_disk(tools, node, tmp_path):
    reading = await run(tools(), CheckName.STORAGE, node, storage_dir=str(tmp_path / "none"))
    assert reading.verdict is Verdict.INCONCLUSIVE


async def test_an_error_of_the_medium_fails_the_disk(tools, node):
    says = "fio: io_u error on file /dev/nvme1n1: Input/output error: read offset=0, buflen=4096"
    reading = await run(tools(fio=prints(says, code=1)), CheckName.STORAGE, node)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.STORAGE)
    assert reading.findings[0].part == "nvme1n1"


async def test_a_disk_is_held_to_the_floor_of_its_class(tools, node):
    side = '{"bw_bytes": 1000000, "iops": 10.0}'
    jobs = (
        f'{{"fio version": "fio-3.33", "jobs": [{{"jobname": "s", "error": 0, "write": {side}}}]}}'
    )
    for floor, verdict in ((900_000.0, Verdict.PASS), (2_000_000.0, Verdict.FAIL)):
        runner = ToolCheckRunner(tools(fio=prints(jobs)), floors={"fio_write_bytes_per_s": floor})
        output = await runner.run(Check(CheckName.STORAGE), node=node, deadline_s=20.0)
        assert output.reading.verdict is verdict


# --- host -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "lost", "verdict", "reason"),
    [
        (50, "0", Verdict.PASS, None),
        (99, "0", Verdict.INCONCLUSIVE, "disk_full"),
        (50, "2", Verdict.FAIL, "memory_uncorrected"),
        (99, "2", Verdict.FAIL, "memory_uncorrected"),
    ],
)
async def test_a_full_disk_keeps_the_verdict_open_and_lost_memory_fails(
    tools, tmp_path, node, used, lost, verdict, reason
):
    counts = tmp_path / "sys/devices/system/edac/mc/mc1"
    counts.mkdir(parents=True)
    (counts / "ue_count").write_text(lost + "\n")
    env = tools(df=prints(DISKS.format(used=used)))
    reading = await run(env, CheckName.HOST, node, root=tmp_path)
    assert reading.verdict is verdict, reading.why
    assert reason is None or reason in {f.reason for f in reading.findings}


async def test_a_real_df_is_read(tools, node, tmp_path):
    reading = await run(tools(), CheckName.HOST, node, root=tmp_path)
    assert {f.reason for f in reading.findings} <= {"disk_full"}, reading.why


# --- kernel log -----------------------------------------------------------------------------------


def journal(last, since):
    """A journal: `-n 1` shows its last line, `--since` what came after."""
    return (
        'echo "$@" >>"$ROOM/calls"\ncase "$*" in *" -n 1") '
        f"cat <<'END'\n{last}\nEND\n;; *) cat <<'END'\n{since}\nEND\n;; esac"
    )


@pytest.mark.parametrize(
    ("last", "since", "verdict"),
    [
        (BOOT_LINE, "-- No entries --", Verdict.PASS),
        (XID, XID, Verdict.FAIL),
        ("-- No entries --", "-- No entries --", Verdict.INCONCLUSIVE),
    ],
)
async def test_only_what_the_kernel_said_since_the_suite_began_counts(
    tools, node, tmp_path, last, since, verdict
):
    env = tools(journalctl=journal(last, since))
    reading = await run(env, CheckName.KERNEL_LOG, node)
    assert reading.verdict is verdict, reading.why
    calls = (tmp_path / "calls").read_text()
    if verdict is not Verdict.INCONCLUSIVE:
        assert f"--since=@{BEGAN.timestamp():.0f}" in calls
    else:
        assert "--since" not in calls, "a journal nobody may read says nothing by its silence"


# --- over the simulated fleet's own tools ---------------------------------------------------------


@pytest.fixture
async def fleet(tmp_path):
    """One simulated node in this process, and its tools."""
    jobs = JobLoad(busy=0.0, median_h=1.0, sigma=0.0)
    engine = Engine(
        SimulatorConfig(dir=tmp_path / "sim", nodes=1, pools=1, jobs=jobs, time_scale=36_000)
    )
    socket = ToolSocket(engine)
    await socket.start()
    env = {
        "PATH": f"{install_tools(tmp_path / 'sim')}{os.pathsep}{os.environ['PATH']}",
        "SICKBAY_SIM_NODE": "n001",
        "SICKBAY_SIM_SOCKET": str(tmp_path / "sim" / "tools.sock"),
    }
    row = engine.inventory()["nodes"][0]
    parts = tuple(
        Part(p["slot"], PartKind.GPU, p["uuid"], p["serial"], p["bus_id"]) for p in row["parts"]
    )
    yield engine, env, Node("n001", "pool-a", "g01", "r01", row["node_class"], parts)
    await socket.stop()
    engine.close()


@pytest.mark.parametrize("category", [Category.STORAGE, Category.HOST, Category.FABRIC])
async def test_over_the_fleet_a_sound_node_passes_every_new_check(fleet, category):
    _, env, node = fleet
    new = {CheckName.STORAGE, CheckName.HOST, CheckName.INFINIBAND, CheckName.KERNEL_LOG}
    names = [c.name for c in suite_for(category).checks if c.name in new]
    assert names
    for name in names:
        assert (await run(env, name, node)).verdict is Verdict.PASS, name


async def test_over_the_fleet_an_old_xid_is_no_finding_and_a_new_one_is(fleet):
    engine, env, node = fleet
    await ToolCheckRunner(env).run(Check(CheckName.DCGM_HEALTH), node=node, deadline_s=20.0)
    engine.inject("n001", kind=FaultKind.OFF_BUS, slot="gpu3")
    runner, now = ToolCheckRunner(env), datetime.now(UTC)
    before = Check(CheckName.KERNEL_LOG, since=now - timedelta(minutes=5))
    after = Check(CheckName.KERNEL_LOG, since=now + timedelta(minutes=5))
    seen = await runner.run(before, node=node, deadline_s=20.0)
    assert seen.reading.verdict is Verdict.FAIL, seen.reading.why
    assert (await runner.run(after, node=node, deadline_s=20.0)).reading.verdict is Verdict.PASS
