"""What people ask of the store: the fleet, one node, tickets, pages, withheld acts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sickbay.domain.gate import Hold
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Node
from sickbay.errors import UnknownNode
from sickbay.store import tables as t
from sickbay.store.engine import Store
from sickbay.store.rows import health_of, hold_of, node_of, part_of, standing_of

PAST = 5
RECENT = 2000


@dataclass(frozen=True)
class FleetRow:
    """One node as the fleet's table shows it. `since` is the stage's or the standing's start."""

    node: str
    pool: str
    group: str
    rack: str
    gate_open: bool
    health: Health | None
    standing: Standing
    stage: str | None
    since: datetime | None
    next_step: str
    deadline: datetime | None
    reason: str
    holds: tuple[str, ...]


@dataclass(frozen=True)
class StepRow:
    """One finished stage."""

    ordinal: int
    stage: str
    outcome: str
    detail: str
    started_at: datetime
    ended_at: datetime
    treatment: str | None
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class RepairRow:
    """One repair with its finished stages."""

    repair_id: str
    node: str
    pool: str
    stage: str
    stage_since: datetime
    reason: str
    severity: str
    part: str
    category: str
    next_step: str
    deadline: datetime | None
    started_at: datetime
    ended_at: datetime | None
    ending: str | None
    ended_by: str
    confirmed: bool | None
    cured_by: str | None
    paused_by: str | None
    steps: tuple[StepRow, ...] = field(default=())


@dataclass(frozen=True)
class NodeView:
    """Everything about one node. `reopens` says when no hold stands but the gate is closed."""

    node: Node
    gate_open: bool
    gate_since: datetime
    health: Health | None
    standing: Standing
    standing_since: datetime | None
    holds: tuple[Hold, ...]
    reopens: str
    repair: RepairRow | None
    past: tuple[RepairRow, ...]


@dataclass(frozen=True)
class OpenTicket:
    """One open ticket with its lines."""

    id: str
    key: str
    node: str
    rack: str
    slot: str
    part_serial: str
    category: str
    title: str
    body: str
    repair_id: str
    opened_at: datetime
    lines: tuple[str, ...]


@dataclass(frozen=True)
class PageRow:
    """One page."""

    key: str
    pool: str
    node: str | None
    summary: str
    detail: str
    urgent: bool
    first_at: datetime
    repeats: int


@dataclass(frozen=True)
class WouldHaveRow:
    """One act that a safety switch withheld."""

    at: datetime
    node: str
    pool: str
    action: str
    detail: str
    why: str


async def fleet_rows(store: Store, *, pool: str | None = None) -> list[FleetRow]:
    """Every node, by id."""
    query = select(t.nodes).order_by(t.nodes.c.id)
    if pool is not None:
        query = query.where(t.nodes.c.pool == pool)
    async with store.read() as db:
        nodes = (await db.execute(query)).all()
        health = {r.node: r for r in await _newest_health(db)}
        running = {r.node: r for r in (await db.execute(_running())).all()}
        standing_holds = (
            select(t.holds).where(t.holds.c.lifted_at.is_(None)).order_by(t.holds.c.row)
        )
        holds: dict[str, list[Any]] = {}
        for row in (await db.execute(standing_holds)).all():
            holds.setdefault(row.node, []).append(row)
    return [_fleet_row(n, health.get(n.id), running.get(n.id), holds.get(n.id, ())) for n in nodes]


def _running() -> Select[Any]:
    """Repairs that have not ended; of two of one node the newest comes last."""
    return select(t.repairs).where(t.repairs.c.ending.is_(None)).order_by(t.repairs.c.started_at)


def _fleet_row(node: Any, health: Any, repair: Any, holds: Sequence[Any]) -> FleetRow:
    hold = holds[0] if holds else None
    since = repair.stage_since if repair else None
    return FleetRow(
        node=node.id,
        pool=node.pool,
        group=node.node_group,
        rack=node.rack,
        gate_open=node.gate_open,
        health=health_of(health) if health else None,
        standing=standing_of(health) if health else Standing.UNKNOWN,
        stage=repair.stage if repair else None,
        since=since or (health.standing_since if health else node.gate_since),
        next_step=repair.next_step if repair else (hold.next_step if hold else ""),
        deadline=repair.deadline if repair else (hold.deadline if hold else None),
        reason=repair.reason if repair else (hold.reason if hold else ""),
        holds=tuple(f"{h.kind} by {h.owner}: {h.reason}" for h in holds),
    )


async def _newest_health(db: AsyncConnection, *, node: str | None = None) -> Sequence[Any]:
    newest = select(func.max(t.health_changes.c.id)).group_by(t.health_changes.c.node)
    if node is not None:
        newest = newest.where(t.health_changes.c.node == node)
    query = select(t.health_changes).where(t.health_changes.c.id.in_(newest))
    return (await db.execute(query)).all()


async def node_view(store: Store, node: str) -> NodeView:
    """Everything about one node. Raises `UnknownNode`."""
    async with store.read() as db:
        row = (await db.execute(select(t.nodes).where(t.nodes.c.id == node))).first()
        if row is None:
            raise UnknownNode(f"no node {node!r} is on record", field="node")
        present = select(t.parts).where(t.parts.c.node == node, t.parts.c.until_at.is_(None))
        parts = [part_of(p) for p in (await db.execute(present)).all()]
        health = next(iter(await _newest_health(db, node=node)), None)
        standing_holds = (
            select(t.holds)
            .where(t.holds.c.node == node, t.holds.c.lifted_at.is_(None))
            .order_by(t.holds.c.row)
        )
        holds = tuple(hold_of(h) for h in (await db.execute(standing_holds)).all())
        rows = await _repairs(db, limit=PAST + 1, node=node)
    running = next((r for r in rows if r.ending is None), None)
    if running is not None:
        holds = tuple(_followed(hold, running) for hold in holds)
    past = tuple(r for r in rows if r is not running)[:PAST]
    foreign = not row.gate_open and not holds
    return NodeView(
        node=node_of(row, parts=parts),
        gate_open=row.gate_open,
        gate_since=row.gate_since,
        health=health_of(health) if health else None,
        standing=standing_of(health) if health else Standing.UNKNOWN,
        standing_since=health.standing_since if health else None,
        holds=holds,
        reopens="another tool or person keeps it closed in the scheduler" if foreign else "",
        repair=running,
        past=past,
    )


def _followed(hold: Hold, repair: RepairRow) -> Hold:
    """A running repair's hold, with the next step and deadline of the repair as it is now."""
    if hold.repair_id != repair.repair_id:
        return hold
    return replace(hold, next_step=repair.next_step, deadline=repair.deadline)


async def recent_repairs(store: Store, *, limit: int = RECENT) -> list[RepairRow]:
    """The newest repairs with their steps, newest first."""
    async with store.read() as db:
        return await _repairs(db, limit=limit)


async def _repairs(db: AsyncConnection, *, limit: int, node: str | None = None) -> list[RepairRow]:
    newest = select(t.repairs).order_by(t.repairs.c.started_at.desc(), t.repairs.c.repair_id)
    if node is not None:
        newest = newest.where(t.repairs.c.node == node)
    wanted = newest.limit(limit).subquery()
    order = (wanted.c.started_at.desc(), wanted.c.repair_id)
    rows = (await db.execute(select(wanted).order_by(*order))).all()
    steps = (
        select(t.steps)
        .join(wanted, wanted.c.repair_id == t.steps.c.repair_id)
        .order_by(t.steps.c.repair_id, t.steps.c.ordinal)
    )
    by_repair: dict[str, list[StepRow]] = {}
    for step in (await db.execute(steps)).all():
        by_repair.setdefault(step.repair_id, []).append(_step_of(step))
    return [_repair_of(row, by_repair.get(row.repair_id, ())) for row in rows]


def _step_of(row: Any) -> StepRow:
    return StepRow(
        ordinal=row.ordinal,
        stage=row.stage,
        outcome=row.outcome,
        detail=row.detail,
        started_at=row.started_at,
        ended_at=row.ended_at,
        treatment=row.treatment,
        evidence=tuple(row.evidence),
    )


def _repair_of(row: Any, steps: Iterable[StepRow]) -> RepairRow:
    return RepairRow(
        repair_id=row.repair_id,
        node=row.node,
        pool=row.pool,
        stage=row.stage,
        stage_since=row.stage_since,
        reason=row.reason,
        severity=row.severity,
        part=row.part,
        category=row.category,
        next_step=row.next_step,
        deadline=row.deadline,
        started_at=row.started_at,
        ended_at=row.ended_at,
        ending=row.ending,
        ended_by=row.ended_by,
        confirmed=row.confirmed,
        cured_by=row.cured_by,
        paused_by=row.paused_by,
        steps=tuple(steps),
    )


async def open_tickets(store: Store) -> list[OpenTicket]:
    """Open tickets with their lines, oldest first."""
    query = select(t.tickets).where(t.tickets.c.closed_at.is_(None)).order_by(t.tickets.c.id)
    async with store.read() as db:
        rows = (await db.execute(query)).all()
        numbers = [row.id for row in rows]
        wanted = select(t.ticket_lines).where(t.ticket_lines.c.ticket.in_(numbers))
        lines: dict[int, list[str]] = {}
        for line in (await db.execute(wanted.order_by(t.ticket_lines.c.id))).all():
            lines.setdefault(line.ticket, []).append(line.text)
    return [
        OpenTicket(
            id=str(row.id),
            key=row.key,
            node=row.node,
            rack=row.rack,
            slot=row.slot,
            part_serial=row.part_serial,
            category=row.category,
            title=row.title,
            body=row.body,
            repair_id=row.repair_id,
            opened_at=row.opened_at,
            lines=tuple(lines.get(row.id, ())),
        )
        for row in rows
    ]


async def page_rows(store: Store) -> list[PageRow]:
    """Pages, newest first."""
    async with store.read() as db:
        rows = (await db.execute(select(t.pages).order_by(t.pages.c.first_at.desc()))).all()
    return [
        PageRow(
            key=r.key,
            pool=r.pool,
            node=r.node,
            summary=r.summary,
            detail=r.detail,
            urgent=r.urgent,
            first_at=r.first_at,
            repeats=r.repeats,
        )
        for r in rows
    ]


async def would_have_rows(store: Store, *, limit: int = 500) -> list[WouldHaveRow]:
    """Acts that a safety switch withheld, newest first."""
    query = select(t.would_have).order_by(t.would_have.c.id.desc()).limit(limit)
    async with store.read() as db:
        rows = (await db.execute(query)).all()
    return [WouldHaveRow(r.at, r.node, r.pool, r.action, detail=r.detail, why=r.why) for r in rows]
