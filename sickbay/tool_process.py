"""Running one tool as a process: argument list, own session, hard deadline, bounded output."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LARGEST_OUTPUT = 16 * 1024 * 1024


@dataclass(frozen=True)
class ToolRun:
    """What a tool printed. `exit_code` None: it did not end by itself (see `why`)."""

    text: str
    exit_code: int | None
    why: str = ""


async def run_tool(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, deadline_s: float
) -> ToolRun:
    """Run a tool to its end or to the deadline; nothing is raised for what a tool can do."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as error:
        return ToolRun("", exit_code=None, why=f"{argv[0]} cannot be started: {error.strerror}")
    try:
        out, _ = await asyncio.wait_for(process.communicate(), timeout=deadline_s)
    except TimeoutError:
        await _end(process)
        return ToolRun("", exit_code=None, why=f"{argv[0]} gave no answer in {deadline_s:.0f} s")
    except asyncio.CancelledError:
        await _end(process)
        raise
    text = out[:LARGEST_OUTPUT].decode("utf-8", errors="replace")
    return ToolRun(text, exit_code=process.returncode)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the session this run started, and reap it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
