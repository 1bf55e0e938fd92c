"""The process itself: what survives a kill, what is refused, and that a seed is a fleet."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from sickbay.errors import UsageError
from sickbay.simulator.bmc.certificates import certificates
from sickbay.simulator.config import DEFAULT_WEIGHTS, FaultPlan, SimulatorConfig
from sickbay.simulator.draws import Draws
from sickbay.simulator.install import install_tools
from sickbay.simulator.kinds import FaultKind
from sickbay.simulator.plan import planned


def test_a_killed_fleet_goes_on_where_it_was(make):
    sim = make(time_scale=60.0)
    sim.inject("remap_failure")
    sim.inject("off_bus", node="n002")
    sim.post("/scheduler/nodes/n001/drain", mark="sickbay:1", reason="why")
    sim.reset()
    before = sim.log()
    page, hours = sim.page(), sim.get("/truth").json()["sim_h"]
    records, boot, base = sim.kernel(), sim.boot_id(), sim.base
    sim.end(signal.SIGKILL)
    sim.start()
    assert sim.base == base, "who knew it still finds it"
    after = sim.log()
    assert after[: len(before)] == before
    assert [row["kind"] for row in after[len(before) :]] == ["fleet_started"]
    assert after[-1]["resumed"] is True
    assert [row["seq"] for row in after] == list(range(1, len(after) + 1))
    assert sim.faults() == ["remap_failure"]
    assert sim.get("/scheduler/nodes/n001").json()["marks"][0]["mark"] == "sickbay:1"
    assert sim.kernel() == records
    assert sim.boot_id() == boot
    assert sim.page()["ROW_REMAP_FAILURE"] == page["ROW_REMAP_FAILURE"]
    assert sim.part("n002", "gpu3")["uuid"] not in sim.page("n002")["GPU_TEMP"]
    assert 0 <= sim.get("/truth").json()["sim_h"] - hours + 0.05 < 0.5


def test_a_boot_in_progress_ends_after_a_kill(make):
    sim = make(time_scale=600.0)
    before = sim.boot_id()
    sim.run("systemctl", "reboot")
    assert sim.boot_id() == ""
    sim.end(signal.SIGKILL)
    sim.start()
    sim.until(lambda: sim.boot_id() not in ("", before))
    assert len(sim.log("reboot")) == 1


def test_rows_a_kill_kept_from_the_file_are_added_once(make):
    sim = make()
    sim.inject("remap_pending")
    rows = len(sim.log())
    sim.end(signal.SIGKILL)
    path = sim.config.dir / "log.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    # The newest commit's rows are cut off in the middle of a line.
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    sim.start()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["seq"] for row in found] == list(range(1, rows + 2))


def test_it_saves_and_ends_well_on_a_signal(make):
    sim = make()
    assert sim.end(signal.SIGTERM) == 0
    assert not (sim.config.dir / "simulator.json").exists()
    sim.start()
    assert sim.end(signal.SIGINT) == 0


def test_while_a_node_is_down_nothing_of_it_answers(make):
    sim = make(time_scale=720.0)
    assert sim.run("systemctl", "reboot").code == 0
    assert not (sim.config.dir / "nodes" / "n001" / "boot_id").exists()
    assert sim.get("/nodes/n001/metrics").status_code == 503
    assert sim.get("/nodes/n001/entries").status_code == 503
    assert sim.get("/scheduler/nodes/n001").json()["state"] == "down"
    for argv in (["nvidia-smi", "-q"], ["dcgmi", "diag", "-r", "1", "-j"], ["systemctl", "reboot"]):
        assert sim.run(*argv).code == 255
    assert sim.post("/faults", node="n001", kind="thermal").status_code == 409
    sim.until(sim.boot_id)
    assert sim.get("/nodes/n001/metrics").status_code == 200


def test_a_tool_dies_with_its_machine(make):
    sim = make(time_scale=60.0)
    env = {
        "SICKBAY_SIM_NODE": "n001",
        "SICKBAY_SIM_SOCKET": str(sim.config.dir / "tools.sock"),
    }
    argv = [str(sim.config.dir / "bin" / "dcgmi"), "diag", "-r", "2", "-j"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as running:
        time.sleep(0.6)
        sim.post("/technician/work", node="n001", slot="gpu0", work="other")
        out, _ = running.communicate(timeout=20)
    assert running.returncode == 255
    assert b"unable to establish a connection" in out


def test_without_a_simulator_the_tools_fail_like_the_real_ones(make):
    sim = make()
    sim.end()
    assert "couldn't communicate with the NVIDIA driver" in sim.run("nvidia-smi", "-L").out
    assert sim.run("nvidia-smi", "-L").code == 255
    diag = sim.run("dcgmi", "diag", "-r", "1", "-j")
    assert (diag.code, diag.out.startswith("Error: unable to establish")) == (255, True)


def test_the_same_seed_is_the_same_fleet_and_another_is_not(make):
    one, two = make("one", seed=5), make("two", seed=5)
    other = make("three", seed=6)
    assert one.get("/inventory").json() == two.get("/inventory").json()
    assert one.get("/inventory").json() != other.get("/inventory").json()
    for sim in (one, two):
        sim.post("/faults", node="n002", kind="marginal_memory")
    keys = ("kind", "slot", "weak_after_min", "reboot_cures", "link")
    drawn = [[f[k] for k in keys] for s in (one, two) for f in s.get("/truth").json()["faults"]]
    assert drawn[0] == drawn[1]


def test_the_plan_is_drawn_from_the_seed_alone(tmp_path):
    def of(seed, **fields):
        plan = FaultPlan(count=50, rate_per_h=2.0, start_after_h=1.0, until_h=9.0, **fields)
        config = SimulatorConfig(dir=tmp_path, seed=seed, faults=plan)
        return planned(config, draws=Draws(seed))

    assert of(3) == of(3)
    assert of(3) != of(4)
    assert all(1.0 <= fault.at_h <= 9.0 for fault in of(3))
    only = of(3, weights={"thermal": 1.0})
    assert {fault.kind for fault in only} == {FaultKind.THERMAL}


@pytest.mark.parametrize("seed", range(5))
def test_a_short_plan_holds_each_kind_in_its_share(tmp_path, seed):
    config = SimulatorConfig(dir=tmp_path, seed=seed, faults=FaultPlan(count=40))
    kinds = [fault.kind for fault in planned(config, draws=Draws(seed))]
    whole = sum(DEFAULT_WEIGHTS.values())
    assert len(kinds) == 40
    for kind, weight in DEFAULT_WEIGHTS.items():
        assert abs(kinds.count(kind) - 40 * weight / whole) < 1, kind
        assert kinds.count(kind) >= 1, kind
    none = {"off_bus": 1.0, "thermal": 0.0}
    config = SimulatorConfig(dir=tmp_path, seed=seed, faults=FaultPlan(count=7, weights=none))
    assert {f.kind for f in planned(config, draws=Draws(seed))} == {FaultKind.OFF_BUS}


def test_planned_faults_come_and_spare_nodes_that_are_sick_already(make):
    plan = FaultPlan(count=8, start_after_h=0.2, until_h=1.0, weights={"thermal": 1.0})
    sim = make(nodes=8, faults=plan)
    sim.until(lambda: len(sim.log("fault_injected")) == 8)
    assert len({row["node"] for row in sim.log("fault_injected")}) == 8


def test_a_plan_with_no_healthy_node_left_says_so(make):
    plan = FaultPlan(count=5, start_after_h=0.2, until_h=0.6, weights={"thermal": 1.0})
    sim = make(nodes=2, pools=1, faults=plan)
    sim.until(lambda: len(sim.log("fault_skipped")) == 3)
    assert len(sim.log("fault_injected")) == 2


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"node": 3}, "node"),
        ({"nodes": "many"}, "nodes"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 3.5}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"time_scale": 0}, "time_scale"),
        ({"nodes": 2, "pools": 3}, "pools"),
        ({"faults": 40}, "faults"),
        ({"faults": {"counts": 4}}, "faults.counts"),
        ({"faults": {"weights": {"fire": 1}}}, "faults.weights"),
        ({"faults": {"weights": {"thermal": 0}}}, "faults.weights"),
        ({"faults": {"start_after_h": 5, "until_h": 4}}, "faults.until_h"),
        ({"jobs": {"busy": 2}}, "jobs.busy"),
        ({"bmc_tls": "yes"}, "bmc_tls"),
        ({"bmc_user": "a:b"}, "bmc_user"),
        ({"bmc_user": ""}, "bmc_user"),
        ({"bmc_port": 70000}, "bmc_port"),
        ({"bmc_session_s": 0}, "bmc_session_s"),
    ],
)
def test_a_wrong_configuration_names_its_key(tmp_path, data, field):
    with pytest.raises(UsageError) as caught:
        SimulatorConfig.from_mapping({"dir": str(tmp_path), **data})
    assert caught.value.field == field


def test_without_the_library_for_certificates_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(UsageError) as caught:
        certificates(tmp_path)
    assert caught.value.field == "bmc_tls"
    assert "sickbay[demo]" in (caught.value.remedy or "")
    monkeypatch.undo()
    made = certificates(tmp_path)
    monkeypatch.setitem(sys.modules, "trustme", None)
    assert certificates(tmp_path) == made, "what is there needs no library"


def test_an_old_state_without_power_or_firmware_is_read(make):
    sim = make(nodes=1, pools=1)
    sim.end()
    new = ("power", "power_until_h", "power_next", "off_since_h", "cold", "last_reset_at")
    with closing(sqlite3.connect(sim.config.dir / "state.sqlite")) as db, db:
        data = json.loads(db.execute("SELECT data FROM node").fetchone()[0])
        old = {key: value for key, value in data.items() if key not in (*new, "firmware", "staged")}
        old["gpus"] = [{k: v for k, v in g.items() if k != "vbios"} for g in old["gpus"]]
        db.execute("UPDATE node SET data = ?", (json.dumps(old),))
        db.execute("DELETE FROM meta WHERE key = 'bmc'")
    sim.start()
    assert sim.power_state() == "On"
    assert sim.diag("1") == (0, {})


def test_a_configuration_survives_its_file(tmp_path):
    plan = FaultPlan(count=3, weights={"off_bus": 2.0})
    config = SimulatorConfig(dir=tmp_path, nodes=9, faults=plan)
    config.save(tmp_path / "c.json")
    assert SimulatorConfig.load(tmp_path / "c.json") == config


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "cannot be read"), ("{", "no JSON"), ("[]", "one object"), ("{}", "dir is missing")],
)
def test_an_unreadable_configuration_is_one_line_and_exit_2(tmp_path, text, words):
    path = tmp_path / "c.json"
    if text is not None:
        path.write_text(text)
    argv = [sys.executable, "-m", "sickbay.simulator", "--config", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_directory_one_fleet(make, tmp_path):
    sim = make()

    def second(**fields):
        config = SimulatorConfig(dir=sim.config.dir, **fields)
        config.save(tmp_path / "second.json")
        argv = [
            sys.executable,
            "-m",
            "sickbay.simulator",
            "--config",
            str(tmp_path / "second.json"),
        ]
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)

    refused = second()
    assert (refused.returncode, "already runs there" in refused.stderr) == (2, True)
    taken = second(port=int(sim.base.rsplit(":", 1)[1]))
    assert (taken.returncode, "is in use" in taken.stderr) == (2, True)
    sim.end()
    other = second(nodes=5)
    assert (other.returncode, "another fleet" in other.stderr) == (2, True)


def test_a_directory_with_a_long_path_works(make):
    sim = make("d" * 120)
    assert sim.run("nvidia-smi", "-L").out.count("GPU ") == 16 // 2


def test_the_tools_start_with_an_interpreter_of_any_path(make, tmp_path, monkeypatch):
    sim = make()
    folder = tmp_path / ("a folder " * 15)
    folder.mkdir()
    link = folder / "python"
    link.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr(sys, "executable", str(link))
    install_tools(sim.config.dir)
    assert sim.run("nvidia-smi", "-L").out.count("UUID: GPU-") == 8
