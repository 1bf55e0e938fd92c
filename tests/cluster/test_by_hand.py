"""The processes of a cluster started one by one, as units and containers start them."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import pytest

from sickbay.simulator.config import SimulatorConfig


def python(*argv: str):
    return asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", *argv,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def started(*argv: str):
    process = await python(*argv)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.communicate(), timeout=20)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def command(*argv: str) -> tuple[int, dict]:
    process = await python("sickbay.cli.main", *argv, "--json")
    out, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    return process.returncode, json.loads(out)


async def until_healthy(*argv: str) -> dict:
    found: tuple[int, dict] = (-1, {})
    for _ in range(40):
        found = await command("healthcheck", *argv)
        if found[0] == 0:
            return found[1]
        await asyncio.sleep(0.5)
    pytest.fail(f"not within 40 looks: {found}")


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_workers_by_one_settings_file_are_found_by_commands_with_that_file(
    temporal_local, tmp_path
):
    state = tmp_path / "state"
    (state / "simulator").mkdir(parents=True)
    fleet = state / "simulator" / "config.json"
    SimulatorConfig(dir=state / "simulator", nodes=2, pools=1, time_scale=720).save(fleet)
    target = temporal_local.client.service_client.config.target_host
    config = tmp_path / "sickbay.toml"
    config.write_text(
        f'time_scale = 720\nstate_dir = "{state}"\n[temporal]\naddress = "{target}"\n'
        "[simulator]\nenabled = true\nnodes = 2\npools = 1\n",
        encoding="utf-8",
    )
    settings = ("--config", str(config))
    code, error = await command("healthcheck", *settings)
    assert code == 4
    assert "no worker polls" in error["error"]["message"]
    async with started("sickbay.simulator", "--config", str(fleet)):
        await until_there(state / "simulator" / "simulator.json")
        async with started("workers.control", *settings):
            assert "control" in await until_healthy(*settings, "--here")
            code, shown = await command("status", *settings, "--all")
            assert code == 0
            process = await python("sickbay.cli.main", "status", *settings)
            screen, _ = await asyncio.wait_for(process.communicate(), timeout=60)
            assert b"2 nodes" in screen
            assert b"NOT RUNNING" not in screen
            node = _first_node(shown)
            code, error = await command("healthcheck", *settings, "--node", node)
            assert code == 4, "its worker does not run yet"
            async with started("workers.node", *settings, "--node", node):
                assert f"node.{node}" in await until_healthy(*settings, "--here", "--node", node)
            await _an_unknown_node_is_refused(settings)


async def _an_unknown_node_is_refused(settings: tuple[str, ...]) -> None:
    process = await python("workers.node", *settings, "--node", "no-such-node")
    out, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode == 2
    assert b"no node 'no-such-node' is on record" in out


def _first_node(shown: dict) -> str:
    rows = (
        shown if isinstance(shown, list) else next(v for v in shown.values() if isinstance(v, list))
    )
    return str(rows[0]["node"])


async def until_there(path: Path) -> None:
    for _ in range(200):
        if path.exists():
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"not within 20 s: {path}")


async def test_a_metrics_port_in_use_is_one_clear_line(tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "s.toml"
        config.write_text(f"[metrics]\ncontrol_port = {port}\n")
        process = await python("workers.control", "--config", str(config))
        out, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode == 2
    assert b"metrics cannot be served" in out
    assert b"Traceback" not in out


async def test_a_worker_without_any_temporal_says_so(tmp_path):
    config = tmp_path / "s.toml"
    config.write_text("")
    process = await python("workers.control", "--config", str(config))
    out, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode == 2
    assert b"no Temporal server is named" in out
    assert b"TEMPORAL_ADDRESS" in out


async def test_an_error_nobody_foresaw_is_logged_without_secrets(tmp_path, forget_secrets):
    """The interpreter's own traceback would quote what a library put into its error."""
    script = tmp_path / "boom.py"
    (tmp_path / "key").write_text("distinctive-secret-value")
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom sickbay.secret_refs import read_secret\n"
        "from workers.process import run\n"
        "async def serve(settings, stop):\n"
        f"    value = read_secret(file=Path({str(tmp_path / 'key')!r}), env='', field='x')\n"
        "    raise RuntimeError(f'cannot log in with {value} at https://me:pass-word@example.net')\n"
        "run(serve, config=Path(sys.argv[1]))\n"
    )
    (tmp_path / "s.toml").write_text("")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(tmp_path / "s.toml"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode == 1
    assert b"cannot log in with [secret]" in out
    assert b"distinctive-secret-value" not in out
    assert b"pass-word" not in out
