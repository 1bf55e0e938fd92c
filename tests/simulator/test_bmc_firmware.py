"""Firmware through the management controllers: inventory, flashes, tasks, and what they cure."""

import hashlib
import json
import signal
from pathlib import Path

import pytest
import sushy
import sushy.auth
import sushy.connector
import sushy.exceptions
from sushy.taskmonitor import TaskMonitor

from sickbay.simulator.bmc.behaviours import BEHAVIOUR_SAYS, Behaviour
from sickbay.simulator.firmware import (
    GPU_FAMILY,
    WANTED,
    WEDGING,
    BadImage,
    Image,
    build_image,
    read_image,
)
from sickbay.simulator.kinds import FaultKind

GPU4 = "HGX_FW_GPU_SXM_4"
VBIOS = WANTED[GPU_FAMILY]
INVENTORY = "/redfish/v1/UpdateService/FirmwareInventory"


def client(sim):
    auth = sushy.auth.SessionAuth(sim.config.bmc_user, sim.password)
    connector = sushy.connector.Connector(
        sim.bmc_url, server_side_retries=1, default_request_timeout=10
    )
    return sushy.Sushy(sim.bmc_url, auth=auth, connector=connector)


def image_of(sim, *, family=GPU_FAMILY, version=VBIOS):
    rows = sim.get("/firmware").json()
    return next(r for r in rows if r["component"] == f"{family}_*" and r["version"] == version)


def push(sim, data, *, component=GPU4, node="n001", **parameters):
    body = {"Targets": [f"{INVENTORY}/{node}_{component}"], **parameters}
    return sim.redfish(
        "/UpdateService/update-multipart",
        method="POST",
        files={
            "UpdateParameters": (None, json.dumps(body), "application/json"),
            "UpdateFile": ("image.fwpkg", data, "application/octet-stream"),
        },
    )


def flash(sim, *, version=VBIOS, component=GPU4, **parameters):
    """The task's path of a flash that was accepted."""
    family = component.rpartition("_")[0]
    answer = push(sim, build_image(family, version=version), component=component, **parameters)
    assert answer.status_code == 202, answer.text
    return task_path(answer)


def task_path(answer):
    return answer.headers["Location"].removeprefix("/redfish/v1").replace("TaskMonitors", "Tasks")


def task(sim, path):
    answer = sim.redfish(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(sim, path):
    sim.until(lambda: task(sim, path)["TaskState"] != "Running", seconds=20)
    return task(sim, path)


def version(sim, component=GPU4, node="n001"):
    return sim.redfish(f"/UpdateService/FirmwareInventory/{node}_{component}").json()["Version"]


def said(body):
    return [message["MessageId"].rpartition(".")[2] for message in body["Messages"]]


def cycle(sim, kind="PowerCycle"):
    before = sim.boot_id()
    assert sim.power(kind).status_code == 204
    sim.until(lambda: sim.boot_id() not in ("", before), seconds=20)


def test_sushy_reads_the_inventory_of_all_nodes(make):
    sim = make(nodes=2, gpus_per_node=2)
    members = client(sim).get_update_service().firmware_inventory.get_members()
    found = {
        (m.related_item[0]["@odata.id"].rpartition("/")[2], m.identity): m.version for m in members
    }
    assert found[("n001", "HGX_FW_GPU_SXM_1")] == VBIOS
    assert found[("n002", "HostBIOS_0")] == WANTED["HostBIOS"]
    assert len(found) == len(members) == 2 * (2 + len(WANTED) - 1)
    assert all(m.updateable for m in members)


def test_the_whole_inventory_comes_in_one_answer_when_asked_for(sim):
    links = sim.redfish("/UpdateService/FirmwareInventory").json()
    whole = sim.redfish("/UpdateService/FirmwareInventory?$expand=.($levels=1)").json()
    assert [m["@odata.id"] for m in links["Members"]] == [m["@odata.id"] for m in whole["Members"]]
    assert {m["Version"] for m in whole["Members"]} == set(WANTED.values())


def test_a_node_whose_controller_is_silent_has_nothing_in_the_inventory(sim):
    sim.post("/bmc-faults", node="n002", fault="unreachable", times=0)
    whole = sim.redfish("/UpdateService/FirmwareInventory?$expand=.").json()["Members"]
    nodes = {m["RelatedItem"][0]["@odata.id"].rpartition("/")[2] for m in whole}
    assert nodes == {"n001", "n003", "n004"}


def test_the_version_is_on_the_page_and_in_the_tool(sim):
    sim.inject("firmware_wedged")
    uuid = sim.part()["uuid"]
    page = sim.get("/nodes/n001/metrics").text
    mine = {line for line in page.splitlines() if uuid in line}
    assert mine
    assert all(f'DCGM_FI_DEV_VBIOS_VERSION="{WEDGING}"' in line for line in mine)
    xml = sim.run("nvidia-smi", "-q", "-x").xml()
    versions = [gpu.findtext("vbios_version") for gpu in xml.iter("gpu")]
    assert versions == [WEDGING if i == 3 else VBIOS for i in range(8)]
    table = sim.run("nvidia-smi", "--query-gpu=index,vbios_version", "--format=csv,noheader")
    assert f"3, {WEDGING}" in table.out
    assert version(sim) == WEDGING


def test_only_the_wanted_firmware_cures_a_wedged_gpu(make):
    sim = make(nodes=1, pools=1)
    sim.inject("firmware_wedged")
    for act in (sim.reset, sim.reboot, lambda: cycle(sim)):
        assert sim.diag("pcie")[1][3][:1] == [46], "half of the lanes"
        assert sim.metric("PCIE_LINK_WIDTH") == 8
        assert not any("Xid" in line for line in sim.kernel())
        act()
    for counter in ("PCIE_REPLAY_COUNTER", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"):
        first = sim.metric(counter)
        sim.until(lambda counter=counter, first=first: sim.metric(counter) > first)
    ended(sim, flash(sim, version="96.00.99.00.77"))
    assert sim.diag("pcie")[1][3][:1] == [46], "some other version is not enough"
    ended(sim, flash(sim))
    assert sim.metric("PCIE_LINK_WIDTH") == 16
    assert sim.metric("PCIE_REPLAY_COUNTER") == 0
    assert sim.metric("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL") == 0
    assert sim.diag("3") == (0, {})
    assert sim.faults() == []
    assert sim.log("fault_cured")[0]["by"] == "reflash"


def test_the_wanted_firmware_cures_nothing_else(sim):
    sim.inject("off_bus_dead")
    sim.inject("thermal", slot="gpu2")
    ended(sim, flash(sim, component="HGX_FW_GPU_SXM_3"))
    assert sorted(sim.faults()) == ["off_bus_dead", "thermal"]
    lost = ended(sim, flash(sim))
    assert (lost["TaskState"], lost["TaskStatus"]) == ("Exception", "Critical")
    assert version(sim) is None, "a GPU that is lost has no version to read"


def test_a_bad_version_breaks_the_gpu_it_is_written_to(sim):
    ended(sim, flash(sim, version=WEDGING))
    assert sim.faults() == ["firmware_wedged"]
    assert sim.metric("PCIE_LINK_WIDTH") == 8
    ended(sim, flash(sim))
    assert sim.faults() == []


def test_a_flash_goes_with_the_part_and_a_new_part_is_as_delivered(sim):
    sim.inject("firmware_wedged")
    ended(sim, flash(sim, version="96.00.99.00.77"))
    sim.post("/technician/replace", node="n001", slot="gpu3")
    assert version(sim) == VBIOS
    ended(sim, flash(sim, component="HostBIOS_0", version="2.0"))
    sim.post("/technician/replace", node="n001", slot="gpu3")
    assert version(sim, "HostBIOS_0") == "2.0"


def test_progress_and_messages_of_a_flash_that_ends_well(make):
    sim = make(time_scale=900.0)
    path = flash(sim)
    seen = []
    sim.until(
        lambda: seen.append(task(sim, path)) or seen[-1]["TaskState"] != "Running", seconds=20
    )
    percents = [body["PercentComplete"] for body in seen]
    assert percents == sorted(percents)
    assert percents[0] < 50 < percents[-1] == 100
    assert len(set(percents)) > 3
    assert all(b["TaskStatus"] == "OK" for b in seen)
    assert said(seen[0]) == ["TargetDetermined", "TransferringToComponent"]
    assert said(seen[-1]) == ["TargetDetermined", "InstallingOnComponent", "UpdateSuccessful"]
    assert seen[-1]["StartTime"] < seen[-1]["EndTime"]
    kinds = [r["kind"] for r in sim.log() if r["kind"].startswith(("flash", "firmware"))]
    assert kinds == ["flash_started", "flash_done", "firmware_active"]


def test_sushy_flashes_by_simple_update_and_waits_for_the_task(sim):
    sim.inject("firmware_wedged")
    update = client(sim).get_update_service()
    uri = f"{sim.base}/firmware/{image_of(sim)['name']}"
    monitor = update.simple_update(uri, targets=[f"{INVENTORY}/n001_{GPU4}"])
    assert isinstance(monitor, TaskMonitor)
    assert monitor.is_processing
    monitor.wait(20)
    done = monitor.get_task()
    assert done.task_state is sushy.TASK_STATE_COMPLETED
    assert done.task_status is sushy.HEALTH_OK
    assert done.percent_complete == 100
    assert version(sim) == VBIOS


def test_simple_update_to_a_system_writes_what_the_image_fits(sim):
    uri = f"{sim.base}/firmware/{image_of(sim, version=WEDGING)['name']}"
    answer = sim.redfish(
        "/UpdateService/Actions/UpdateService.SimpleUpdate",
        method="POST",
        json={"ImageURI": uri, "Targets": ["/redfish/v1/Systems/n002"]},
    )
    assert answer.status_code == 202
    sim.until(lambda: sim.log("flash_done"))
    assert {version(sim, f"HGX_FW_GPU_SXM_{i}", "n002") for i in range(1, 9)} == {WEDGING}
    assert version(sim, "HostBIOS_0", "n002") == WANTED["HostBIOS"]
    assert version(sim) == VBIOS, "no other node is touched"


@pytest.mark.parametrize(
    "uri", ["http://192.0.2.7/x.fwpkg", "ftp://127.0.0.1/x", "{base}/firmware/no"]
)
def test_an_image_that_cannot_be_fetched_fails_the_task(sim, uri):
    answer = sim.redfish(
        "/UpdateService/Actions/UpdateService.SimpleUpdate",
        method="POST",
        json={"ImageURI": uri.format(base=sim.base), "Targets": [f"{INVENTORY}/n001_{GPU4}"]},
    )
    assert answer.status_code == 202
    body = ended(sim, task_path(answer))
    assert (body["TaskState"], said(body)[-1]) == ("Exception", "TransferFailed")
    assert sim.log("flash_done") == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not an image", "VerificationFailed"),
        (build_image(GPU_FAMILY, version="9.9")[:-1] + b"!", "VerificationFailed"),
        (build_image("HostBIOS", version="9.9"), "ApplyFailed"),
    ],
)
def test_an_image_that_is_wrong_changes_nothing(sim, data, message):
    answer = push(sim, data)
    body = ended(sim, task_path(answer))
    assert (body["TaskState"], body["TaskStatus"]) == ("Exception", "Critical")
    assert said(body)[-1] == message
    assert body["PercentComplete"] < 100
    assert version(sim) == VBIOS


@pytest.mark.parametrize(
    "targets",
    [
        None,
        [],
        [f"{INVENTORY}/n001_{GPU4}", f"{INVENTORY}/n002_{GPU4}"],
        [f"{INVENTORY}/n001_NOTHING_1"],
        [f"{INVENTORY}/n404_{GPU4}"],
        ["/redfish/v1/Systems"],
        "all",
    ],
)
def test_a_flash_without_one_clear_target_is_refused(sim, targets):
    answer = push(sim, build_image(GPU_FAMILY, version="9.9"), Targets=targets)
    assert answer.status_code == 400
    assert sim.log("flash_started") == []


def test_one_flash_at_a_time_per_node_and_none_without_power(make):
    sim = make(time_scale=60.0)
    flash(sim)
    again = push(sim, build_image(GPU_FAMILY, version="9.9"))
    assert (again.status_code, "Retry-After" in again.headers) == (503, True)
    assert push(sim, build_image(GPU_FAMILY, version="9.9"), node="n002").status_code == 202
    sim.power("ForceOff", "n003")
    sim.until(lambda: sim.power_state("n003") == "Off")
    off = push(sim, build_image(GPU_FAMILY, version="9.9"), node="n003")
    assert (off.status_code, off.json()["error"]["code"]) == (409, "Base.1.18.ResourceInStandby")
    assert len(sim.log("flash_started")) == 2


def test_a_flash_that_loses_its_power_fails_and_changes_nothing(make):
    sim = make(time_scale=60.0)
    path = flash(sim, version="9.9")
    assert sim.power("ForceRestart").status_code == 204
    body = task(sim, path)
    assert (body["TaskState"], said(body)[-1]) == ("Exception", "ApplyFailed")
    assert version(sim) == VBIOS
    assert len(sim.log("flash_failed")) == 1


def test_a_killed_simulator_goes_on_with_the_flash(make):
    sim = make(time_scale=600.0)
    path = flash(sim, version="9.9")
    sim.end(signal.SIGKILL)
    sim.start()
    assert ended(sim, path)["TaskState"] == "Completed"
    assert version(sim) == "9.9"
    assert len(sim.log("flash_started")) == len(sim.log("flash_done")) == 1


def test_firmware_of_a_running_gpu_takes_its_job(make):
    sim = make(busy=1.0)
    slot = sim.get("/scheduler/nodes/n001").json()["jobs"][0]["gpus"][0]
    ended(sim, flash(sim, component=f"HGX_FW_GPU_SXM_{int(slot[3:]) + 1}", version="9.9"))
    assert [row["why"] for row in sim.log("job_killed", node="n001")] == ["firmware"]


def test_the_index_names_every_image_with_its_digest(sim):
    said_there = json.loads((sim.config.dir / "simulator.json").read_text())
    index = json.loads(Path(said_there["firmware_index"]).read_text())
    assert {row["version"] for row in index if row["wanted"]} == set(WANTED.values())
    for row in index:
        data = Path(row["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["sha256"]
        assert read_image(data) == Image(row["component"].removesuffix("_*"), row["version"])
        assert sim.get(f"/firmware/{row['name']}").content == data
    assert sim.get("/firmware/other").status_code == 404
    with pytest.raises(BadImage):
        read_image(b"SICKBAY-FIRMWARE-1\n{}\n")


# How controllers misbehave.


def test_c53_a_completed_critical_task_has_changed_nothing(sim):
    sim.post("/bmc-faults", node="n001", fault="completed_critical")
    body = ended(sim, flash(sim, version="9.9"))
    assert (body["TaskState"], body["TaskStatus"]) == ("Completed", "Critical")
    assert body["PercentComplete"] == 100
    assert version(sim) == VBIOS
    assert sim.log("flash_done") == []
    ended(sim, flash(sim, version="9.9"))
    assert version(sim) == "9.9", "the next one is well"


def test_c53_a_task_at_100_percent_may_be_running_still(make):
    sim = make(time_scale=900.0)
    sim.post("/bmc-faults", node="n001", fault="stuck_at_100", minutes=30)
    path = flash(sim, version="9.9")
    sim.until(lambda: task(sim, path)["PercentComplete"] == 100)
    assert task(sim, path)["TaskState"] == "Running"
    assert version(sim) == VBIOS
    assert ended(sim, path)["TaskStatus"] == "OK"
    assert version(sim) == "9.9"


def test_c53_a_task_may_be_gone_while_its_flash_goes_on(make):
    sim = make(time_scale=900.0)
    sim.post("/bmc-faults", node="n001", fault="task_gone")
    path = flash(sim, version="9.9")
    assert task(sim, path)["TaskState"] == "Running"
    sim.until(lambda: sim.redfish(path).status_code == 404)
    assert sim.redfish(path.replace("Tasks", "TaskMonitors")).status_code == 404
    assert version(sim) == VBIOS
    assert sim.redfish("/TaskService/Tasks").json()["Members"] == []
    sim.until(lambda: version(sim) == "9.9")


def test_c53_a_task_may_be_gone_because_its_flash_died(sim):
    sim.post("/bmc-faults", node="n001", fault="task_died")
    path = flash(sim, version="9.9")
    sim.until(lambda: sim.log("flash_failed"))
    assert sim.redfish(path).status_code == 404
    assert version(sim) == VBIOS


@pytest.mark.parametrize(("needs", "enough"), [("boot", "reboot"), ("power_cycle", "PowerCycle")])
def test_a_staged_version_waits_for_its_start(sim, needs, enough):
    sim.inject("firmware_wedged")
    sim.post("/bmc-faults", node="n001", fault="staged", needs=needs)
    body = ended(sim, flash(sim))
    assert (body["TaskState"], said(body)[-1]) == ("Completed", "AwaitToActivate")
    assert version(sim) == WEDGING
    assert sim.faults() == ["firmware_wedged"]
    if enough == "PowerCycle":
        sim.reboot()
        assert version(sim) == WEDGING, "a warm start is not enough"
        cycle(sim)
    else:
        sim.reboot()
    assert version(sim) == VBIOS
    assert sim.faults() == []
    assert sim.log("fault_cured")[0]["by"] == "reflash"
    assert sim.metric("PCIE_LINK_WIDTH") == 16


def test_a_client_may_ask_for_the_next_boot(sim):
    ended(sim, flash(sim, version="9.9", **{"@Redfish.OperationApplyTime": "OnReset"}))
    assert version(sim) == VBIOS
    sim.reboot()
    assert version(sim) == "9.9"
    odd = push(sim, b"", **{"@Redfish.OperationApplyTime": "AtMidnight"})
    assert odd.status_code == 400


def test_a_staged_version_is_gone_with_its_part(sim):
    sim.post("/bmc-faults", node="n001", fault="staged")
    ended(sim, flash(sim, version="9.9"))
    sim.post("/technician/replace", node="n001", slot="gpu3")
    assert version(sim) == VBIOS


def test_a_slow_flash_takes_ten_times_as_long(make):
    sim = make(time_scale=3600.0)
    sim.post("/bmc-faults", node="n001", fault="slow")
    path = flash(sim, version="9.9")
    quick = flash_of(sim, "n002")
    ended(sim, quick)
    assert task(sim, path)["TaskState"] == "Running"
    assert task(sim, path)["PercentComplete"] < 50
    assert ended(sim, path)["TaskState"] == "Completed"


def flash_of(sim, node):
    answer = push(sim, build_image(GPU_FAMILY, version="9.9"), node=node)
    return task_path(answer)


def test_a_digest_found_wrong_fails_a_good_image(sim):
    sim.post("/bmc-faults", node="n001", fault="wrong_digest")
    body = ended(sim, flash(sim, version="9.9"))
    assert (body["TaskState"], said(body)[-1]) == ("Exception", "VerificationFailed")
    assert version(sim) == VBIOS


def test_a_lost_answer_of_a_flash_is_one_flash(sim):
    sim.post("/bmc-faults", node="n001", fault="lost_answer", act="flash")
    with pytest.raises(Exception, match="disconnected"):
        push(sim, build_image(GPU_FAMILY, version="9.9"))
    sim.until(lambda: version(sim) == "9.9")
    assert len(sim.log("flash_started")) == 1


def test_a_refused_flash_writes_nothing_and_keeps_the_other_misbehaviour(sim):
    sim.post("/bmc-faults", node="n001", fault="refused", act="flash", status=400)
    sim.post("/bmc-faults", node="n001", fault="staged")
    assert push(sim, build_image(GPU_FAMILY, version="9.9")).status_code == 400
    assert sim.log("flash_started") == []
    body = ended(sim, flash(sim, version="9.9"))
    assert said(body)[-1] == "AwaitToActivate"


def test_the_docs_name_every_fault_and_every_misbehaviour():
    page = Path(__file__).parents[2] / "docs" / "reference" / "simulated-fleet.md"
    text = page.read_text(encoding="utf-8")
    assert [name for name in (*FaultKind, *Behaviour) if f"`{name}`" not in text] == []
    assert set(BEHAVIOUR_SAYS) == set(Behaviour)
