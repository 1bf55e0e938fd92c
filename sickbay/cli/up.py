"""`sickbay up` and `sickbay demo`: start everything here, show it, stop it cleanly."""

import asyncio
import shutil
import signal
from collections.abc import Callable, Coroutine
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from sickbay.cli.demo import tell_demo
from sickbay.cli.installation import Installation
from sickbay.cli.live import show_live
from sickbay.cli.lock import is_locked, locked
from sickbay.cli.output import console
from sickbay.cli.session import DEMO_DIR, Config, State
from sickbay.errors import Refused
from sickbay.settings import Settings, load_settings

Show = Callable[[Installation, asyncio.Event], Coroutine[None, None, None]]


def up(
    config: Config = None,
    state: State = None,
    temporal: Annotated[
        str | None, typer.Option("--temporal", help="Use the cluster at HOST:PORT.")
    ] = None,
) -> None:
    """Start what is needed here and show the fleet; Ctrl-C stops it, another `up` goes on."""
    settings = load_settings(
        config,
        state_dir=str(state) if state else None,
        temporal__address=temporal,
        simulator__enabled=True if config is None else None,
    )
    with locked(settings.state_dir):
        asyncio.run(_serve(settings, show_live))


def demo(
    exit_after: Annotated[bool, typer.Option("--exit", help="End after the summary.")] = False,
    config: Config = None,
    state: State = None,
    keep: Annotated[bool, typer.Option("--keep", help="Go on from the demo's last state.")] = False,
) -> None:
    """A simulated fleet of 64 nodes breaks and is repaired before your eyes."""
    settings = _demo_settings(config, state)
    _fresh(settings.state_dir, keep=keep)

    async def show(installation: Installation, stop: asyncio.Event) -> None:
        await tell_demo(installation, stop, exit_after=exit_after)

    with locked(settings.state_dir):
        asyncio.run(_serve(settings, show))


def _demo_settings(config: Path | None, state: Path | None) -> Settings:
    directory = str(state or load_settings(None).state_dir / DEMO_DIR)
    # A demo never runs on a cluster by accident: only a settings file may name one.
    if config is not None:
        return load_settings(config, state_dir=directory, temporal__environment=False)
    with resources.as_file(resources.files("sickbay").joinpath("demo.toml")) as shipped:
        return load_settings(shipped, state_dir=directory, temporal__environment=False)


def _fresh(directory: Path, *, keep: bool) -> None:
    """The demo starts anew: only a directory that a demo made, and that nobody uses, is removed."""
    if keep or not directory.exists():
        return
    if is_locked(directory):
        raise Refused(f"a demo runs in {directory}", remedy="end it first")
    if not (directory / "run.json").exists() and any(directory.iterdir()):
        raise Refused(f"{directory} holds something else", remedy="name an empty --state directory")
    shutil.rmtree(directory)


async def _serve(settings: Settings, show: Show) -> None:
    """Start, show until asked to stop, stop everything that was started."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    installation = Installation(settings)
    watch: asyncio.Task[None] | None = None
    try:
        await installation.start()
        watch = asyncio.create_task(installation.processes.watch())
        shown = asyncio.create_task(show(installation, stop))
        await asyncio.wait({watch, shown}, return_when=asyncio.FIRST_COMPLETED)
        for task in (watch, shown):
            if task.done():
                task.result()
    finally:
        installation.processes.stopping = True
        if watch is not None:
            watch.cancel()
        console.print("stopping what was started ...")
        await installation.stop()
