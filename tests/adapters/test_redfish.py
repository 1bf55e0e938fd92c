"""Power by Redfish, against sushy-emulator: a controller that is not ours."""

import asyncio
import json
import logging
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import bcrypt
import httpx
import pytest
import trustme

from sickbay.adapters.redfish import Access, Connections, RedfishPower
from sickbay.contracts.steps import Outcome
from sickbay.domain.power import PowerState
from sickbay.errors import (
    BmcCertificate,
    BmcGarbled,
    BmcPassword,
    BmcUnknownSystem,
    BmcUnreachable,
)

SECRET = "correct horse"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def emulator(home: Path, *, tls=None, password=""):
    """`sushy-emulator --fake` with two systems, until the end of the block; its address."""
    program = Path(sys.executable).with_name("sushy-emulator")
    port = free_port()
    systems = [
        {"uuid": n, "name": f"{n}-name", "power_state": s, "external_notifier": False, "nics": []}
        for n, s in (("n001", "On"), ("n002", "Off"))
    ]
    lines = [
        f"SUSHY_EMULATOR_FAKE_SYSTEMS = {systems!r}",
        f"SUSHY_EMULATOR_STATE_DIR = {str(home)!r}",
    ]
    scheme = "http"
    if password:
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        (home / "htpasswd").write_text(f"ops:{hashed}\n")
        lines.append(f"SUSHY_EMULATOR_AUTH_FILE = {str(home / 'htpasswd')!r}")
    if tls is not None:
        scheme = "https"
        cert = tls.issue_cert("127.0.0.1")
        cert.cert_chain_pems[0].write_to_path(str(home / "cert.pem"))
        cert.private_key_pem.write_to_path(str(home / "key.pem"))
        lines += [
            f"SUSHY_EMULATOR_SSL_CERT = {str(home / 'cert.pem')!r}",
            f"SUSHY_EMULATOR_SSL_KEY = {str(home / 'key.pem')!r}",
        ]
    (home / "emulator.conf").write_text("\n".join(lines) + "\n")
    log = (home / "emulator.log").open("w")
    running = subprocess.Popen(
        [program, "--fake", "--config", home / "emulator.conf", "-i", "127.0.0.1", "-p", str(port)],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    url = f"{scheme}://127.0.0.1:{port}"
    try:
        for _ in range(150):
            try:
                httpx.get(f"{url}/redfish/v1", verify=False, timeout=2)  # noqa: S501
                break
            except httpx.HTTPError:
                assert running.poll() is None, (home / "emulator.log").read_text()
                time.sleep(0.2)
        yield url
    finally:
        running.terminate()
        running.wait(10)
        log.close()


@pytest.fixture(scope="module", autouse=True)
def _the_emulator_is_there():
    if not Path(sys.executable).with_name("sushy-emulator").exists() and not shutil.which(
        "sushy-emulator"
    ):
        pytest.skip("sushy-emulator is missing: pip install 'sickbay[dev]'")


@pytest.fixture
def connect():
    """`connect(url, ...)` gives the adapter; its connections are closed afterwards."""
    made = []

    def build(url, **more):
        connections = Connections(Access(url, timeout_s=5.0, **more))
        made.append(connections)
        return RedfishPower(connections)

    yield build
    for connections in made:
        asyncio.run(connections.close())


async def until(power, node, state):
    for _ in range(200):
        if await power.power_state(node) is state:
            return
        await asyncio.sleep(0.2)
    pytest.fail(f"{node} never was {state}")


@pytest.mark.timeout(90)
async def test_a_node_is_switched_off_and_on_again_and_what_is_so_already_is_a_success(
    tmp_path, connect
):
    with emulator(tmp_path) as url:
        power = connect(url, system="{node}")
        assert await power.power_state("n001") is PowerState.ON
        assert await power.power_state("n002") is PowerState.OFF
        again = await power.switch("n001", on=True)
        assert (again.outcome, "already" in again.detail) == (Outcome.SUCCEEDED, True)
        assert (await power.switch("n001", on=False)).outcome is Outcome.SUCCEEDED
        await until(power, "n001", PowerState.OFF)
        assert (await power.switch("n001", on=True)).outcome is Outcome.SUCCEEDED
        await until(power, "n001", PowerState.ON)
        assert await power.last_reset("n001") is None
        with pytest.raises(BmcUnknownSystem, match="n007"):
            await power.power_state("n007")
        assert (await power.switch("n007", on=False)).outcome is Outcome.PERMANENT


@pytest.mark.timeout(90)
async def test_a_certificate_nobody_we_trust_signed_and_a_wrong_password_are_told_apart(
    tmp_path, connect, caplog
):
    caplog.set_level(logging.DEBUG)
    ours, other = trustme.CA(), trustme.CA()
    for ca, name in ((ours, "ours"), (other, "other")):
        ca.cert_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    trusted, wrong = str(tmp_path / "ours.pem"), str(tmp_path / "other.pem")
    with emulator(tmp_path, tls=ours, password=SECRET) as url:
        account = {"username": "ops", "password": lambda: SECRET}
        good = connect(url, verify=trusted, **account)
        assert await good.power_state("n001") is PowerState.ON
        with pytest.raises(BmcCertificate, match="not trusted") as raised:
            await connect(url, verify=wrong, **account).power_state("n001")
        assert raised.value.field == "bmc.ca_file"
        bad = connect(url, verify=trusted, username="ops", password=lambda: "guess")
        with pytest.raises(BmcPassword, match="password") as raised:
            await bad.power_state("n001")
        assert raised.value.field == "bmc.username"
        for power in (bad, connect(url, verify=wrong, **account)):
            assert (await power.switch("n001", on=False)).outcome is Outcome.PERMANENT
        assert await good.power_state("n001") is PowerState.ON
    assert SECRET not in caplog.text
    assert SECRET not in repr(Access(url, **account))


# --- answers no emulator gives --------------------------------------------------------------------


@contextmanager
def controller(answer_reset):
    """A controller whose answer to a reset is `answer_reset(handler)`; counts the resets."""
    resets = []
    system = {
        "Id": "n001",
        "PowerState": "On",
        "LastResetTime": "2026-03-01T12:00:00+01:00",
        "Actions": {
            "#ComputerSystem.Reset": {
                "target": "/reset",
                "ResetType@Redfish.AllowableValues": ["On", "ForceOff"],
            }
        },
    }
    pages = {
        "/redfish/v1/": {"Id": "r", "Systems": {"@odata.id": "/redfish/v1/Systems"}},
        "/redfish/v1/Systems/n001": system,
    }

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def say(self, status, body):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            body = pages.get(self.path) or pages.get(self.path + "/")
            self.say(200 if body else 404, body or {})

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/reset":
                resets.append(json.loads(body)["ResetType"])
                answer_reset(self)
            else:
                self.say(404, {})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", resets
    finally:
        server.shutdown()
        server.server_close()


def hang_up(handler):
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


async def test_a_lost_answer_is_ambiguous_and_the_reset_was_sent_once(connect):
    with controller(hang_up) as (url, resets):
        effect = await connect(url).switch("n001", on=False)
    assert effect.outcome is Outcome.AMBIGUOUS
    assert resets == ["ForceOff"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (204, Outcome.SUCCEEDED),
        (202, Outcome.SUCCEEDED),
        (400, Outcome.PERMANENT),
        (501, Outcome.PERMANENT),
        (503, Outcome.TRANSIENT),
        (500, Outcome.AMBIGUOUS),
    ],
)
async def test_what_each_answer_to_a_reset_means(connect, status, outcome):
    with controller(lambda h: h.say(status, {})) as (url, resets):
        assert (await connect(url).switch("n001", on=False)).outcome is outcome
    assert resets == ["ForceOff"]


async def test_an_answer_to_a_reset_that_makes_no_sense_may_have_been_a_yes(connect):
    with controller(lambda h: h.say(400, ["odd"])) as (url, resets):
        assert (await connect(url).switch("n001", on=False)).outcome is Outcome.AMBIGUOUS
    assert resets == ["ForceOff"]


async def test_a_controller_that_is_away_was_sent_nothing(connect):
    power = connect(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(BmcUnreachable) as raised:
        await power.power_state("n001")
    assert not raised.value.sent
    assert (await power.switch("n001", on=False)).outcome is Outcome.TRANSIENT


async def test_the_last_reset_is_a_moment_in_utc(connect):
    with controller(hang_up) as (url, _):
        told = await connect(url).last_reset("n001")
    assert told is not None
    assert told.isoformat() == "2026-03-01T11:00:00+00:00"


async def test_an_answer_that_is_no_redfish_is_refused_in_one_sentence(connect):
    class Nonsense(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>router login</html>")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Nonsense)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(BmcGarbled, match="makes no sense"):
            await connect(f"http://127.0.0.1:{server.server_port}").power_state("n001")
    finally:
        server.shutdown()
        server.server_close()
