"""The same activities over the simulated fleet's controllers: real HTTPS, real tasks, real power.

What happened is read from the fleet's own log, never from what the code under test wrote.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter

import httpx
import pytest
from temporalio.testing import ActivityEnvironment

from sickbay.adapters.exporter_pages import ExporterPages
from sickbay.adapters.simulated_scheduler import SimulatedScheduler
from sickbay.contracts.firmware import TaskState
from sickbay.contracts.steps import Outcome, Permission, StepRequest, TreatmentRequest
from sickbay.domain.firmware import FirmwareImage, FirmwareTarget
from sickbay.domain.node import Treatment
from sickbay.domain.power import PowerState
from sickbay.errors import BmcCertificate, BmcPassword, UsageError
from sickbay.settings import load_settings
from sickbay.simulator.config import JobLoad, SimulatorConfig
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords
from sickbay.testing import MemorySafety
from sickbay.testing.bmc_conformance import BMC_RULES, BmcBench
from workers.fleet import load_inventory
from workers.out_of_band import Around, out_of_band_activities, published
from workers.wiring import Outside, activities_of

GPU4 = "HGX_FW_GPU_SXM_4"
SCALE = 1200.0


class Fleet:
    """A simulator process with four nodes; `log` is its own record of what happened."""

    def __init__(self, home):
        self.config = SimulatorConfig(
            dir=home / "sim",
            nodes=4,
            pools=2,
            time_scale=SCALE,
            jobs=JobLoad(busy=0.0),
            bmc_session_s=1.0,
        )
        self.config.dir.mkdir()
        self.http = httpx.Client(timeout=10)
        self.process = None

    def start(self):
        file = self.config.dir / "config.json"
        self.config.save(file)
        argv = [sys.executable, "-m", "sickbay.simulator", "--config", str(file)]
        with (self.config.dir / "out").open("ab") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out)
        ready = self.config.dir / "simulator.json"
        ends = time.monotonic() + 60
        while not ready.exists():
            assert self.process.poll() is None, (self.config.dir / "out").read_text()
            assert time.monotonic() < ends
            time.sleep(0.05)
        self.told = {k: str(v) for k, v in json.loads(ready.read_text()).items()}
        self.base = self.told["base_url"]

    def end(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(10)
            self.process = None

    def post(self, path, **body):
        answer = self.http.post(self.base + path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def happened(self, *kinds, node="n001"):
        rows = self.http.get(f"{self.base}/log").json()
        return Counter(r["kind"] for r in rows if r["kind"] in kinds and r.get("node") == node)

    def faults(self, node="n001"):
        rows = self.http.get(f"{self.base}/truth").json()["faults"]
        return [f["kind"] for f in rows if f["node"] == node]


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path)
    made.start()
    yield made
    made.end()


class Hands:
    """The wired activities, and short ways to use them."""

    def __init__(self, fleet, activities, *, safety, scheduler):
        self.fleet = fleet
        self.activities = activities
        self.safety = safety
        self.scheduler = scheduler

    async def drain(self, node="n001"):
        mark = f"sickbay:{node}.r1"
        assert (await self.scheduler.close_gate(node, mark=mark, reason="test")).outcome is (
            Outcome.SUCCEEDED
        )

    def request(self, treatment, *, node="n001", ordinal=1, firmware=None, deadline_s=40.0):
        step = StepRequest(f"{node}.r1", f"{node}.r1/{ordinal}-{treatment}", node, "pool-a")
        mark = f"sickbay:{node}.r1"
        return TreatmentRequest(step, treatment, None, (node,), mark, deadline_s, firmware)

    async def act(self, treatment, **more):
        method = getattr(self.activities, str(treatment))
        return await ActivityEnvironment().run(method, self.request(treatment, **more))


@pytest.fixture
async def wired(fleet, tmp_path):
    """Gives the hands of a control worker with these settings of `bmc`."""
    store = await open_store(f"sqlite+aiosqlite:///{tmp_path / 's.db'}")
    records = StoreRecords(store)
    client = httpx.AsyncClient(timeout=5.0)

    async def build(*, told=None, **bmc):
        where = {"base_url": fleet.base, "directory": fleet.config.dir, "http": client}
        nodes = await load_inventory(Outside(**where, told=fleet.told), records)
        settings = load_settings(
            None, environ={}, simulator={"enabled": True}, time_scale=SCALE, bmc=bmc
        )
        safety = MemorySafety(mode=Permission.ACT)
        scheduler = SimulatedScheduler(fleet.base, client=client)
        pages = ExporterPages(
            {n.id: f"{fleet.base}/nodes/{n.id}/metrics" for n in nodes}, client=client
        )
        around = Around(store, scheduler, witness=pages, safety=safety, inventory=records)
        found = out_of_band_activities(
            settings,
            around=around,
            simulated=fleet.told if told is None else told,
            directory=fleet.config.dir,
        )
        return [Hands(fleet, a, safety=safety, scheduler=scheduler) for a in found]

    yield build
    await client.aclose()
    await store.close()


def wedge(fleet, kind, slot="gpu3"):
    fleet.post("/faults", node="n001", kind=kind, slot=slot)
    assert kind in fleet.faults()


@pytest.mark.timeout(120)
async def test_a_power_cycle_cures_what_only_a_cold_one_does_and_a_lost_answer_doubles_nothing(
    fleet, wired
):
    (hands,) = await wired()
    wedge(fleet, "off_bus_cold")
    not_drained = await hands.act(Treatment.POWER_CYCLE)
    assert not_drained.effect.detail.startswith("not drained")
    await hands.drain()
    fleet.post("/bmc-faults", node="n001", fault="lost_answer", act="power", times=2)
    result = await hands.act(Treatment.POWER_CYCLE)
    assert result.ok, result
    assert fleet.faults() == []
    assert fleet.happened("power_off", "power_on") == {"power_off": 1, "power_on": 1}
    assert (await hands.act(Treatment.POWER_CYCLE)).ok
    assert fleet.happened("power_off")["power_off"] == 1


@pytest.mark.timeout(120)
async def test_c53_a_slow_controller_and_a_refusal_are_outlasted(fleet, wired):
    (hands,) = await wired()
    await hands.drain()
    fleet.post("/bmc-faults", node="n001", fault="slow_bmc", times=2)
    fleet.post("/bmc-faults", node="n001", fault="refused", act="power", status=503)
    assert (await hands.act(Treatment.POWER_CYCLE)).ok
    assert fleet.happened("power_off", "power_on") == {"power_off": 1, "power_on": 1}


@pytest.mark.timeout(120)
async def test_a_reflash_cures_what_only_a_reflash_does(fleet, wired):
    (hands,) = await wired()
    wedge(fleet, "firmware_wedged")
    await hands.drain()
    result = await hands.act(Treatment.REFLASH)
    assert result.ok, result
    assert GPU4 in result.effect.detail
    assert fleet.faults() == []
    assert fleet.happened("flash_started", "flash_done") == {"flash_started": 1, "flash_done": 1}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("behaviour", "ok"),
    [
        ("staged", True),
        ("completed_critical", False),
        ("stuck_at_100", True),
        ("task_gone", True),
        ("task_died", False),
        ("lost_answer", True),
    ],
)
async def test_c53_each_way_a_flash_goes_ends_in_one_flash_and_the_version_decides(
    fleet, wired, behaviour, ok
):
    (hands,) = await wired()
    wedge(fleet, "firmware_wedged")
    await hands.drain()
    more = {"act": "flash"} if behaviour == "lost_answer" else {}
    fleet.post("/bmc-faults", node="n001", fault=behaviour, **more)
    result = await hands.act(Treatment.REFLASH, deadline_s=60.0)
    assert result.ok is ok, result
    assert fleet.happened("flash_started")["flash_started"] == 1
    assert (fleet.faults() == []) is ok
    again = await hands.act(Treatment.REFLASH)
    assert again.effect == result.effect
    assert fleet.happened("flash_started")["flash_started"] == 1


@pytest.mark.timeout(90)
async def test_an_image_whose_digest_differs_is_never_sent_and_both_digests_are_named(fleet, wired):
    (hands,) = await wired()
    wedge(fleet, "firmware_wedged")
    await hands.drain()
    image = next(i for i in published(fleet.config.dir) if i.component == "HGX_FW_GPU_SXM_*")
    with open(image.source, "ab") as file:  # noqa: PTH123, ASYNC230
        file.write(b"more")
    result = await hands.act(Treatment.REFLASH)
    assert result.effect.outcome is Outcome.PERMANENT
    assert image.sha256 in result.effect.detail
    assert result.effect.detail.count("SHA-256") == 1
    assert fleet.happened("flash_started") == {}
    unknown = FirmwareTarget(GPU4, "0.0")
    refused = await hands.act(Treatment.REFLASH, ordinal=2, firmware=unknown)
    assert "firmware.images" in refused.effect.detail


@pytest.mark.timeout(90)
async def test_the_inventory_is_the_node_s_own_and_a_task_nobody_knows_is_gone(fleet, wired):
    (hands,) = await wired()
    firmware = hands.activities._out.firmware
    wedge(fleet, "firmware_wedged")
    mine, other = await asyncio.gather(firmware.versions("n001"), firmware.versions("n002"))
    assert set(mine) == set(other)
    assert mine[GPU4] != other[GPU4]
    gone = await firmware.task("n001", task="/redfish/v1/TaskService/Tasks/none")
    assert gone.state is TaskState.GONE
    missing = FirmwareImage("NIC_*", "1", "*", "nowhere.bin", "0" * 64)
    start = await firmware.flash("n002", image=missing, components=["NIC_7"])
    assert (start.effect.outcome, start.sent) == (Outcome.PERMANENT, False)
    assert "NIC_7" in start.effect.detail
    fleet.end()
    unknown = await firmware.task("n001", task="/redfish/v1/TaskService/Tasks/none")
    assert unknown.state is TaskState.UNKNOWN


@pytest.mark.timeout(90)
@pytest.mark.parametrize("rule", BMC_RULES, ids=lambda rule: rule.__name__)
async def test_the_controllers_of_the_simulated_fleet_conform(fleet, wired, rule):
    (hands,) = await wired()

    async def acts():
        return sum(fleet.happened("power_off", "power_on").values())

    async def take_away():
        fleet.post("/bmc-faults", node="n001", fault="unreachable", times=0)

    await rule(BmcBench(hands.activities._out.bmc, "n001", acts=acts, take_away=take_away))


@pytest.mark.timeout(90)
async def test_a_session_that_ran_out_is_opened_again(wired):
    (hands,) = await wired()
    power = hands.activities._out.bmc
    assert await power.power_state("n001") is PowerState.ON
    await asyncio.sleep(1.6)
    await hands.drain()
    assert (await hands.act(Treatment.POWER_CYCLE)).ok


@pytest.mark.timeout(90)
async def test_without_controllers_there_are_no_such_activities(wired):
    assert await wired(told={}) == []
    (hands,) = await wired()
    definitions = [m.__temporal_activity_definition for m in activities_of(hands.activities)]
    assert {d.name for d in definitions} == {"power_cycle", "reflash"}


@pytest.mark.timeout(90)
async def test_a_wrong_certificate_or_password_is_told_and_nothing_is_done(fleet, wired, tmp_path):
    account = {"url": fleet.told["bmc_url"], "username": fleet.told["bmc_user"]}
    right = {"ca_file": fleet.told["bmc_ca_file"], "password_file": fleet.told["bmc_password_file"]}
    guess = tmp_path / "guess"
    guess.write_text("guess\n")
    for wrong, kind in (
        ({"password_file": str(guess)}, BmcPassword),
        ({"ca_file": None}, BmcCertificate),
    ):
        (hands,) = await wired(**{**account, **right, **wrong})
        await hands.drain()
        with pytest.raises(kind):
            await hands.activities._out.bmc.power_state("n001")
        result = await hands.act(Treatment.POWER_CYCLE, ordinal=hash(kind) % 1000)
        assert result.effect.outcome is Outcome.PERMANENT
        assert "controller of n001" in result.effect.detail
    assert fleet.happened("power_off") == {}
    with pytest.raises(UsageError, match=r"nowhere.*cannot be read") as raised:
        await wired(**{**account, **right, "password_file": str(tmp_path / "nowhere")})
    assert raised.value.field == "bmc.password_file"
