"""The store behind the Records and Inventory ports, for repairs."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from sqlalchemy import and_, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sickbay.contracts.steps import NodeContext, RepairRecord, StepRecord
from sickbay.domain.evidence import EvidenceRef
from sickbay.domain.node import Node, Part, Treatment
from sickbay.domain.repair import Attempt, Stage, StageOutcome
from sickbay.errors import UnknownNode
from sickbay.store import tables as t
from sickbay.store.gate_records import GateRecords
from sickbay.store.people_records import PeopleRecords
from sickbay.store.recovery_records import RecoveryRecords
from sickbay.store.rows import node_of, part_of
from sickbay.store.score_records import ScoreRecords
from sickbay.store.writing import insert_once

_TRIED = ("done", "ambiguous", "failed", "replaced", "work_done")


class StoreRecords(PeopleRecords, GateRecords, ScoreRecords, RecoveryRecords):
    """Everything the loop reads and writes of the store, one short transaction per call."""

    # --- inventory ------------------------------------------------------------------------------

    async def sync_inventory(self, nodes: Sequence[Node], *, at: datetime | None = None) -> None:
        """Book nodes that are new, with an open gate; a node on record only moves.

        Parts on record keep their history: they change by `replace_part` alone, because an
        inventory file does not know what a technician swapped.
        """
        now = at or datetime.now(UTC)
        async with self.store.write(turn="inventory") as db:
            known = {row.id: row for row in (await db.execute(select(t.nodes))).all()}
            for node in nodes:
                row, place = known.get(node.id), _place(node)
                if row is not None and any(getattr(row, k) != v for k, v in place.items()):
                    here = t.nodes.c.id == node.id
                    await db.execute(update(t.nodes).where(here).values(**place))
            await _book(db, [n for n in nodes if n.id not in known], at=now)

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
        async with self.store.write(turn=f"parts {node}") as db:
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
            last_step=await self.last_step_of_standing(node),
        )

    async def save_repair(self, record: RepairRecord) -> None:
        """Write or replace a repair's row; an older `updated_at` never replaces a newer."""
        row = {**asdict(record), "severity": str(record.severity)}
        row["cured_by"] = str(record.cured_by) if record.cured_by else None
        here = t.repairs.c.repair_id == record.repair_id
        async with self.store.write(turn=f"repair {record.repair_id}") as db:
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
        async with self.store.write(turn=None) as db:
            await insert_once(db, table=t.steps, row=row, key=("repair_id", "ordinal"))

    async def returned(
        self, node: str, *, repair_id: str, at: datetime, proven_from: datetime | None = None
    ) -> None:
        """Book a proven return, once per repair; older findings end where its proof began."""
        row = {"repair_id": repair_id, "node": node, "at": at}
        async with self.store.write(turn=f"repair {repair_id}") as db:
            if await insert_once(db, table=t.returns, row=row, key=("repair_id",)):
                await db.execute(
                    update(t.nodes)
                    .where(t.nodes.c.id == node)
                    .values(last_return_at=proven_from or at)
                )

    async def last_proof_at(self, node: str) -> datetime | None:
        """When the node's newest passing proof ended, None when it never passed one."""
        passed = and_(
            t.steps.c.node == node,
            t.steps.c.stage == str(Stage.PROVE),
            t.steps.c.outcome == str(StageOutcome.PASSED),
        )
        newest = select(t.steps.c.ended_at).where(passed).order_by(t.steps.c.ended_at.desc())
        async with self.store.read() as db:
            return (await db.execute(newest.limit(1))).scalar()

    # --- evidence -------------------------------------------------------------------------------

    async def index_evidence(self, ref: EvidenceRef, *, at: datetime) -> None:
        """Book a stored fact by its digest, once."""
        async with self.store.write(turn=None) as db:
            await insert_once(
                db, table=t.evidence, row={**asdict(ref), "first_at": at}, key=("sha256",)
            )


def _place(node: Node) -> dict[str, str]:
    return {
        "pool": node.pool,
        "node_group": node.group,
        "rack": node.rack,
        "node_class": node.node_class,
        "chassis": node.chassis,
        "power_unit": node.power_unit,
    }


async def _book(db: AsyncConnection, nodes: Sequence[Node], *, at: datetime) -> None:
    gate = {"gate_open": True, "gate_since": at, "added_at": at}
    rows = {
        t.nodes: [{"id": n.id, **gate, **_place(n)} for n in nodes],
        t.gate_intervals: [{"node": n.id, "open": True, "from_at": at} for n in nodes],
        t.parts: [_part_row(n.id, part, at) for n in nodes for part in n.parts],
    }
    for table, new in rows.items():
        if new:
            await db.execute(insert(table), new)


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
