"""Commands that look: the fleet, one node, tickets, pages."""

from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table

from sickbay.cli.live import interesting
from sickbay.cli.lock import is_locked
from sickbay.cli.output import Json, emit
from sickbay.cli.screens import age, fleet_table, node_screen
from sickbay.cli.session import Config, Session, State, run
from sickbay.store.queries import (
    FleetRow,
    NodeView,
    OpenTicket,
    PageRow,
    fleet_rows,
    node_view,
    open_tickets,
    page_rows,
)


def status(
    pool: Annotated[str | None, typer.Option("--pool", help="One pool.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Healthy nodes too.")] = False,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """The fleet: who is out, why, and what happens next."""

    async def work(session: Session) -> tuple[list[FleetRow], float, list[str]]:
        name = await session.pool(pool) if pool else None
        rows = await fleet_rows(session.store, pool=name)
        notes = await standing_notes(session, sorted({row.pool for row in rows}))
        return rows, session.settings.time_scale, notes

    rows, scale, notes = run(work, config=config, state=state)
    shown = rows if every else interesting(rows)
    well = len(rows) - len(interesting(rows))
    title = f"{len(rows)} nodes, {well} healthy with an open gate"
    screen = Group(*notes, fleet_table(shown, title=title, scale=scale) if shown else title)
    emit(rows, screen, as_json=as_json)


async def standing_notes(session: Session, pools: list[str]) -> list[str]:
    """What a reader must know before the table: nothing runs here, or acts are stopped."""
    notes = []
    # Only `sickbay up` leaves its run file; a cluster's workers run elsewhere, or as services.
    if session.was_started_here and not is_locked(session.settings.state_dir):
        notes.append("NOT RUNNING here: this is the state it was left in (`sickbay up` goes on)")
    for name in pools:
        stop = await session.records.standing_stop(name)
        if stop is not None:
            scope = stop["pool"] or "the fleet"
            why = f"by {stop['by']}: {stop['reason']}"
            notes.append(f"STOPPED: {scope}, {why} (`sickbay go` ends it)")
    return list(dict.fromkeys(notes))


def explain(
    node: Annotated[str, typer.Argument(help="The node.")],
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Why a node is out or in: gate, health, holds, repair, and what happens next."""

    async def work(session: Session) -> tuple[NodeView, float, list[str]]:
        known = await session.node(node)
        notes = await standing_notes(session, [known.pool])
        return await node_view(session.store, known.id), session.settings.time_scale, notes

    view, scale, notes = run(work, config=config, state=state)
    emit(view, Group(*notes, node_screen(view, scale=scale)), as_json=as_json)


def tickets(as_json: Json = False, config: Config = None, state: State = None) -> None:
    """Open tickets: what technicians are asked to do."""

    async def work(session: Session) -> tuple[list[OpenTicket], float]:
        return await open_tickets(session.store), session.settings.time_scale

    rows, scale = run(work, config=config, state=state)
    table = Table("ticket", "node", "slot", "serial", "open for", "what", "last line")
    for row in rows:
        opened = age(row.opened_at, scale=scale)
        table.add_row(
            row.id, row.node, row.slot, row.part_serial, opened, row.title, last_line(row)
        )
    emit(rows, table, as_json=as_json)


def last_line(ticket: OpenTicket) -> str:
    """The newest line of a ticket: where a refused report is answered."""
    return ticket.lines[-1] if ticket.lines else "-"


def pages(as_json: Json = False, config: Config = None, state: State = None) -> None:
    """Pages: what people were called for."""

    async def work(session: Session) -> tuple[list[PageRow], float]:
        return await page_rows(session.store), session.settings.time_scale

    rows, scale = run(work, config=config, state=state)
    table = Table("since", "class", "pool", "node", "what", "detail")
    for row in rows:
        kind = "urgent" if row.urgent else "next day"
        table.add_row(
            age(row.first_at, scale=scale), kind, row.pool, row.node or "-", row.summary, row.detail
        )
    emit(rows, table, as_json=as_json)
