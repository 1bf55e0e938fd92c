"""Power through the management controllers: what the real client library and plain HTTP see."""

import signal
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import httpx
import pytest
import sushy
import sushy.auth
import sushy.connector
import sushy.exceptions


def client(sim, *, auth=None, verify=True):
    auth = auth or sushy.auth.SessionAuth(sim.config.bmc_user, sim.password)
    connector = sushy.connector.Connector(
        sim.bmc_url, verify=verify, server_side_retries=1, default_request_timeout=5
    )
    return sushy.Sushy(sim.bmc_url, auth=auth, connector=connector, verify=verify)


def test_sushy_finds_every_node_and_its_power(sim):
    root = client(sim)
    systems = root.get_system_collection().get_members()
    assert [system.identity for system in systems] == ["n001", "n002", "n003", "n004"]
    assert {system.power_state for system in systems} == {sushy.PowerState.ON}
    one = root.get_system("/redfish/v1/Systems/n001")
    assert (
        one.boot_progress.last_state
        is sushy.resources.system.constants.BootProgressStates.OS_RUNNING
    )
    assert one.get_allowed_reset_system_values() == {
        sushy.ResetType.ON,
        sushy.ResetType.FORCE_OFF,
        sushy.ResetType.GRACEFUL_SHUTDOWN,
        sushy.ResetType.FORCE_RESTART,
        sushy.ResetType.POWER_CYCLE,
    }
    assert [manager.identity for manager in one.managers] == ["n001"]
    assert [chassis.identity for chassis in one.chassis] == ["n001"]


def test_off_takes_the_node_away_and_on_boots_it_anew(make):
    sim = make(busy=1.0)
    before, job = sim.boot_id(), sim.get("/scheduler/nodes/n001").json()["jobs"][0]["id"]
    system = client(sim).get_system("/redfish/v1/Systems/n001")
    system.reset_system(sushy.ResetType.FORCE_OFF)
    assert sim.boot_id() == ""
    assert sim.get("/nodes/n001/metrics").status_code == 503
    assert sim.run("nvidia-smi", "-L").code == 255
    assert sim.log("job_killed", node="n001")[0]["job"] == job
    assert sim.get("/scheduler/nodes/n001").json()["state"] == "down"
    sim.until(lambda: sim.power_state() == "Off")
    time.sleep(0.5)
    assert sim.power_state() == "Off", "it stays off"
    system.reset_system(sushy.ResetType.ON)
    sim.until(sim.boot_id)
    assert sim.boot_id() != before
    system.refresh()
    assert system.power_state is sushy.PowerState.ON
    assert [row["kind"] for row in sim.log() if row["kind"].startswith("power")] == [
        "power_off",
        "power_on",
    ]


def test_power_takes_simulated_time_to_change(make):
    sim = make(time_scale=10.0)
    sim.power("ForceOff")
    assert sim.power_state() == "PoweringOff"
    busy = sim.power("On")
    assert (busy.status_code, int(busy.headers["Retry-After"]) > 0) == (503, True)
    sim.until(lambda: sim.power_state() == "Off")
    sim.power("On")
    assert sim.power_state() == "PoweringOn"
    sim.until(lambda: sim.power_state() == "On")
    assert sim.system()["BootProgress"]["LastState"] == "OSBootStarted"
    assert sim.boot_id() == "", "power is there long before the system is"


@pytest.mark.parametrize("kind", ["PowerCycle", "ForceRestart"])
def test_a_restart_has_a_new_boot_and_a_new_reset_time(sim, kind):
    before, reset = sim.boot_id(), datetime.fromisoformat(sim.system()["LastResetTime"])
    time.sleep(0.01)
    assert sim.power(kind).status_code == 204
    sim.until(lambda: sim.boot_id() not in ("", before))
    after = datetime.fromisoformat(sim.system()["LastResetTime"])
    assert reset < after <= datetime.now(UTC)
    assert sim.system()["BootProgress"]["LastState"] == "OSRunning"


def test_a_reboot_by_the_system_itself_moves_the_reset_time_too(sim):
    before = sim.system()["LastResetTime"]
    time.sleep(0.01)
    sim.reboot()
    assert sim.system()["LastResetTime"] > before


def test_what_is_so_already_is_no_act(sim):
    assert sim.power("On").status_code == 204
    sim.power("GracefulShutdown")
    sim.until(lambda: sim.power_state() == "Off")
    assert sim.power("ForceOff").status_code == 204
    standby = sim.power("PowerCycle")
    assert (standby.status_code, standby.json()["error"]["code"]) == (
        409,
        "Base.1.18.ResourceInStandby",
    )
    assert sim.power("ForceRestart").status_code == 409
    assert [row["kind"] for row in sim.log() if row["kind"].startswith("power")] == ["power_off"]


def test_off_wins_over_a_cycle_that_is_under_way(make):
    sim = make(time_scale=60.0)
    sim.power("PowerCycle")
    sim.power("ForceOff")
    sim.until(lambda: sim.power_state() == "Off")
    time.sleep(0.6)
    assert sim.power_state() == "Off"
    assert sim.log("power_on") == []


def test_a_lost_gpu_comes_back_with_a_cold_power_cycle_alone(sim):
    sim.inject("off_bus_cold")
    uuid = sim.part()["uuid"]
    assert any(": 79, GPU has fallen off the bus" in line for line in sim.kernel())
    assert sim.reset().code == 15
    sim.reboot()
    assert uuid not in sim.page()["GPU_TEMP"], "missing after a reboot"
    before = sim.boot_id()
    sim.power("ForceRestart")
    sim.until(lambda: sim.boot_id() not in ("", before))
    assert uuid not in sim.page()["GPU_TEMP"], "a warm restart is no power cycle"
    before = sim.boot_id()
    sim.power("PowerCycle")
    sim.until(lambda: sim.boot_id() not in ("", before))
    assert uuid in sim.page()["GPU_TEMP"]
    assert sim.diag("3") == (0, {})
    assert sim.log("fault_cured")[0]["by"] == "power_cycle"


def test_a_dead_gpu_stays_away_after_a_power_cycle(sim):
    sim.inject("off_bus_dead")
    before = sim.boot_id()
    sim.power("PowerCycle")
    sim.until(lambda: sim.boot_id() not in ("", before))
    assert sim.faults() == ["off_bus_dead"]
    assert len(sim.page()["GPU_TEMP"]) == 7


def test_a_technician_may_work_while_the_power_is_off(sim):
    sim.inject("off_bus_dead")
    sim.power("ForceOff")
    sim.until(lambda: sim.power_state() == "Off")
    assert sim.post("/technician/replace", node="n001", slot="gpu3").status_code == 200
    assert sim.power_state() == "On"
    assert sim.faults() == []
    assert len(sim.page()["GPU_TEMP"]) == 8


def test_a_killed_simulator_finishes_the_power_cycle_once(make):
    sim = make(time_scale=240.0)
    before = sim.boot_id()
    sim.power("PowerCycle")
    sim.end(signal.SIGKILL)
    sim.start()
    assert sim.power_state() in ("PoweringOff", "Off", "PoweringOn", "On")
    sim.until(lambda: sim.boot_id() not in ("", before), seconds=30)
    assert len(sim.log("power_off")) == len(sim.log("power_on")) == 1


def test_refusals_speak_redfish(sim):
    wrong = sim.power("Nmi")
    assert (wrong.status_code, "ForceOff" in wrong.json()["error"]["message"]) == (400, True)
    empty = sim.redfish("/Systems/n001/Actions/ComputerSystem.Reset", method="POST", json={})
    assert empty.json()["error"]["code"].endswith("ActionParameterMissing")
    assert sim.redfish("/Systems/n404").status_code == 404
    assert sim.redfish("/Nowhere").status_code == 404
    assert sim.redfish("/Systems/n001", method="DELETE").status_code == 405
    broken = sim.redfish("/Systems/n001/Actions/ComputerSystem.Reset", method="POST", content=b"{")
    assert broken.json()["error"]["code"].endswith("MalformedJSON")
    with pytest.raises(sushy.exceptions.ResourceNotFoundError):
        client(sim).get_system("/redfish/v1/Systems/n404")


def test_nobody_acts_without_the_password(sim):
    root = sim.http.get(f"{sim.bmc_url}/redfish/v1/")
    assert root.status_code == 200
    for auth in (None, ("admin", "guess"), ("someone", sim.password), ("admin", "")):
        answer = sim.redfish("/Systems/n001", auth=auth)
        assert answer.status_code == 401
        assert "WWW-Authenticate" in answer.headers
    refused = sim.redfish(
        "/Systems/n001/Actions/ComputerSystem.Reset",
        method="POST",
        auth=("admin", "guess"),
        json={"ResetType": "ForceOff"},
    )
    assert (refused.status_code, sim.power_state()) == (401, "On")
    with pytest.raises(sushy.exceptions.AccessError):
        client(sim, auth=sushy.auth.SessionAuth("admin", "guess")).get_system_collection()
    assert (sim.config.dir / "bmc_password").stat().st_mode & 0o777 == 0o600


def test_the_password_can_be_changed_in_its_file(sim):
    (sim.config.dir / "bmc_password").write_text("another one\n")
    assert sim.redfish("/Systems/n001").status_code == 401
    assert sim.redfish("/Systems/n001", auth=("admin", "another one")).status_code == 200


def test_sessions_end_when_closed_and_by_themselves(make):
    sim = make(bmc_session_s=0.5)
    opened = sim.http.post(
        f"{sim.bmc_url}/redfish/v1/SessionService/Sessions",
        json={"UserName": "admin", "Password": sim.password},
    )
    assert opened.status_code == 201
    token = {"X-Auth-Token": opened.headers["X-Auth-Token"]}
    place = opened.headers["Location"]
    assert sim.http.get(f"{sim.bmc_url}{place}", headers=token).json()["UserName"] == "admin"
    for _ in range(3):
        time.sleep(0.25)
        assert sim.redfish("/Systems", auth=None, headers=token).status_code == 200, "in use"
    time.sleep(0.7)
    assert sim.redfish("/Systems", auth=None, headers=token).status_code == 401
    # The real client opens a new one by itself.
    root = client(sim)
    time.sleep(0.7)
    assert root.get_system("/redfish/v1/Systems/n002").power_state is sushy.PowerState.ON
    again = sim.http.post(
        f"{sim.bmc_url}/redfish/v1/SessionService/Sessions",
        json={"UserName": "admin", "Password": sim.password},
    )
    token = {"X-Auth-Token": again.headers["X-Auth-Token"]}
    assert (
        sim.http.delete(sim.bmc_url + again.headers["Location"], headers=token).status_code == 204
    )
    assert sim.redfish("/Systems", auth=None, headers=token).status_code == 401


def test_the_certificate_is_verified_and_survives_a_restart(make):
    sim = make(bmc_tls=True)
    ca = str(sim.config.dir / "bmc_ca.pem")
    assert sim.bmc_url.startswith("https://127.0.0.1:")
    with pytest.raises(sushy.exceptions.ConnectionError, match="certificate verify failed"):
        client(sim)
    system = client(sim, verify=ca).get_system("/redfish/v1/Systems/n003")
    assert system.power_state is sushy.PowerState.ON
    url = sim.bmc_url
    sim.end(signal.SIGKILL)
    sim.start()
    assert sim.bmc_url == url
    assert client(sim, verify=ca).get_system("/redfish/v1/Systems/n003").identity == "n003"
    assert (sim.config.dir / "bmc_key.pem").stat().st_mode & 0o777 == 0o600


def test_a_lost_answer_is_an_act_that_was_done(sim):
    sim.post("/bmc-faults", node="n001", fault="lost_answer")
    with pytest.raises(httpx.RemoteProtocolError):
        sim.power("ForceOff")
    sim.until(lambda: sim.power_state() == "Off")
    assert len(sim.log("power_off")) == 1
    assert sim.power("On").status_code == 204, "one answer only is lost"


def test_a_lost_answer_may_keep_its_client_waiting(sim):
    sim.post("/bmc-faults", node="n001", fault="lost_answer", hang_s=2)
    with pytest.raises(httpx.ReadTimeout):
        sim.redfish(
            "/Systems/n001/Actions/ComputerSystem.Reset",
            method="POST",
            json={"ResetType": "ForceOff"},
            timeout=0.3,
        )
    assert len(sim.log("power_off")) == 1


@pytest.mark.parametrize("status", [400, 503])
def test_a_refused_act_is_not_done(sim, status):
    sim.post("/bmc-faults", node="n001", fault="refused", status=status, act="power")
    assert sim.power("ForceOff").status_code == status
    assert sim.power_state() == "On"
    assert sim.log("power_off") == []
    assert sim.power("ForceOff").status_code == 204


def test_a_controller_is_silent_for_minutes_after_a_change_of_power(make):
    sim = make(time_scale=240.0)
    sim.post("/bmc-faults", node="n001", fault="slow_bmc", minutes=4)
    assert sim.power("ForceOff").status_code == 204
    with pytest.raises(httpx.RemoteProtocolError):
        sim.redfish("/Systems/n001")
    assert sim.power_state("n002") == "On", "the others answer"
    time.sleep(1.2)
    assert sim.power_state() == "Off"


def test_a_controller_restarts_without_its_node(make):
    sim = make(time_scale=240.0)
    boot = sim.boot_id()
    path = "/Managers/n001/Actions/Manager.Reset"
    assert sim.redfish(path, method="POST", json={"ResetType": "Odd"}).status_code == 400
    assert sim.redfish(path, method="POST", json={}).status_code == 204
    with pytest.raises(httpx.RemoteProtocolError):
        sim.redfish("/Systems/n001")
    time.sleep(0.6)
    assert sim.power_state() == "On"
    assert sim.boot_id() == boot


def test_an_unreachable_controller_stays_so_until_it_is_cleared(sim):
    sim.post("/bmc-faults", node="n001", fault="unreachable", times=0)
    for _ in range(2):
        with pytest.raises(httpx.RemoteProtocolError):
            sim.redfish("/Systems/n001")
    assert sim.post("/bmc-faults/clear", node="n001").json() == {"cleared": 1}
    assert sim.power_state() == "On"


@pytest.mark.parametrize(
    "body",
    [
        {"node": "n001", "fault": "odd"},
        {"node": "n001", "fault": "refused", "status": 200},
        {"node": "n001", "fault": "refused", "act": "walk"},
        {"node": "n001", "fault": "slow_bmc", "minutes": "long"},
        {"node": "n001", "fault": "slow_bmc", "hours": 1},
        {"fault": "slow_bmc"},
    ],
)
def test_a_wrong_misbehaviour_is_refused_with_a_sentence(sim, body):
    answer = sim.post("/bmc-faults", **body)
    assert answer.status_code == 422
    assert answer.json()["error"]
    assert sim.get("/bmc-faults").json()["set"] == []


def test_the_service_keeps_to_the_protocol(sim):
    """What the protocol's own validator looks at and clients may lean on."""
    base = f"{sim.bmc_url}/redfish/v1"
    metadata = sim.http.get(f"{base}/$metadata")
    assert metadata.headers["Content-Type"].startswith("application/xml")
    document = ET.fromstring(metadata.text)  # noqa: S314 - our own service wrote it
    container = document.findall(".//{*}EntityContainer")
    assert [found.get("Name") for found in container] == ["Service"]
    listed = {row["url"] for row in sim.http.get(f"{base}/odata").json()["value"]}
    assert all(sim.redfish(url.removeprefix("/redfish/v1")).status_code == 200 for url in listed)
    root = sim.http.get(f"{base}/")
    assert root.headers["Allow"] == "GET, HEAD"
    assert root.headers["OData-Version"] == "4.0"
    wrong = sim.http.post(f"{base}/Systems/n001", headers={"X-Auth-Token": "x"})
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET, HEAD")
    assert sim.http.get(f"{base}/", headers={"OData-Version": "4.1"}).status_code == 412
    assert sim.http.get(f"{base}/?$odd=1").status_code == 501
    assert sim.http.head(f"{base}/").content == b""
