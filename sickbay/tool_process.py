"""Running one tool as a process: argument list, own session, hard deadline, bounded output.

Whatever was printed before a deadline is kept: it is evidence, never a verdict.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LARGEST_OUTPUT = 16 * 1024 * 1024
_CHUNK = 64 * 1024
# A tool that left a child behind keeps its pipe open: what it printed by then is all there is.
_LAST_WORDS_S = 1.0
# A process in the kernel's uninterruptible sleep takes no signal: nobody waits for it for ever.
_DYING_S = 5.0
_SIGNALLED = 128


@dataclass(frozen=True)
class ToolRun:
    """What a tool printed, output and errors together.

    `exit_code` is None when the tool did not end by itself (`why` says it), and 128 + n when
    signal n ended it, as a shell says it. `missing` is set when it could not be started at all.
    """

    text: str
    exit_code: int | None
    why: str = ""
    missing: bool = False


async def run_tool(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, deadline_s: float
) -> ToolRun:
    """Run a tool to its end or to the deadline; nothing is raised for what a tool can do.

    The deadline ends the whole session the tool was started in. Output beyond 16 MiB is dropped.
    """
    # A pipe of our own: asyncio's would make `wait` wait for a child that holds it open.
    ours, theirs = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )
    except OSError as error:
        os.close(ours)
        why = f"{argv[0]} cannot be started: {error.strerror}"
        return ToolRun("", exit_code=None, why=why, missing=True)
    finally:
        os.close(theirs)
    printed = bytearray()
    drain = asyncio.ensure_future(_drain(ours, printed))
    why = ""
    try:
        async with asyncio.timeout(deadline_s):
            await process.wait()
    except TimeoutError:
        why = f"{argv[0]} gave no answer in {deadline_s:.3g} s"
    finally:
        # Also when this call itself is cancelled: nothing we started outlives us.
        ended = await _end(process)
        why += "" if ended else "; it takes no signal and is left in the kernel"
        await asyncio.wait({drain}, timeout=_LAST_WORDS_S)
        drain.cancel()
    code = process.returncode
    if code is not None and code < 0:
        code = _SIGNALLED - code
    text = printed.decode("utf-8", errors="replace")
    return ToolRun(text, exit_code=None if why else code, why=why)


async def _drain(pipe: int, printed: bytearray) -> None:
    """Read to the end, keep what fits, close the pipe in any case."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", buffering=0)
    )
    try:
        while chunk := await stream.read(_CHUNK):
            printed += chunk[: max(0, LARGEST_OUTPUT - len(printed))]
    finally:
        transport.close()


async def _end(process: asyncio.subprocess.Process) -> bool:
    """Kill the session this run started, and reap its leader; False when it cannot be killed."""
    if process.returncode is not None:
        return True
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(_DYING_S):
            await process.wait()
    except TimeoutError:
        return False
    return True
