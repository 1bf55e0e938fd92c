"""Commands that look: the fleet, one node, tickets, pages."""

from typing import Annotated

import typer
from rich.table import Table

from sickbay.cli.live import interesting
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

    async def work(session: Session) -> tuple[list[FleetRow], float]:
        name = await session.pool(pool) if pool else None
        return await fleet_rows(session.store, pool=name), session.settings.time_scale

    rows, scale = run(work, config=config, state=state)
    shown = rows if every else interesting(rows)
    well = len(rows) - len(interesting(rows))
    title = f"{len(rows)} nodes, {well} healthy with an open gate"
    emit(rows, fleet_table(shown, title=title, scale=scale), as_json=as_json)


def explain(
    node: Annotated[str, typer.Argument(help="The node.")],
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Why a node is out or in: gate, health, holds, repair, and what happens next."""

    async def work(session: Session) -> tuple[NodeView, float]:
        known = await session.node(node)
        return await node_view(session.store, known.id), session.settings.time_scale

    view, scale = run(work, config=config, state=state)
    emit(view, node_screen(view, scale=scale), as_json=as_json)


def tickets(as_json: Json = False, config: Config = None, state: State = None) -> None:
    """Open tickets: what technicians are asked to do."""

    async def work(session: Session) -> tuple[list[OpenTicket], float]:
        return await open_tickets(session.store), session.settings.time_scale

    rows, scale = run(work, config=config, state=state)
    table = Table("ticket", "node", "slot", "serial", "category", "open for", "what")
    for row in rows:
        opened = age(row.opened_at, scale=scale)
        table.add_row(row.id, row.node, row.slot, row.part_serial, row.category, opened, row.title)
    emit(rows, table, as_json=as_json)


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
