"""Power by IPMI against a simulated controller of another project that speaks RMCP+."""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sickbay.adapters.ipmi import IpmiAccess, IpmiPower, NoFirmware
from sickbay.contracts.steps import Outcome
from sickbay.domain.power import PowerState
from sickbay.errors import BmcPassword, BmcUnknownSystem, BmcUnreachable
from sickbay.out_of_band_settings import BmcSettings
from sickbay.settings import Settings
from sickbay.testing.bmc_conformance import BMC_RULES, BmcBench

PASSWORD = "secret-1"
CONTROLLER = """name "bmc1"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "{chassis}"
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "admin" "{password}" admin 10 none md2 md5 straight
"""
BOARD = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
mc_enable 0x20
"""
# What the controller runs for `get power` and `set power 0|1`.
CHASSIS = """#!/bin/sh
state={home}/power
op=$1; shift
case "$op $1" in
  "get power") echo "power:$(cat $state)" ;;
  "set power") [ -f {home}/stuck ] || echo $2 >$state; echo $2 >>{home}/acts ;;
esac
"""


@dataclass
class Controller:
    """A running controller of one node that is on."""

    home: Path
    port: int
    process: subprocess.Popen[bytes]

    def power(self, **more):
        options = {"password": lambda: PASSWORD, "username": "admin", "timeout_s": 15.0, **more}
        url = options.pop("url", f"ipmi://{{node}}:{self.port}")
        return IpmiPower(IpmiAccess(url=url, **options), env={"PATH": os.environ["PATH"]})

    async def acts(self):
        file = self.home / "acts"
        return len(file.read_text().split()) if file.exists() else 0

    async def take_away(self):
        self.process.kill()
        self.process.wait(10)


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
async def controller(tmp_path):
    if shutil.which("ipmi_sim") is None or shutil.which("ipmitool") is None:
        pytest.skip("ipmi_sim or ipmitool is missing: packages openipmi and ipmitool")
    port = free_port()
    chassis = tmp_path / "chassis"
    chassis.write_text(CHASSIS.format(home=tmp_path))
    chassis.chmod(0o755)
    (tmp_path / "power").write_text("1\n")
    (tmp_path / "lan.conf").write_text(
        CONTROLLER.format(port=port, chassis=chassis, password=PASSWORD)
    )
    (tmp_path / "sim.emu").write_text(BOARD)
    argv = ["ipmi_sim", "-c", tmp_path / "lan.conf", "-f", tmp_path / "sim.emu"]
    process = subprocess.Popen(
        [*argv, "-s", tmp_path / "state", "-n"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found = Controller(tmp_path, port, process)
    try:
        await _ready(found.power().power_state)
        yield found
    finally:
        process.kill()
        process.wait(10)


async def _ready(ask: Callable):
    for _ in range(20):
        try:
            await ask("localhost")
        except BmcUnreachable:
            await asyncio.sleep(0.2)
        else:
            return
    raise AssertionError("the controller did not come up")


@pytest.mark.parametrize("rule", BMC_RULES, ids=lambda rule: rule.__name__)
async def test_the_rules_of_every_controller_hold_over_ipmi(rule, controller):
    await rule(
        BmcBench(
            controller.power(),
            node="localhost",
            acts=controller.acts,
            take_away=controller.take_away,
        )
    )


async def test_a_wrong_password_is_said_and_is_no_silence(controller):
    wrong = controller.power(password=lambda: "not-the-one")
    with pytest.raises(BmcPassword, match="refuses our name or password"):
        await wrong.power_state("localhost")
    effect = await wrong.switch("localhost", on=False)
    assert effect.outcome is Outcome.PERMANENT
    assert (await controller.acts()) == 0


async def test_an_unknown_name_is_said(controller):
    with pytest.raises(BmcPassword):
        await controller.power(username="nobody").power_state("localhost")


async def test_an_accepted_switch_that_did_nothing_is_seen_in_the_state(controller):
    (controller.home / "stuck").touch()
    power = controller.power()
    assert (await power.switch("localhost", on=False)).outcome is Outcome.SUCCEEDED
    assert await power.power_state("localhost") is PowerState.ON


async def test_a_host_that_has_no_address_is_no_controller():
    def password():
        return PASSWORD

    power = IpmiPower(IpmiAccess(url="ipmi://{node}", username="admin", password=password))
    with pytest.raises(BmcUnknownSystem):
        await power.power_state("no-such-node.invalid")


def scripted(tmp_path, body):
    tool = tmp_path / "ipmitool"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    access = IpmiAccess(
        url="ipmi://{node}", username="admin", password=lambda: PASSWORD, timeout_s=1.0
    )
    return IpmiPower(access, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})


async def test_the_password_is_in_no_argument(tmp_path):
    power = scripted(
        tmp_path,
        f'echo "$@" >{tmp_path}/argv; echo "$IPMI_PASSWORD" >{tmp_path}/env; '
        'echo "Chassis Power is on"',
    )
    assert await power.power_state("localhost") is PowerState.ON
    assert PASSWORD not in (tmp_path / "argv").read_text()
    assert (tmp_path / "env").read_text().strip() == PASSWORD


STATUS_FIRST = 'case "$*" in *status) echo "Chassis Power is on"; exit 0;; esac; '


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (STATUS_FIRST + "sleep 60", Outcome.AMBIGUOUS),
        (STATUS_FIRST + "echo nonsense", Outcome.AMBIGUOUS),
        (
            STATUS_FIRST + "echo 'Set Chassis Power Control to Down/Off failed: Node busy'; exit 1",
            Outcome.TRANSIENT,
        ),
        (
            STATUS_FIRST + "echo 'Set Chassis Power Control to Down/Off failed: Invalid command';"
            " exit 1",
            Outcome.PERMANENT,
        ),
        (STATUS_FIRST + "echo 'Unable to Get response: No response'; exit 1", Outcome.AMBIGUOUS),
        ("sleep 60", Outcome.TRANSIENT),
        ("echo 'Error: Unable to establish IPMI v2 / RMCP+ session'; exit 1", Outcome.TRANSIENT),
    ],
)
async def test_a_lost_answer_is_ambiguous_and_a_question_that_failed_is_not(
    tmp_path, body, outcome
):
    assert (await scripted(tmp_path, body).switch("localhost", on=False)).outcome is outcome


async def test_ipmi_writes_no_firmware_and_says_so():
    start = await NoFirmware().flash("n001", image=None, components=())
    assert (start.effect.outcome, start.sent) == (Outcome.PERMANENT, False)
    assert await NoFirmware().versions("n001") == {}


def test_controllers_by_ipmi_offer_a_power_cycle_and_no_reflash():
    settings = Settings(bmc=BmcSettings(url="ipmi://{node}-bmc", username="admin"))
    available = {str(t) for t in settings.repair_policy("p").available}
    assert "power_cycle" in available
    assert "reflash" not in available


def test_one_ipmi_address_for_all_nodes_is_refused():
    with pytest.raises(ValueError, match="one IPMI controller has one node"):
        BmcSettings(url="ipmi://bmc")
