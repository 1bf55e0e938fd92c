"""`python -m sickbay.simulator --config FILE.json`: runs the fleet until SIGTERM or SIGINT."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn

from sickbay.errors import UsageError
from sickbay.simulator.bmc.certificates import CA, certificates
from sickbay.simulator.bmc.service import RedfishService
from sickbay.simulator.bmc.sessions import PASSWORD_FILE, Sessions
from sickbay.simulator.config import SimulatorConfig
from sickbay.simulator.engine import Engine, stop_task
from sickbay.simulator.firmware import FOLDER, INDEX
from sickbay.simulator.install import install_tools
from sickbay.simulator.server import Server
from sickbay.simulator.tool_socket import ToolSocket

LOOPBACK = "127.0.0.1"
USAGE = 2
LAST_PORT = "last_port"
LAST_BMC_PORT = "last_bmc_port"

_QUIET: dict[str, Any] = {
    "access_log": False,
    "log_level": "warning",
    "lifespan": "off",
    "timeout_graceful_shutdown": 2,
}


async def serve(config: SimulatorConfig) -> None:
    """Run the fleet until a signal ends it. Raises `UsageError` before anything has started."""
    listener = _listen_again(config, port=config.port, file=LAST_PORT, field="port")
    try:
        bmc_listener = _listen_again(
            config, port=config.bmc_port, file=LAST_BMC_PORT, field="bmc_port"
        )
    except UsageError:
        listener.close()
        raise
    try:
        engine = Engine(config)
        bmc = _bmc_server(config, engine=engine)
    except UsageError:
        listener.close()
        bmc_listener.close()
        raise
    install_tools(config.dir)
    tools = ToolSocket(engine)
    await tools.start()
    server = uvicorn.Server(uvicorn.Config(Server(engine).app, **_QUIET))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, server, "should_exit", True)
    # Not `serve`: that one takes the signals for itself.
    beside = asyncio.create_task(bmc._serve([bmc_listener]))  # noqa: SLF001
    beat = asyncio.create_task(engine.beat())
    for task in (beat, beside):
        task.add_done_callback(lambda _: setattr(server, "should_exit", True))
    _announce(config, port=_port(listener), bmc_port=_port(bmc_listener))
    try:
        await server._serve([listener])  # noqa: SLF001
    finally:
        broken = _broken(beat) or _broken(beside)
        bmc.should_exit = True
        await asyncio.gather(stop_task(beat), beside, return_exceptions=True)
        await tools.stop()
        engine.close()
        (config.dir / "simulator.json").unlink(missing_ok=True)
    if broken:
        raise broken


def _bmc_server(config: SimulatorConfig, *, engine: Engine) -> uvicorn.Server:
    """The management controllers' own server. Raises `UsageError`."""
    sessions = Sessions(config.dir, user=config.bmc_user, timeout_s=config.bmc_session_s)
    app = RedfishService(engine, sessions=sessions)
    if not config.bmc_tls:
        return uvicorn.Server(uvicorn.Config(app, **_QUIET))
    files = certificates(config.dir)
    tls: dict[str, Any] = {"ssl_certfile": str(files.certificate), "ssl_keyfile": str(files.key)}
    return uvicorn.Server(uvicorn.Config(app, **_QUIET, **tls))


def _broken(task: "asyncio.Task[None]") -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run; 2 for wrong input."""
    parser = argparse.ArgumentParser(prog="python -m sickbay.simulator")
    parser.add_argument("--config", type=Path, required=True, help="a SimulatorConfig as JSON")
    arguments = parser.parse_args(argv)
    try:
        asyncio.run(serve(SimulatorConfig.load(arguments.config)))
    except UsageError as error:
        remedy = f" ({error.remedy})" if error.remedy else ""
        sys.stderr.write(f"error: {error.message}{remedy}\n")
        return USAGE
    return 0


def _listen_again(config: SimulatorConfig, *, port: int, file: str, field: str) -> socket.socket:
    """Where it listened before, when any port will do: who knew the fleet still finds it."""
    if port == 0:
        with contextlib.suppress(OSError, ValueError, UsageError):
            return _listen(int((config.dir / file).read_text(encoding="ascii")), field=field)
    return _listen(port, field=field)


def _listen(port: int, *, field: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((LOOPBACK, port))
        sock.listen(256)
    except OSError as error:
        sock.close()
        raise UsageError(
            f"port {port} is in use", field=field, remedy="give another port, or 0 for any"
        ) from error
    sock.setblocking(False)
    return sock


def _announce(config: SimulatorConfig, *, port: int, bmc_port: int) -> None:
    """Say where the fleet listens. The sockets queue requests from this moment on."""
    directory = config.dir
    (directory / LAST_PORT).write_text(str(port), encoding="ascii")
    (directory / LAST_BMC_PORT).write_text(str(bmc_port), encoding="ascii")
    scheme = "https" if config.bmc_tls else "http"
    data = {
        "pid": os.getpid(),
        "port": port,
        "base_url": f"http://{LOOPBACK}:{port}",
        "bmc_url": f"{scheme}://{LOOPBACK}:{bmc_port}",
        "firmware_index": str(directory.absolute() / FOLDER / INDEX),
        "bmc_user": config.bmc_user,
        "bmc_password_file": str(directory.absolute() / PASSWORD_FILE),
        "bmc_ca_file": str(directory.absolute() / CA) if config.bmc_tls else "",
    }
    fresh = directory / ".simulator.json.new"
    fresh.write_text(json.dumps(data), encoding="utf-8")
    fresh.replace(directory / "simulator.json")


if __name__ == "__main__":
    sys.exit(main())
