"""The store behind the Records and Inventory ports, for repairs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, RowMapping, Table, and_, func, insert, or_, select, update

from sickbay.contracts.steps import (
    NodeContext,
    PresentHealth,
    RepairRecord,
    StepRecord,
)
from sickbay.domain.gate import Hold
from sickbay.domain.health import UNKNOWN_HEALTH, Health, Standing
from sickbay.domain.node import Node, Part, Treatment
from sickbay.domain.repair import Attempt
from sickbay.errors import UnknownNode
from sickbay.store import tables as t
from sickbay.store.engine import Store
from sickbay.store.people_records import PeopleRecords
from sickbay.store.rows import health_of, hold_of, node_of, part_of, standing_of

_TRIED = ("done", "ambiguous", "failed", "replaced", "work_done")


class StoreRecords(PeopleRecords):
    """Everything the loop reads and writes of the store, one short transaction per call."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store

    # --- inventory ------------------------------------------------------------------------------

    async def sync_inventory(self, nodes: Sequence[Node], *, at: datetime | None = None) -> None:
        """Book nodes that are new, with an open gate; parts on record keep their history."""
        now = at or datetime.now(UTC)
        async with self.store.write() as db:
            known = set((await db.execute(select(t.nodes.c.id))).scalars())
            for node in nodes:
                if node.id in known:
                    continue
                await db.execute(
                    insert(t.nodes).values(
                        id=node.id,
                        pool=node.pool,
                        node_group=node.group,
                        rack=node.rack,
                        node_class=node.node_class,
                        added_at=now,
                        gate_open=True,
                        gate_since=now,
                    )
                )
                await db.execute(
                    insert(t.gate_intervals).values(node=node.id, open=True, from_at=now)
                )
                for part in node.parts:
                    await db.execute(insert(t.parts).values(_part_row(node.id, part, now)))

    async def nodes(self, *, pool: str | None = None) -> tuple[Node, ...]:
        """The nodes on record, by id."""
        query = select(t.nodes).order_by(t.nodes.c.id)
        present = select(t.parts).where(t.parts.c.until_at.is_(None))
        if pool is not None:
            query = query.where(t.nodes.c.pool == pool)
        async with self.store.read() as db:
            rows = (await db.execute(query)).all()
            by_node: dict[str, list[Part]] = {}
            for row in (await db.execute(present)).all():
                by_node.setdefault(row.node, []).append(part_of(row))
        return tuple(node_of(row, parts=by_node.get(row.id, [])) for row in rows)

    async def node(self, node: str) -> Node | None:
        """One node, None when it is not on record."""
        async with self.store.read() as db:
            row = (await db.execute(select(t.nodes).where(t.nodes.c.id == node))).first()
            if row is None:
                return None
            present = select(t.parts).where(t.parts.c.node == node, t.parts.c.until_at.is_(None))
            return node_of(row, parts=[part_of(p) for p in (await db.execute(present)).all()])

    async def replace_part(self, node: str, *, slot: str, part: Part, at: datetime) -> None:
        """Re-key a slot; replacing by the part that is there already changes nothing."""
        here = and_(t.parts.c.node == node, t.parts.c.slot == slot, t.parts.c.until_at.is_(None))
        async with self.store.write() as db:
            row = (await db.execute(select(t.parts).where(here))).first()
            if row is not None and row.uuid == part.uuid:
                return
            await db.execute(update(t.parts).where(here).values(until_at=at))
            await db.execute(insert(t.parts).values(_part_row(node, part, at)))

    # --- repairs --------------------------------------------------------------------------------

    async def node_context(
        self, node: str, *, now: datetime, memory_s: float, probation_s: float
    ) -> NodeContext:
        """What is known when a repair starts. Raises `UnknownNode`."""
        known = await self.node(node)
        if known is None:
            raise UnknownNode(f"no node {node!r} is on record", field="node")
        async with self.store.read() as db:
            last = (
                await db.execute(select(t.nodes.c.last_return_at).where(t.nodes.c.id == node))
            ).scalar()
            counts = (
                await db.execute(
                    select(t.steps.c.part, t.steps.c.category, t.steps.c.treatment, func.count())
                    .where(
                        t.steps.c.node == node,
                        t.steps.c.treatment.is_not(None),
                        t.steps.c.outcome.in_(_TRIED),
                        t.steps.c.ended_at > now - timedelta(seconds=memory_s),
                    )
                    .group_by(t.steps.c.part, t.steps.c.category, t.steps.c.treatment)
                )
            ).all()
        present = {known.id, *(p.uuid for p in known.parts)}
        attempts = tuple(
            Attempt(part, category, Treatment(treatment), count)
            for part, category, treatment, count in counts
            if part in present
        )
        probation = last is not None and now - last <= timedelta(seconds=probation_s)
        return NodeContext(
            node=known,
            last_return_at=last,
            attempts=attempts,
            holds=await self.holds(node),
            in_probation=probation,
        )

    async def save_repair(self, record: RepairRecord) -> None:
        """Write or replace a repair's row; an older `updated_at` never replaces a newer."""
        row = {**asdict(record), "severity": str(record.severity)}
        row["cured_by"] = str(record.cured_by) if record.cured_by else None
        here = t.repairs.c.repair_id == record.repair_id
        async with self.store.write() as db:
            old = (await db.execute(select(t.repairs).where(here))).first()
            if old is None:
                await db.execute(insert(t.repairs).values(stage_since=record.updated_at, **row))
                return
            if old.updated_at > record.updated_at:
                return
            since = old.stage_since if old.stage == record.stage else record.updated_at
            await db.execute(update(t.repairs).where(here).values(stage_since=since, **row))

    async def save_step(self, record: StepRecord) -> None:
        """Write one step, once per (repair id, ordinal)."""
        row = {**asdict(record), "evidence": list(record.evidence)}
        row["treatment"] = str(record.treatment) if record.treatment else None
        await self._once(
            t.steps,
            row,
            {"repair_id": record.repair_id, "ordinal": record.ordinal},
        )

    async def returned(self, node: str, *, repair_id: str, at: datetime) -> None:
        """Book a proven return, once per repair."""
        row = {"repair_id": repair_id, "node": node, "at": at}
        if await self._once(t.returns, row, {"repair_id": repair_id}):
            async with self.store.write() as db:
                await db.execute(
                    update(t.nodes).where(t.nodes.c.id == node).values(last_return_at=at)
                )

    async def _once(
        self, table: Table, row: Mapping[str, object], key: Mapping[str, object]
    ) -> bool:
        """Insert a row unless one with this key is there; whether it was inserted."""
        there = and_(*(table.c[name] == value for name, value in key.items()))
        async with self.store.write() as db:
            if (await db.execute(select(table).where(there))).first() is not None:
                return False
            await db.execute(insert(table).values(**row))
            return True

    # --- holds and the gate ---------------------------------------------------------------------

    async def place_hold(self, hold: Hold) -> None:
        """Record a hold; a standing one with this id stays as it is."""
        standing = and_(t.holds.c.id == hold.id, t.holds.c.lifted_at.is_(None))
        row = {**asdict(hold), "kind": str(hold.kind), "lifted_at": None, "lifted_by": None}
        async with self.store.write() as db:
            if (await db.execute(select(t.holds.c.row).where(standing))).first() is None:
                await db.execute(insert(t.holds).values(**row))

    async def lift_hold(self, hold_id: str, *, by: str, at: datetime) -> None:
        """Record that a hold ended."""
        standing = and_(t.holds.c.id == hold_id, t.holds.c.lifted_at.is_(None))
        async with self.store.write() as db:
            await db.execute(update(t.holds).where(standing).values(lifted_at=at, lifted_by=by))

    async def holds(self, node: str) -> tuple[Hold, ...]:
        """The holds that stand on a node, oldest first."""
        standing = and_(t.holds.c.node == node, t.holds.c.lifted_at.is_(None))
        async with self.store.read() as db:
            rows = await db.execute(select(t.holds).where(standing).order_by(t.holds.c.row))
            return tuple(hold_of(row) for row in rows.all())

    async def gate_moved(self, node: str, *, open_: bool, at: datetime) -> None:
        """Book a true change of the scheduler's bit; the same state again is no row."""
        async with self.store.write() as db:
            row = (await db.execute(select(t.nodes).where(t.nodes.c.id == node))).first()
            if row is None or row.gate_open == open_:
                return
            running = and_(t.gate_intervals.c.node == node, t.gate_intervals.c.until_at.is_(None))
            await db.execute(update(t.gate_intervals).where(running).values(until_at=at))
            await db.execute(insert(t.gate_intervals).values(node=node, open=open_, from_at=at))
            await db.execute(
                update(t.nodes).where(t.nodes.c.id == node).values(gate_open=open_, gate_since=at)
            )

    # --- health ---------------------------------------------------------------------------------

    async def present_health(self, node: str) -> PresentHealth:
        """The newest health on record; unknown when there is none."""
        newest = (
            select(t.health_changes)
            .where(t.health_changes.c.node == node)
            .order_by(t.health_changes.c.id.desc())
            .limit(1)
        )
        async with self.store.read() as db:
            row = (await db.execute(newest)).first()
        if row is None:
            return PresentHealth(UNKNOWN_HEALTH, Standing.UNKNOWN, at=None)
        return PresentHealth(health_of(row), standing_of(row), at=row.at)

    async def save_health(
        self, node: str, *, health: Health, standing: Standing, at: datetime, rules: str
    ) -> None:
        """Record a change of health or standing, with the rule set's version and digest."""
        before = await self.present_health(node)
        async with self.store.write() as db:
            since = at
            if before.at is not None and before.standing is standing:
                since = await self._standing_since(node) or at
            await db.execute(
                insert(t.health_changes).values(
                    node=node,
                    at=at,
                    standing=str(standing),
                    standing_since=since,
                    rules=rules,
                    **{
                        **asdict(health),
                        "worst": str(health.worst) if health.worst else None,
                    },
                )
            )

    async def _standing_since(self, node: str) -> datetime | None:
        newest = (
            select(t.health_changes.c.standing_since)
            .where(t.health_changes.c.node == node)
            .order_by(t.health_changes.c.id.desc())
            .limit(1)
        )
        async with self.store.read() as db:
            return (await db.execute(newest)).scalar()

    async def standings(self, pool: str) -> dict[str, tuple[Health, Standing, datetime]]:
        """The last saved health and standing of each node of a pool, and since when."""
        newest = (
            select(func.max(t.health_changes.c.id))
            .join(t.nodes, t.nodes.c.id == t.health_changes.c.node)
            .where(t.nodes.c.pool == pool)
            .group_by(t.health_changes.c.node)
        )
        async with self.store.read() as db:
            rows = await db.execute(
                select(t.health_changes).where(t.health_changes.c.id.in_(newest))
            )
            return {
                row.node: (health_of(row), standing_of(row), row.standing_since)
                for row in rows.all()
            }

    async def last_returns(self, pool: str) -> dict[str, datetime]:
        """The newest proven return of each node of a pool that has one."""
        query = select(t.nodes.c.id, t.nodes.c.last_return_at).where(
            t.nodes.c.pool == pool, t.nodes.c.last_return_at.is_not(None)
        )
        async with self.store.read() as db:
            return {row.id: row.last_return_at for row in (await db.execute(query)).all()}

    async def next_epoch(self, pool: str) -> int:
        """Take a new fencing epoch of a pool's scorer: larger than any before."""
        here = t.epochs.c.pool == pool
        async with self.store.write() as db:
            old = (await db.execute(select(t.epochs.c.epoch).where(here))).scalar()
            if old is None:
                await db.execute(insert(t.epochs).values(pool=pool, epoch=1))
                return 1
            await db.execute(update(t.epochs).where(here).values(epoch=old + 1))
            return int(old) + 1

    async def epoch_is_current(self, pool: str, epoch: int) -> bool:
        """Whether no newer epoch was taken."""
        async with self.store.read() as db:
            newest = (
                await db.execute(select(t.epochs.c.epoch).where(t.epochs.c.pool == pool))
            ).scalar()
        return newest == epoch

    # --- the stop switch ------------------------------------------------------------------------

    async def set_stop(self, pool: str | None, *, by: str, reason: str, at: datetime) -> None:
        """Stop acts of a pool, or (None) of the fleet. Stopping twice is one stop."""
        standing = and_(t.stops.c.lifted_at.is_(None), _scope(pool))
        async with self.store.write() as db:
            if (await db.execute(select(t.stops.c.id).where(standing))).first() is None:
                await db.execute(insert(t.stops).values(pool=pool, by=by, reason=reason, at=at))

    async def lift_stop(self, pool: str | None, *, by: str, at: datetime) -> bool:
        """End a stop; whether one stood."""
        standing = and_(t.stops.c.lifted_at.is_(None), _scope(pool))
        async with self.store.write() as db:
            done = await db.execute(
                update(t.stops).where(standing).values(lifted_at=at, lifted_by=by)
            )
            return done.rowcount > 0

    async def standing_stop(self, pool: str) -> RowMapping | None:
        """The stop that holds for a pool, None when nothing is stopped."""
        mine = or_(t.stops.c.pool.is_(None), t.stops.c.pool == pool)
        query = select(t.stops).where(t.stops.c.lifted_at.is_(None), mine).limit(1)
        async with self.store.read() as db:
            return (await db.execute(query)).mappings().first()


def _scope(pool: str | None) -> ColumnElement[bool]:
    return t.stops.c.pool.is_(None) if pool is None else t.stops.c.pool == pool


def _part_row(node: str, part: Part, at: datetime) -> dict[str, object]:
    return {
        "node": node,
        "slot": part.slot,
        "kind": str(part.kind),
        "uuid": part.uuid,
        "serial": part.serial,
        "bus_id": part.bus_id,
        "from_at": at,
    }
