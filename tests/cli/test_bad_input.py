"""A person's wrong input: one clear line, a non-zero exit, nothing half-applied."""

import json
import socket
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sickbay.cli.main import invoke
from sickbay.domain.gate import Hold, HoldKind
from sickbay.domain.node import Node, Part, PartKind
from sickbay.settings import Settings, save_resolved
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords


@pytest.fixture
async def state(tmp_path: Path) -> Path:
    """An installation that ran here once: a store with one node, nothing running."""
    directory = tmp_path / "state"
    settings = Settings.model_validate(
        {
            "state_dir": directory,
            "temporal": {"address": "127.0.0.1:1"},
            "simulator": {"enabled": True},
        }
    )
    save_resolved(settings, directory / "run.json")
    store = await open_store(settings.store_url)
    part = Part("gpu0", PartKind.GPU, "GPU-1", "1001", "0000:1a:00")
    node = Node("n001", "pool-a", "g01", "r01", "h200x8", (part,))
    await StoreRecords(store).sync_inventory([node])
    await store.close()
    return directory


async def run(args: list[str], capsys) -> tuple[int, str, str]:
    import asyncio

    code = await asyncio.to_thread(invoke, args)
    out, err = capsys.readouterr()
    return code, out, err


WRONG = [
    (["explain", "n999"], "n999"),
    (["status", "--pool", "nope"], "pool-a"),
    (["budget", "nope"], "pool-a"),
    (["part-replaced", "n001", "--slot", "gpu9", "--serial", "x", "--by", "me"], "gpu0"),
    (["work-done", "n001", "--work", "polished", "--by", "me"], "polished"),
    (["skip", "n001", "--to", "lunch", "--by", "me", "--reason", "r"], "diagnose"),
    (["repair", "n001", "--by", "me", "--slot", "gpu9"], "gpu0"),
    (["repair", "n[001-", "--by", "me"], "bracket"),
    (["repair", "--by", "me"], "--pool"),
    (["stop", "--by", "me", "--reason", "r"], "--fleet"),
    (["budget", "pool-a", "--freeze", "--unfreeze"], "--unfreeze"),
    (["nonsense"], "nonsense"),
]


@pytest.mark.parametrize(("args", "says"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
async def test_wrong_input_is_one_clear_line_and_exit_2(state, capsys, args, says):
    where = [] if args[0] == "nonsense" else ["--state", str(state)]
    code, out, err = await run([*args, *where], capsys)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert says in err


async def test_with_json_an_error_is_one_document(state, capsys):
    code, out, _ = await run(["explain", "n999", "--json", "--state", str(state)], capsys)
    error = json.loads(out)["error"]
    assert code == 2
    assert set(error) == {"code", "message", "field", "remedy"}
    assert error["code"] == "unknown_node"


async def test_temporal_that_does_not_answer_exits_4_and_says_what_to_do(state, capsys):
    args = ["pause", "n001", "--by", "me", "--state", str(state)]
    code, _, err = await run(args, capsys)
    assert code == 4
    assert "127.0.0.1:1" in err
    assert "sickbay up" in err


async def test_looking_and_stopping_work_with_temporal_down(state, capsys):
    for args in (
        ["status", "--json"],
        ["explain", "n001", "--json"],
        ["stop", "--fleet", "--by", "me", "--reason", "drill", "--json"],
        ["go", "--fleet", "--by", "me", "--json"],
        ["report", "--json"],
    ):
        code, out, err = await run([*args, "--state", str(state)], capsys)
        assert code == 0, err
        json.loads(out)


async def test_a_dry_run_changes_nothing_and_needs_no_temporal(state, capsys):
    args = ["repair", "--pool", "pool-a", "--by", "me", "--dry-run", "--json"]
    code, out, _ = await run([*args, "--state", str(state)], capsys)
    assert code == 0
    assert json.loads(out) == [{"node": "n001", "would": "repair"}]


async def test_a_database_of_a_newer_release_is_refused(state, capsys):
    with sqlite3.connect(state / "sickbay.db") as db:
        db.execute("update alembic_version set version_num = '9999'")
    code, _, err = await run(["status", "--state", str(state)], capsys)
    assert code == 2
    assert "9999" in err
    assert "newer" in err


async def test_nothing_started_here_says_how_to_start(tmp_path, capsys):
    code, _, err = await run(["status", "--state", str(tmp_path / "empty")], capsys)
    assert code == 3
    assert "sickbay up" in err


async def test_up_refuses_a_bad_settings_file_before_it_starts_anything(tmp_path, capsys):
    config = tmp_path / "bad.toml"
    config.write_text("[simulator]\nnodez = 3\n", encoding="utf-8")
    code, _, err = await run(["up", "--config", str(config)], capsys)
    assert code == 2
    assert "simulator.nodez" in err
    assert str(config) in err


async def test_up_refuses_rules_that_cannot_be_read(tmp_path, capsys):
    config = tmp_path / "s.toml"
    config.write_text('rules = "/nowhere.toml"\n[simulator]\nenabled = true\n', encoding="utf-8")
    state = str(tmp_path / "state")
    code, _, err = await run_up(["up", "--config", str(config), "--state", state], capsys)
    assert code == 2
    assert "/nowhere.toml" in err


async def test_up_refuses_settings_of_a_pool_the_fleet_does_not_have(
    tmp_path, capsys, temporal_cli
):
    assert temporal_cli
    config = tmp_path / "s.toml"
    config.write_text(
        "[temporal]\nport = 0\nui_port = 0\n[simulator]\nenabled = true\nnodes = 4\npools = 1\n"
        '[pools.pool_a]\nmode = "observe"\n',
        encoding="utf-8",
    )
    state = str(tmp_path / "state")
    code, _, err = await run_up(["up", "--config", str(config), "--state", state], capsys)
    assert code == 2
    assert "pool_a" in err
    assert "pool-a" in err


async def test_what_people_and_tools_wrote_is_shown_as_it_is(state, capsys):
    settings = Settings.model_validate_json((state / "run.json").read_text())
    store = await open_store(settings.store_url)
    now = datetime.now(UTC)
    text = "swap [gpu3] at 0000:ab:00, see [/ops]"
    await StoreRecords(store).place_hold(
        Hold("h1", "n001", HoldKind.OPERATOR, "me[/x]", "m", text, now, "asked", "wait")
    )
    await store.close()
    code, out, err = await run(["explain", "n001", "--state", str(state)], capsys)
    assert code == 0, err
    assert text in " ".join(out.replace("│", " ").split())
    assert "NOT RUNNING" in out


async def test_up_refuses_a_port_in_use_and_leaves_nothing_running(tmp_path, capsys, temporal_cli):
    assert temporal_cli
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "s.toml"
        config.write_text(
            f'state_dir = "{tmp_path / "state"}"\n[simulator]\nenabled = true\n'
            f"[temporal]\nport = {port}\n",
            encoding="utf-8",
        )
        code, _, err = await run_up(["up", "--config", str(config)], capsys)
    assert code == 2
    assert str(port) in err
    assert "temporal.port" in err
    assert not (tmp_path / "state" / "run.json").exists()


async def run_up(args: list[str], capsys) -> tuple[int, str, str]:
    """`up` sets signal handlers, which only a main thread may: run it as a process."""
    import asyncio
    import sys

    assert capsys
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sickbay.cli.main", *args,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), timeout=60)
    return process.returncode or 0, out.decode(), err.decode()
