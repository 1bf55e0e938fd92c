import asyncio
import os
import signal
import time

import psutil
import pytest

from sickbay import tool_process
from sickbay.tool_process import run_tool


async def test_output_and_errors_come_back_together_with_the_status():
    run = await run_tool(["/bin/sh", "-c", "echo out; echo err >&2; exit 226"], deadline_s=10)
    assert (run.text, run.exit_code) == ("out\nerr\n", 226)


async def test_the_deadline_ends_the_whole_session_and_keeps_what_was_printed(tmp_path):
    child = tmp_path / "child"
    script = f"echo begun; sleep 60 & echo $! >{child}; sleep 60"
    began = time.monotonic()
    run = await run_tool(["/bin/sh", "-c", script], deadline_s=0.5)
    assert time.monotonic() - began < 5
    assert (run.text, run.exit_code, run.missing) == ("begun\n", None, False)
    assert "no answer" in run.why
    assert await _gone(int(child.read_text()))


async def test_a_cancelled_run_leaves_no_process(tmp_path):
    mine = tmp_path / "pid"
    task = asyncio.ensure_future(
        run_tool(["/bin/sh", "-c", f"echo $$ >{mine}; exec sleep 60"], deadline_s=60)
    )
    for _ in range(100):
        if mine.exists() and mine.read_text():
            break
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _gone(int(mine.read_text()))


async def test_a_child_that_keeps_the_pipe_does_not_hold_the_answer_back():
    began = time.monotonic()
    run = await run_tool(["/bin/sh", "-c", "echo done; sleep 5 & exit 0"], deadline_s=30)
    assert time.monotonic() - began < 4
    assert (run.text, run.exit_code) == ("done\n", 0)


async def test_a_missing_tool_is_said_and_not_raised():
    run = await run_tool(["sickbay-has-no-such-tool"], env={"PATH": "/nowhere"}, deadline_s=5)
    assert run.missing
    assert run.exit_code is None


async def test_a_tool_ended_by_a_signal_has_a_shells_status():
    run = await run_tool(["/bin/sh", "-c", "kill -9 $$"], deadline_s=5)
    assert run.exit_code == 137


async def test_endless_output_is_cut(monkeypatch):
    monkeypatch.setattr(tool_process, "LARGEST_OUTPUT", 1000)
    script = "i=0; while [ $i -lt 500 ]; do echo 0123456789; i=$((i+1)); done"
    run = await run_tool(["/bin/sh", "-c", script], deadline_s=20)
    assert len(run.text) == 1000
    assert run.exit_code == 0


async def test_a_process_that_takes_no_signal_costs_seconds_and_not_the_worker(monkeypatch):
    """The kernel's uninterruptible sleep cannot be made here: the signal is swallowed instead."""
    alive = []
    monkeypatch.setattr(tool_process, "_DYING_S", 0.3)
    monkeypatch.setattr(tool_process.os, "killpg", lambda pid, _: alive.append(pid))
    began = time.monotonic()
    run = await run_tool(["sleep", "60"], deadline_s=0.3)
    try:
        assert time.monotonic() - began < 10
        assert run.exit_code is None
        assert "no answer" in run.why
        assert "takes no signal" in run.why
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)


async def _gone(pid: int) -> bool:
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.02)
    return False
