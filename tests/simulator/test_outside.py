"""The scheduler, the journal, the page, and what the tools may and may not know."""

import json
import re
import socket

import httpx
import pytest

from sickbay.errors import Refused, Unreachable
from sickbay.simulator.client import SimulatorClient
from sickbay.simulator.config import JobLoad, SimulatorConfig
from sickbay.simulator.draws import Draws
from sickbay.simulator.fleet import build_fleet
from sickbay.simulator.gateway import BadRange, select
from sickbay.simulator.kernel import Journal
from sickbay.simulator.kinds import FaultKind

VERDICT_WORDS = ("pass", "fail", "verdict", "suite", "healthy", "defect", "fault")


def ask(sim, **asked):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(sim.config.dir / "tools.sock"))
        sock.sendall(json.dumps(asked).encode() + b"\n")
        return json.loads(sock.makefile().readline())


def test_the_hardware_tells_tools_no_fault_name_suite_or_verdict(sim):
    for number, kind in enumerate(list(FaultKind)[:8]):
        sim.inject(kind, slot=f"gpu{number}")
    said = json.dumps(
        [
            ask(sim, op="read", node="n001"),
            ask(sim, op="exercise", node="n001", what="memory", minutes=3, indices=list(range(8))),
            ask(sim, op="exercise", node="n001", what="compute", minutes=3, indices=[1]),
        ]
    ).lower()
    # These two are registers of the GPU as well as names of kinds.
    said = said.replace('"remap_pending":', "").replace('"remap_failure":', "")
    assert [word for word in (*FaultKind, *VERDICT_WORDS) if word in said] == []


def test_the_socket_refuses_nonsense(sim):
    assert ask(sim, op="cure", node="n001")["error"] == "bad_request"
    assert ask(sim, op="read")["error"] == "bad_request"
    assert ask(sim, op="read", node="n999")["error"] == "not_found"
    assert ask(sim, op="exercise", node="n001", what="luck", minutes=1, indices=[0])["ok"] is False
    assert ask(sim, op="gpu_reset", node="n001", bus_id="00000000:FF:00.0")["error"] == "not_found"


def test_a_gpu_in_use_is_not_reset(busy):
    job = busy.get("/scheduler/nodes/n001").json()["jobs"][0]
    ran = busy.reset(slot=job["gpus"][0])
    assert ran.code == 255
    assert "In use by another client" in ran.out
    assert busy.log("gpu_reset") == []
    assert busy.log("tool_run", tool="nvidia-smi")[0]["exit"] == 255
    assert busy.get("/scheduler/nodes/n001").json()["jobs"] == [job]


def test_a_diagnostic_of_a_busy_gpu_says_busy(busy):
    slot = busy.get("/scheduler/nodes/n001").json()["jobs"][0]["gpus"][0]
    ran = busy.run("dcgmi", "diag", "-r", "memory", "-j", "-i", slot.removeprefix("gpu"))
    assert ran.code == 226
    assert "busy or unavailable" in ran.out


@pytest.mark.parametrize("name", ["5", "00000000:AB:00.0", "0000:ab:00.0", "AB:00.0"])
def test_a_gpu_can_be_named_in_any_spelling(sim, name):
    assert sim.run("nvidia-smi", "--gpu-reset", "-i", name).code == 0
    assert sim.log("gpu_reset")[0]["slot"] == "gpu5"


def test_an_unknown_gpu_is_not_found(sim):
    assert sim.run("nvidia-smi", "--gpu-reset", "-i", "00000000:77:00.0").code == 6
    assert sim.run("nvidia-smi", "--frobnicate").code == 2
    assert sim.log("gpu_reset") == []


def test_marks_are_their_owners(busy):
    view = busy.post("/scheduler/nodes/n001/drain", mark="sickbay:1", reason="ours").json()
    assert (view["draining"], view["state"]) == (True, "allocated+drain")
    busy.post("/scheduler/nodes/n001/drain", mark="sickbay:1", reason="again")
    busy.post("/scheduler/nodes/n001/drain", mark="admin", reason="theirs")
    assert [row["mark"] for row in busy.log("gate_closed")] == ["sickbay:1", "admin"]
    assert busy.post("/scheduler/nodes/n001/resume", mark="nobody").status_code == 409
    left = busy.post("/scheduler/nodes/n001/resume", mark="sickbay:1").json()
    assert [m["mark"] for m in left["marks"]] == ["admin"]
    assert busy.post("/scheduler/nodes/n001/resume", mark="sickbay:1").status_code == 409
    assert [row["mark"] for row in busy.log("gate_opened")] == ["sickbay:1"]
    assert busy.get("/scheduler/nodes/n777").status_code == 404


def test_only_a_standing_mark_evicts_and_jobs_start_elsewhere(make):
    sim = make(nodes=4, busy=0.5)
    taken = next(n for n in sim.get("/scheduler/nodes").json() if n["jobs"])
    path, job = f"/scheduler/nodes/{taken['node']}", taken["jobs"][0]["id"]
    assert sim.post(f"{path}/evict", mark="m", reason="").status_code == 409
    sim.post(f"{path}/drain", mark="m", reason="")
    assert sim.post(f"{path}/evict", mark="m", reason="broken").json()["jobs"] == []
    assert len(sim.log("job_evicted", job=job)) == 1
    sim.until(lambda: sim.log("job_started", requeued_from=job))
    again = sim.log("job_started", requeued_from=job)[0]
    assert again["node"] != taken["node"]


def test_no_job_starts_on_a_marked_or_a_silent_node(make):
    sim = make(nodes=6, jobs=JobLoad(busy=0.6, median_h=0.05, sigma=0.2), time_scale=720.0)
    sim.post("/scheduler/nodes/n001/drain", mark="m", reason="")
    seen = len(sim.log())
    sim.run("systemctl", "reboot", node="n002")
    sim.until(lambda: len(sim.log("job_started")) > 25)
    rows = sim.log()[seen:]
    assert not [r for r in rows if r["kind"] == "job_started" and r["node"] == "n001"]
    down, up = sim.log("reboot")[0]["sim_h"], 10.0 / 60.0
    on_it = [r["sim_h"] for r in rows if r["kind"] == "job_started" and r["node"] == "n002"]
    # What started on it before it went down is no matter.
    assert all(at > down + up for at in on_it if at > down)


def test_about_the_wanted_share_of_the_fleet_is_busy(make):
    sim = make(nodes=20, busy=0.6)
    assert sum(bool(n["jobs"]) for n in sim.get("/scheduler/nodes").json()) == 12


def test_refusals_of_the_fault_switch_list_what_there_is(sim):
    unknown = sim.post("/faults", node="n001", kind="fire")
    assert unknown.status_code == 422
    assert "remap_pending" in unknown.json()["error"]
    assert sim.post("/faults", node="n404", kind="thermal").status_code == 404
    slot = sim.post("/faults", node="n001", kind="thermal", slot="gpu99")
    assert (slot.status_code, "gpu0" in slot.json()["error"]) == (404, True)
    sim.inject("thermal")
    again = sim.post("/faults", node="n001", kind="slow_gpu", slot="gpu3")
    assert again.status_code == 409
    kinds = {row["kind"] for row in sim.get("/faults/kinds").json()}
    assert kinds == set(FaultKind)
    assert sim.http.post(f"{sim.base}/faults", content=b"{").status_code == 422
    assert sim.post("/technician/work", node="n001", slot="gpu0", work="magic").status_code == 422
    assert sim.get("/log?after=x").status_code == 422


def test_the_page_has_the_exporters_form(sim):
    text = sim.get("/nodes/n001/metrics").text
    assert "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n" in text
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" in text
    row = next(line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP"))
    assert re.fullmatch(
        r'DCGM_FI_DEV_GPU_TEMP\{gpu="0",UUID="GPU-[0-9a-f-]{36}",pci_bus_id="00000000:1A:00\.0",'
        r'device="nvidia0",modelName="NVIDIA H200",Hostname="n001",'
        r'DCGM_FI_DEV_VBIOS_VERSION="96\.00\.A5\.00\.01"\} \d+',
        row,
    )
    assert sim.get("/nodes/n404/metrics").status_code == 404


def test_a_page_is_alive(sim):
    first = sim.page()
    sim.until(lambda: sim.page()["POWER_USAGE"] != first["POWER_USAGE"])
    energy = sim.page()["TOTAL_ENERGY_CONSUMPTION"]
    assert all(energy[u] > first["TOTAL_ENERGY_CONSUMPTION"][u] for u in energy)


def test_the_journal_is_read_on_from_a_cursor(sim):
    def read(wanted, **more):
        headers = {"Accept": "application/json", "Range": wanted}
        answer = sim.get("/nodes/n001/entries", headers=headers, **more)
        assert answer.status_code == 200
        return [json.loads(line) for line in answer.text.splitlines()]

    first = read("entries=:-1000:1000")
    assert {"__CURSOR", "__REALTIME_TIMESTAMP", "_BOOT_ID", "MESSAGE"} <= first[0].keys()
    cursor = first[-1]["__CURSOR"]
    assert read(f"entries={cursor}:1:1000") == []
    sim.inject("ecc_uncorrectable")
    fresh = read(f"entries={cursor}:1:1000")
    assert [": 48," in fresh[0]["MESSAGE"], ": 154," in fresh[1]["MESSAGE"]] == [True, True]
    stamps = [int(row["__MONOTONIC_TIMESTAMP"]) for row in first + fresh]
    assert stamps == sorted(set(stamps)), "two lines of one moment still differ"
    assert read("entries=:0:1")[0]["__CURSOR"] == first[0]["__CURSOR"]
    bad = sim.get("/nodes/n001/entries", headers={"Range": "entries=nonsense:1:5"})
    assert bad.status_code == 416


def test_only_the_kernel_speaks_as_the_kernel(sim):
    sim.inject("app_error")
    everything = sim.get("/nodes/n001/entries", headers={"Accept": "application/json"})
    rows = [json.loads(line) for line in everything.text.splitlines()]
    said = [row["_TRANSPORT"] for row in rows if "Xid" in row["MESSAGE"]]
    assert said == ["kernel", "stdout"]
    assert len([line for line in sim.kernel() if "Xid" in line]) == 1


def test_a_cursor_that_rotated_away_loses_nothing_that_is_kept():
    journal = Journal()
    records = [
        journal.add(str(i), boot_id="b-1", wall=1000.0 + i, booted_at=999.0) for i in range(10)
    ]
    kept = records[4:]
    assert select(kept, wanted_range=f"entries={records[1].cursor}:1:100") == kept
    assert select(kept, wanted_range=f"entries={records[6].cursor}:1:2") == records[7:9]
    assert select(kept, wanted_range="entries=:-2:5") == records[8:]
    for wrong in ("lines=3", "entries=:x:1", "entries=:1:-1", "entries=:1:2:3"):
        with pytest.raises(BadRange):
            select(kept, wanted_range=wrong)


def test_older_diagnostics_speak_the_older_layout(make):
    sim = make(dcgm3_share=1.0)
    assert "dcgmi  version: 3.3." in sim.run("dcgmi", "--version").out
    sim.inject("remap_pending")
    sim.inject("ecc_uncorrectable", slot="gpu5")
    ran = sim.run("dcgmi", "diag", "-r", "3", "-j")
    root = ran.json()["DCGM GPU Diagnostic"]
    tests = {t["name"]: t["results"] for c in root["test_categories"] for t in c["tests"]}
    assert tests["Page Retirement/Row Remap"][0]["gpu_ids"] == "3"
    assert tests["Persistence Mode"] == [{"status": "Pass"}]
    assert tests["EUD Test"][0]["status"] == "Skip"
    memory = {row["gpu_ids"]: row["status"] for row in tests["GPU Memory"]}
    assert (memory["5"], memory["3"]) == ("Fail", "Pass")
    assert isinstance(tests["PCIe"][0]["info"], str)
    assert ran.code == 205
    assert sim.run("dcgmi", "diag", "-r", "nvbandwidth", "-j").code == 198


def test_health_remembers_for_ten_minutes_and_only_what_it_watched(make):
    sim = make(time_scale=360.0)
    assert "Health watches not enabled" in sim.run("dcgmi", "health", "-c", "-j").out
    sim.run("dcgmi", "health", "-s", "a")
    sim.inject("app_error", slot="gpu2")
    sim.until(lambda: sim.metric("XID_ERRORS", slot="gpu2") != 0)
    sim.inject("nvlink_down", slot="gpu6")
    body = sim.run("dcgmi", "health", "-c", "-j").json()["body"]
    assert body["Overall Health"]["value"] == "Failure"
    assert body["GPU"]["children"]["6"]["value"] == "Failure"
    sim.reset(slot="gpu6")
    sim.until(lambda: "GPU" not in sim.run("dcgmi", "health", "-c", "-j").json()["body"], seconds=5)


def test_a_fleet_is_laid_out_in_whole_groups_of_one_pool(tmp_path):
    config = SimulatorConfig(dir=tmp_path, nodes=22, pools=3, group_size=4, nodes_per_rack=8)
    nodes = build_fleet(config, draws=Draws(1))
    pool_of = {}
    for node in nodes:
        assert pool_of.setdefault(node.group, node.pool) == node.pool
    sizes = [sum(n.pool == p for n in nodes) for p in ("pool-a", "pool-b", "pool-c")]
    assert sum(sizes) == 22
    assert max(sizes) - min(sizes) <= 1
    assert all(sum(n.group == g for n in nodes) <= 4 for g in pool_of)
    assert [n.name for n in nodes[:2]] == ["n001", "n002"]
    assert nodes[8].rack == "r02"
    serials = {gpu.serial for node in nodes for gpu in node.gpus}
    assert len(serials) == 22 * 8
    assert all(re.fullmatch(r"\d{13}", serial) for serial in serials)


async def test_the_client_says_what_the_fleet_says(sim):
    async with httpx.AsyncClient() as http:
        client = SimulatorClient(sim.base, client=http)
        nodes = await client.inventory()
        assert (nodes[0].node, len(nodes[0].parts), nodes[0].node_class) == ("n001", 8, "h200x8")
        assert (await client.inject("n001", kind="thermal", slot="gpu1"))["slot"] == "gpu1"
        new = await client.replace("n001", slot="gpu1")
        assert new.serial != new.old_serial
        await client.work("n001", slot="gpu1", work="cleaned")
        assert (await client.truth())["faults"] == []
        assert "fault_injected" in [row["kind"] for row in await client.log(after=1)]
        assert set(await client.kinds()) == set(FaultKind)
        slow = await client.misbehave("n001", fault="slow_bmc", minutes=3)
        assert (slow["minutes"], slow["times"]) == (3.0, 1)
        assert await client.behave("n001", fault="staged") == 0
        assert await client.behave("n001") == 1
        assert {image["wanted"] for image in await client.images()} == {True, False}
        with pytest.raises(Refused, match="no fault 'odd'"):
            await client.misbehave("n001", fault="odd")
        with pytest.raises(Refused, match="no node 'n999'"):
            await client.replace("n999", slot="gpu1")
        sim.end()
        with pytest.raises(Unreachable):
            await client.truth()
