"""The live table of `sickbay up`: unhealthy nodes first, once a second."""

import asyncio
import contextlib

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from sickbay.cli.installation import Installation
from sickbay.cli.output import console
from sickbay.cli.screens import fleet_table
from sickbay.domain.health import Standing
from sickbay.settings import Settings
from sickbay.store.engine import Store, open_store
from sickbay.store.queries import FleetRow, fleet_rows

REFRESH_S = 1.0
ROWS = 30


def where_to_look(settings: Settings) -> str:
    """One line on where to look further."""
    ui = settings.temporal.ui_port or "-"
    return (
        f"Temporal's UI: http://127.0.0.1:{ui}   "
        f"one node: sickbay explain NODE   break one: sickbay inject NODE FAULT   Ctrl-C stops"
    )


def interesting(rows: list[FleetRow]) -> list[FleetRow]:
    """Rows that need a look, worst first; well nodes are only counted."""
    odd = [r for r in rows if r.stage or not r.gate_open or r.standing is not Standing.HEALTHY]
    return sorted(odd, key=lambda r: (r.gate_open, r.node))


def screen(rows: list[FleetRow], *, settings: Settings) -> RenderableType:
    """The whole live screen."""
    odd = interesting(rows)
    well = len(rows) - len(odd)
    title = f"{len(rows)} nodes: {well} healthy with an open gate, {len(odd)} to look at"
    table = fleet_table(odd[:ROWS], title=title, scale=settings.time_scale)
    return Group(table, Text(where_to_look(settings), "dim"))


async def show_live(installation: Installation, stop: asyncio.Event) -> None:
    """Show the table until asked to stop; without a terminal, a line whenever it changes."""
    settings = installation.settings
    store = await open_store(settings.store_url, password=settings.store_password())
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False, screen=False) as live:
                while not stop.is_set():
                    rows = await fleet_rows(store)
                    live.update(screen(rows, settings=settings), refresh=True)
                    await _pause(stop)
        else:
            console.print(where_to_look(settings), highlight=False, soft_wrap=True)
            await _lines(store, stop)
    finally:
        await store.close()


async def _lines(store: Store, stop: asyncio.Event) -> None:
    last: dict[str, str] = {}
    while not stop.is_set():
        for row in await fleet_rows(store):
            gate = "open" if row.gate_open else "closed"
            line = f"{row.node}: gate {gate}, {row.standing}, {row.stage or 'no repair'}"
            if last.get(row.node, "") != line and (row.node in last or row.stage):
                console.print(line, highlight=False, soft_wrap=True)
            last[row.node] = line
        await _pause(stop)


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), timeout=REFRESH_S)
