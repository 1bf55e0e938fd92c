"""A whole installation on a cluster: its secrets are nowhere, its pages answer, it is healthy."""

import asyncio
import base64
import contextlib
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from sickbay.cli.installation import Installation
from sickbay.cli.processes import free_port
from sickbay.codec import data_converter
from sickbay.connection import open_client
from sickbay.settings import load_settings
from workflows.fleet_sweep import FleetSweep
from workflows.node_repair import NodeRepair
from workflows.pool_budget import PoolBudget
from workflows.pool_scoring import PoolScoring

API_KEY = "distinctive-api-key-5f0c"
CODEC_KEY = bytes(range(100, 132))
OLD_KEY = "distinctive-old-codec-key-0000".ljust(32, "x").encode()
SERVER_TOKEN = "distinctive-codec-server-token"
OTHER_VARIABLE = "distinctive-variable-of-the-operator"


def settings_text(front, folder: Path, ports: tuple[int, int]) -> str:
    (folder / "codec-key").write_text(base64.b64encode(CODEC_KEY).decode())
    (folder / "server-token").write_text(SERVER_TOKEN)
    tls = front.trust() + front.papers()
    return f"""
time_scale = 720
[simulator]
enabled = true
nodes = 4
pools = 1
[temporal]
address = "{front.address}"
api_key_env = "FLEET_API_KEY"
[temporal.tls]
{tls}
[codec]
active = "new"
keys = [{{id = "new", file = "{folder}/codec-key"}}, {{id = "old", env = "FLEET_OLD_KEY"}}]
server_token_file = "{folder}/server-token"
[metrics]
control_port = {ports[0]}
node_port = {ports[1]}
[budget]
allowance = 4
cap = 4
max_out = 4
"""


def secrets(front) -> list[bytes]:
    """Everything that must not be found, in each form it might be written."""
    key = (front.folder / "client.key").read_text().splitlines()
    found = [API_KEY.encode(), SERVER_TOKEN.encode(), *(line.encode() for line in key[1:-1])]
    for value in (CODEC_KEY, OLD_KEY):
        found += [value, base64.b64encode(value), value.hex().encode()]
    return [value for value in found if len(value) >= 16]


@contextlib.asynccontextmanager
async def running(settings):
    installation = Installation(settings)
    try:
        await installation.start()
        yield installation
    finally:
        installation.processes.stopping = True
        await installation.stop()


async def until(what: str, ask, *, within_s: float, installation) -> object:
    ends_at = time.monotonic() + within_s
    while time.monotonic() < ends_at:
        if found := await ask():
            return found
        await asyncio.sleep(0.3)
    tails = {c.name: c.last_lines(8) for c in installation.processes.children}
    pytest.fail(f"not within {within_s:.0f} s: {what}\n{json.dumps(tails, indent=1)}")


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_repair_on_a_cluster_leaves_no_secret_anywhere(
    front, tmp_path, monkeypatch, temporal_local, forget_secrets
):
    monkeypatch.setenv("FLEET_API_KEY", API_KEY)
    monkeypatch.setenv("FLEET_OLD_KEY", base64.b64encode(OLD_KEY).decode())
    front.api_key = API_KEY
    ports = tuple(free_port(0, what="a page", field="metrics") for _ in range(2))
    config = tmp_path / "s.toml"
    config.write_text(settings_text(front, tmp_path, ports), encoding="utf-8")
    state = tmp_path / "state"
    settings = load_settings(config, state_dir=str(state))
    async with running(settings) as installation:
        client = await open_client(installation.settings, wait_s=20)
        node = await _broken(installation)
        await until(
            "the repair is done", lambda: _is_done(client, node), within_s=150,
            installation=installation,
        )  # fmt: skip
        argv = b"".join(
            Path(f"/proc/{child.pid}/cmdline").read_bytes()
            for child in installation.processes.children
        )
        await _pages_answer(ports)
        await asyncio.to_thread(_healthy, state)
        histories = await _histories(temporal_local.client)
    _nowhere(secrets(front), argv=argv, histories=histories, state=state)
    _all_closed(histories)
    _replays(await _fetched(temporal_local.client), settings)
    run_file = state / "run.json"
    assert stat.S_IMODE(run_file.stat().st_mode) == 0o600
    assert json.loads(run_file.read_text())["temporal"]["api_key_env"] == "FLEET_API_KEY"


async def _broken(installation) -> str:
    where = installation.settings.simulator_dir / "simulator.json"
    base_url = json.loads(where.read_text())["base_url"]
    async with httpx.AsyncClient(base_url=base_url) as http:
        node = (await http.get("/inventory")).json()["nodes"][0]["node"]
        body = {"node": node, "kind": "remap_pending"}
        assert (await http.post("/faults", json=body)).status_code < 300
    return str(node)


async def _is_done(client: Client, node: str) -> bool:
    try:
        description = await client.get_workflow_handle(f"node-repair/{node}").describe()
    except Exception:  # noqa: BLE001 - not started yet
        return False
    return description.status is not None and description.status.name == "COMPLETED"


async def _histories(client: Client) -> dict[str, str]:
    """Every history on the server as JSON, without our codec."""
    return {
        w.id: (await client.get_workflow_handle(w.id, run_id=w.run_id).fetch_history()).to_json()
        async for w in client.list_workflows()
    }


async def _fetched(client: Client):
    return [
        await client.get_workflow_handle(w.id, run_id=w.run_id).fetch_history()
        async for w in client.list_workflows()
    ]


def _nowhere(wanted: list[bytes], *, argv: bytes, histories: dict[str, str], state: Path) -> None:
    places = {"argv": argv}
    for name, text in histories.items():
        opened = [base64.b64decode(b) for b in re.findall(r'"([A-Za-z0-9+/]{16,}={0,2})"', text)
                  if len(b) % 4 == 0]  # fmt: skip
        places[f"history {name}"] = b"\n".join([name.encode(), text.encode(), *opened])
    for path in state.rglob("*"):
        if path.is_file() and not path.is_socket():
            places[str(path.relative_to(state))] = path.read_bytes()
    with sqlite3.connect(state / "sickbay.db") as db:
        places["store dump"] = "\n".join(db.iterdump()).encode()
    assert {"run.json", "store dump", "logs/workers.control.log"} <= set(places)
    assert any(name.startswith("evidence/") for name in places)
    assert any(name.startswith("history node-repair/") for name in places)
    found = [
        (name, value[:12]) for name, text in places.items() for value in wanted if value in text
    ]
    assert found == []


def _all_closed(histories: dict[str, str]) -> None:
    """Each payload of each history is encrypted: its encoding is the only one there is."""
    encodings = {
        e for text in histories.values() for e in re.findall(r'"encoding": "([^"]+)"', text)
    }
    closed = base64.b64encode(b"binary/encrypted").decode()
    indexed = base64.b64encode(b"json/plain").decode()
    assert closed in encodings
    for text in histories.values():
        for event in json.loads(text)["events"]:
            _without_bookkeeping(event)
            assert indexed not in re.findall(r'"encoding": "([^"]+)"', json.dumps(event))


def _without_bookkeeping(value) -> None:
    """Take out what is no payload of ours: the index, and the SDK's notes on local activities."""
    if isinstance(value, dict):
        value.pop("searchAttributes", None)
        value.get("markerRecordedEventAttributes", {}).get("details", {}).pop("data", None)
        for below in value.values():
            _without_bookkeeping(below)
    if isinstance(value, list):
        for below in value:
            _without_bookkeeping(below)


def _replays(histories, settings) -> None:
    replayer = Replayer(
        workflows=[NodeRepair, PoolBudget, PoolScoring, FleetSweep],
        workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=data_converter(settings.codec),
    )

    async def replay() -> None:
        for history in histories:
            await replayer.replay_workflow(history)

    import threading

    failed: list[BaseException] = []

    def inside() -> None:
        try:
            asyncio.run(replay())
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert failed == []


async def _pages_answer(ports: tuple[int, int]) -> None:
    async with httpx.AsyncClient() as http:
        for port, process in zip(ports, ("control", "node"), strict=True):
            text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
            families = {f.name: f for f in text_string_to_metric_families(text)}
            assert "temporal_activity_execution_latency_seconds" in families
            memory = families["sickbay_process_resident_memory_bytes"].samples[0]
            assert memory.value > 10_000_000
            assert memory.labels["process"] == process
            assert families["sickbay_process_cpu_seconds"].samples[0].value > 0
            age = time.time() - families["sickbay_process_start_time_seconds"].samples[0].value
            assert 0 < age < 240
            labels = {k for f in families.values() for s in f.samples for k in s.labels}
            assert "node" not in labels


def _healthy(state: Path) -> None:
    argv = [sys.executable, "-P", "-m", "sickbay.cli.main", "healthcheck", "--json", "--here"]
    done = subprocess.run(
        [*argv, "--state", str(state)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "control" in json.loads(done.stdout)
    strange = subprocess.run(
        [*argv, "--state", str(state), "--node", "no-such-node"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert strange.returncode == 4
    assert "no worker" in strange.stdout
    assert os.environ["FLEET_API_KEY"] not in done.stdout + done.stderr + strange.stdout


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_the_embedded_server_gets_no_key_and_no_tls_of_another_cluster(
    tmp_path, temporal_cli, monkeypatch, forget_secrets
):
    monkeypatch.setenv("TEMPORAL_API_KEY", API_KEY)
    monkeypatch.setenv("TEMPORAL_TLS", "true")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "another")
    settings = load_settings(
        None, environ={}, state_dir=str(tmp_path / "state"), simulator__enabled=True,
        simulator__nodes=2, simulator__pools=1, temporal__port=0, temporal__ui_port=0,
    )  # fmt: skip
    async with running(settings) as installation:
        client = await open_client(installation.settings, wait_s=20)
        assert client.namespace == "default"
        handle = client.get_workflow_handle("pool-scoring/pool-a")

        async def scored() -> bool:
            with contextlib.suppress(Exception):
                return bool(await handle.describe())
            return False

        await until("workers run on it", scored, within_s=60, installation=installation)


def test_the_demo_never_runs_on_a_cluster_of_the_environment(monkeypatch, tmp_path):
    from sickbay.access import access_of
    from sickbay.cli.up import _demo_settings

    monkeypatch.setenv("TEMPORAL_ADDRESS", "production.example.net:7233")
    settings = _demo_settings(None, tmp_path)
    assert access_of(settings.temporal) is None
