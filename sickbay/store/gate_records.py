"""The part of the store about closed gates: holds, the gate's ledger, the stop switch."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, RowMapping, and_, func, insert, or_, select, update

from sickbay.domain.gate import Hold, HoldKind
from sickbay.domain.health import Standing
from sickbay.domain.neighbour import Bystander
from sickbay.store import tables as t
from sickbay.store.rows import hold_of, standing_of
from sickbay.store.writing import StoreSide

STOPS = "stops"


class GateRecords(StoreSide):
    """Holds, gate intervals and stops."""

    async def place_hold(self, hold: Hold) -> None:
        """Record a hold; a standing one with this id stays as it is."""
        standing = and_(t.holds.c.id == hold.id, t.holds.c.lifted_at.is_(None))
        row = {**asdict(hold), "kind": str(hold.kind), "lifted_at": None, "lifted_by": None}
        async with self.store.write(turn=hold.id) as db:
            if (await db.execute(select(t.holds.c.row).where(standing))).first() is None:
                await db.execute(insert(t.holds).values(**row))

    async def lift_hold(self, hold_id: str, *, by: str, at: datetime) -> None:
        """Record that a hold ended."""
        standing = and_(t.holds.c.id == hold_id, t.holds.c.lifted_at.is_(None))
        async with self.store.write(turn=hold_id) as db:
            await db.execute(update(t.holds).where(standing).values(lifted_at=at, lifted_by=by))

    async def holds(self, node: str) -> tuple[Hold, ...]:
        """The holds that stand on a node, oldest first."""
        standing = and_(t.holds.c.node == node, t.holds.c.lifted_at.is_(None))
        async with self.store.read() as db:
            rows = await db.execute(select(t.holds).where(standing).order_by(t.holds.c.row))
            return tuple(hold_of(row) for row in rows.all())

    async def open_withheld(self, pool: str) -> tuple[Hold, ...]:
        """The withheld holds that stand in a pool, oldest first."""
        query = (
            select(t.holds)
            .join(t.nodes, t.nodes.c.id == t.holds.c.node)
            .where(
                t.nodes.c.pool == pool,
                t.holds.c.kind == str(HoldKind.WITHHELD),
                t.holds.c.lifted_at.is_(None),
            )
            .order_by(t.holds.c.row)
        )
        async with self.store.read() as db:
            return tuple(hold_of(row) for row in (await db.execute(query)).all())

    async def borrowed(self) -> tuple[Hold, ...]:
        """The holds on borrowed neighbours that stand, oldest first."""
        query = select(t.holds).where(
            t.holds.c.kind == str(HoldKind.BORROWED), t.holds.c.lifted_at.is_(None)
        )
        async with self.store.read() as db:
            rows = await db.execute(query.order_by(t.holds.c.row))
            return tuple(hold_of(row) for row in rows.all())

    async def bystanders(self, pool: str) -> tuple[Bystander, ...]:
        """Every node of a pool as it stands on record, by id."""
        in_pool = select(t.nodes.c.id).where(t.nodes.c.pool == pool)
        held = select(t.holds.c.node).where(t.holds.c.lifted_at.is_(None))
        repaired = select(t.repairs.c.node).where(t.repairs.c.ending.is_(None))
        newest = (
            select(func.max(t.health_changes.c.id))
            .where(t.health_changes.c.node.in_(in_pool))
            .group_by(t.health_changes.c.node)
        )
        health_rows = select(t.health_changes).where(t.health_changes.c.id.in_(newest))
        async with self.store.read() as db:
            nodes = await db.execute(
                select(t.nodes).where(t.nodes.c.pool == pool).order_by(t.nodes.c.id)
            )
            health = {row.node: row for row in (await db.execute(health_rows)).all()}
            out = set((await db.execute(held)).scalars())
            sick = set((await db.execute(repaired)).scalars())
            return tuple(_bystander(n, health.get(n.id), held=out, sick=sick) for n in nodes.all())

    async def gate_moved(self, node: str, *, open_: bool, at: datetime) -> None:
        """Book a true change of the scheduler's bit; the same state again is no row.

        A report that comes late is booked no earlier than the change before it.
        """
        async with self.store.write(turn=f"gate {node}") as db:
            row = (await db.execute(select(t.nodes).where(t.nodes.c.id == node))).first()
            if row is None or row.gate_open == open_:
                return
            at = max(at, row.gate_since)
            running = and_(t.gate_intervals.c.node == node, t.gate_intervals.c.until_at.is_(None))
            await db.execute(update(t.gate_intervals).where(running).values(until_at=at))
            await db.execute(insert(t.gate_intervals).values(node=node, open=open_, from_at=at))
            await db.execute(
                update(t.nodes).where(t.nodes.c.id == node).values(gate_open=open_, gate_since=at)
            )

    async def set_stop(self, pool: str | None, *, by: str, reason: str, at: datetime) -> None:
        """Stop acts of a pool, or (None) of the fleet. Stopping twice is one stop."""
        standing = and_(t.stops.c.lifted_at.is_(None), _scope(pool))
        async with self.store.write(turn=STOPS) as db:
            if (await db.execute(select(t.stops.c.id).where(standing))).first() is None:
                await db.execute(insert(t.stops).values(pool=pool, by=by, reason=reason, at=at))

    async def lift_stop(self, pool: str | None, *, by: str, at: datetime) -> bool:
        """End a stop; whether one stood."""
        standing = and_(t.stops.c.lifted_at.is_(None), _scope(pool))
        async with self.store.write(turn=STOPS) as db:
            done = await db.execute(
                update(t.stops).where(standing).values(lifted_at=at, lifted_by=by)
            )
            return done.rowcount > 0

    async def standing_stop(self, pool: str) -> RowMapping | None:
        """The stop that holds for a pool, None when nothing is stopped."""
        query = select(t.stops).where(_stops(pool)).order_by(t.stops.c.id).limit(1)
        async with self.store.read() as db:
            return (await db.execute(query)).mappings().first()

    async def is_stopped(self, pool: str) -> bool:
        """Whether a stop holds for a pool; reads no more than that."""
        async with self.store.read() as db:
            found = await db.execute(select(t.stops.c.id).where(_stops(pool)).limit(1))
            return found.first() is not None


def _bystander(
    node: Row[Any], health: Row[Any] | None, *, held: set[str], sick: set[str]
) -> Bystander:
    return Bystander(
        node=node.id,
        group=node.node_group,
        rack=node.rack,
        node_class=node.node_class,
        standing=standing_of(health) if health else Standing.UNKNOWN,
        value=health.value if health else None,
        gate_open=node.gate_open,
        in_repair=node.id in sick,
        held=node.id in held,
    )


def _stops(pool: str) -> ColumnElement[bool]:
    mine = or_(t.stops.c.pool.is_(None), t.stops.c.pool == pool)
    return and_(t.stops.c.lifted_at.is_(None), mine)


def _scope(pool: str | None) -> ColumnElement[bool]:
    return t.stops.c.pool.is_(None) if pool is None else t.stops.c.pool == pool
