"""`--temporal HOST:PORT`, and a Temporal that is not there: keep trying, and say so."""

import asyncio
import json
import sys
import time

import pytest

from sickbay.settings import Settings, save_resolved


@pytest.mark.slow
async def test_up_uses_an_existing_temporal_and_leaves_it_running(tmp_path, temporal_local):
    address = temporal_local.client.service_client.config.target_host
    config = tmp_path / "s.toml"
    config.write_text(
        f'time_scale = 720\nstate_dir = "{tmp_path / "state"}"\n'
        "[simulator]\nenabled = true\nnodes = 4\npools = 1\n",
        encoding="utf-8",
    )
    argv = ["up", "--config", str(config), "--temporal", address]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sickbay.cli.main", *argv,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        handle = temporal_local.client.get_workflow_handle("pool-scoring/pool-a")
        await until_described(handle)
    finally:
        process.terminate()
        out, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode == 0, out.decode()
    assert not (tmp_path / "state" / "temporal.db").exists()
    run = json.loads((tmp_path / "state" / "run.json").read_text())
    assert run["temporal"]["address"] == address
    await handle.describe()


async def until_described(handle) -> None:
    ends_at = time.monotonic() + 60
    while time.monotonic() < ends_at:
        try:
            await handle.describe()
        except Exception:  # noqa: BLE001 - not there yet
            await asyncio.sleep(0.3)
        else:
            return
    pytest.fail("scoring was never started on the existing Temporal")


async def test_a_worker_without_temporal_keeps_trying_and_says_so(tmp_path):
    settings = Settings.model_validate(
        {"state_dir": tmp_path, "temporal": {"address": "127.0.0.1:1"}}
    )
    save_resolved(settings, tmp_path / "run.json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "workers.control", "--config", str(tmp_path / "run.json"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = b""
        while b"trying on" not in said:
            said += await asyncio.wait_for(process.stdout.readline(), timeout=30)
        assert b"127.0.0.1:1" in said
        assert process.returncode is None, "it gave up"
    finally:
        process.kill()
        await process.wait()
