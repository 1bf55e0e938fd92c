"""The newcomer's story: one command, a node breaks, a person mends it, it comes back proven."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

SETTINGS = """
time_scale = 720

[temporal]
port = 0
ui_port = 0

[simulator]
enabled = true
nodes = 8
pools = 2
group_size = 4
technician = false

[budget]
allowance = 4
cap = 4
max_out = 4
"""


class Shell:
    """A terminal in the newcomer's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.up: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        argv = [sys.executable, "-m", "sickbay.cli.main", "up", "--config", "fast.toml"]
        log = (self.directory / "up.out").open("ab")
        self.up = await asyncio.create_subprocess_exec(
            *argv, cwd=self.directory, stdout=log, stderr=log, start_new_session=True
        )
        await self.until("the fleet is scored", self._scored)

    async def _scored(self) -> bool:
        code, rows = await self.say("status", "--json")
        return code == 0 and bool(rows) and all(r["health"] for r in rows)

    async def ctrl_c(self) -> int:
        assert self.up is not None
        self.up.send_signal(signal.SIGINT)
        return await asyncio.wait_for(self.up.wait(), timeout=60)

    async def say(self, *args: str):
        """One command; its exit code and, with --json, its answer."""
        argv = [sys.executable, "-m", "sickbay.cli.main", *args]
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=self.directory,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), timeout=60)
        text = out.decode() or err.decode()
        try:
            return process.returncode, json.loads(text)
        except ValueError:
            return process.returncode, text

    async def until(self, what: str, condition, *, within_s: float = 90) -> None:
        ends_at = time.monotonic() + within_s
        while time.monotonic() < ends_at:
            if await condition():
                return
            await asyncio.sleep(0.3)
        pytest.fail(f"not within {within_s:.0f} s: {what}\n{self.tail()}")

    def tail(self) -> str:
        return (self.directory / "up.out").read_text()[-3000:]

    def children(self) -> list[int]:
        """Processes that mention this directory."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if entry.name.isdigit() and str(self.directory).encode() in line:
                found.append(int(entry.name))
        return [pid for pid in found if pid != os.getpid()]


@pytest.fixture
async def shell(tmp_path, temporal_cli):
    assert temporal_cli
    (tmp_path / "fast.toml").write_text(
        f'state_dir = "{tmp_path / ".sickbay"}"\n{SETTINGS}', encoding="utf-8"
    )
    shell = Shell(tmp_path)
    yield shell
    if shell.up is not None and shell.up.returncode is None:
        await shell.ctrl_c()


@pytest.mark.slow
@pytest.mark.timeout(280)
async def test_a_newcomer_breaks_a_node_mends_it_and_sees_it_return(shell):
    await shell.start()
    code, _ = await shell.say("inject", "n005", "remap_failure", "--slot", "gpu3")
    assert code == 0

    async def at_swap() -> bool:
        _, rows = await shell.say("status", "--json")
        return any(r["node"] == "n005" and r["stage"] == "swap" for r in rows)

    await shell.until("the repair waits for a technician", at_swap)
    await explain_says_everything(shell)
    old = await the_old_serial_is_refused(shell)
    await a_restart_goes_on_where_it_was(shell, at_swap)
    _, hands = await shell.say("hands", "n005", "--slot", "gpu3", "--json")
    assert hands["serial"] != old
    report = ("part-replaced", "n005", "--slot", "gpu3", "--by", "me", "--serial")
    code, _ = await shell.say(*report, hands["serial"])
    assert code == 0
    code, text = await shell.say(*report, hands["serial"])
    assert code == 3, "a second report of one swap is refused"

    async def returned() -> bool:
        _, view = await shell.say("explain", "n005", "--json")
        return view["gate_open"] and view["repair"] is None

    await shell.until("the node returns", returned)
    _, view = await shell.say("explain", "n005", "--json")
    last = view["past"][0]
    assert (last["ending"], last["cured_by"]) == ("returned", "swap")
    assert [s["outcome"] for s in last["steps"] if s["stage"] == "prove"][-2:] == ["passed"] * 2
    code, text = await shell.say("pause", "n005", "--by", "me")
    assert code == 3, f"a message to a finished repair is refused: {text}"
    _, found = await shell.say("report", "--json")
    assert found["returned_untested"] == []
    assert await shell.ctrl_c() == 0
    assert shell.children() == []


async def explain_says_everything(shell) -> None:
    _, view = await shell.say("explain", "n005", "--json")
    assert not view["gate_open"]
    (hold,) = [h for h in view["holds"] if h["kind"] == "quarantine"]
    assert hold["owner"]
    assert hold["reason"]
    assert hold["release_condition"]
    assert view["repair"]["next_step"]
    assert view["repair"]["deadline"]
    code, screen = await shell.say("explain", "n005")
    assert code == 0
    assert "closed" in screen


async def the_old_serial_is_refused(shell) -> str:
    _, tickets = await shell.say("tickets", "--json")
    (ticket,) = tickets
    report = ("part-replaced", "n005", "--slot", "gpu3", "--by", "me", "--serial")
    code, text = await shell.say(*report, ticket["part_serial"])
    assert code == 3
    assert "before" in text
    return ticket["part_serial"]


async def a_restart_goes_on_where_it_was(shell, at_swap) -> None:
    assert await shell.ctrl_c() == 0
    assert shell.children() == []
    await shell.start()
    await shell.until("the repair still waits", at_swap)
