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

import uvicorn

from sickbay.errors import UsageError
from sickbay.simulator.config import SimulatorConfig
from sickbay.simulator.engine import Engine, stop_task
from sickbay.simulator.install import install_tools
from sickbay.simulator.server import Server
from sickbay.simulator.tool_socket import ToolSocket

LOOPBACK = "127.0.0.1"
USAGE = 2
LAST_PORT = "last_port"


async def serve(config: SimulatorConfig) -> None:
    """Run the fleet until a signal ends it. Raises `UsageError` before anything has started."""
    listener = _listen_again(config)
    try:
        engine = Engine(config)
    except UsageError:
        listener.close()
        raise
    install_tools(config.dir)
    tools = ToolSocket(engine)
    await tools.start()
    server = uvicorn.Server(
        uvicorn.Config(
            Server(engine).app,
            access_log=False,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, server, "should_exit", True)
    beat = asyncio.create_task(engine.beat())
    beat.add_done_callback(lambda _: setattr(server, "should_exit", True))
    port = int(listener.getsockname()[1])
    (config.dir / LAST_PORT).write_text(str(port), encoding="ascii")
    _announce(config.dir, port=port)
    try:
        # Not `serve`: that one takes the signals for itself.
        await server._serve([listener])  # noqa: SLF001
    finally:
        broken = beat.done() and not beat.cancelled() and beat.exception()
        if not broken:
            await stop_task(beat)
        await tools.stop()
        engine.close()
        (config.dir / "simulator.json").unlink(missing_ok=True)
    if broken:
        raise broken


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


def _listen_again(config: SimulatorConfig) -> socket.socket:
    """Where it listened before, when any port will do: who knew the fleet still finds it."""
    if config.port == 0:
        with contextlib.suppress(OSError, ValueError, UsageError):
            return _listen(int((config.dir / LAST_PORT).read_text(encoding="ascii")))
    return _listen(config.port)


def _listen(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((LOOPBACK, port))
        sock.listen(256)
    except OSError as error:
        sock.close()
        raise UsageError(
            f"port {port} is in use", field="port", remedy="give another port, or 0 for any"
        ) from error
    sock.setblocking(False)
    return sock


def _announce(directory: Path, *, port: int) -> None:
    """Say where the fleet listens. The socket queues requests from this moment on."""
    data = {"pid": os.getpid(), "port": port, "base_url": f"http://{LOOPBACK}:{port}"}
    fresh = directory / ".simulator.json.new"
    fresh.write_text(json.dumps(data), encoding="utf-8")
    fresh.replace(directory / "simulator.json")


if __name__ == "__main__":
    sys.exit(main())
