"""The part of the store a comparison after a restore reads."""

from datetime import datetime

from sqlalchemy import RowMapping, and_, func, select, update

from sickbay.contracts.steps import RepairRecord
from sickbay.domain.gate import Hold
from sickbay.domain.node import Severity, Treatment
from sickbay.store import tables as t
from sickbay.store.rows import hold_of
from sickbay.store.writing import StoreSide

# How a repair ended is not on record: no ending of the loop, which always knows.
LOST = "lost"


class RecoveryRecords(StoreSide):
    """Standing holds of the whole fleet, and what is known of one repair."""

    async def standing_holds(self) -> tuple[Hold, ...]:
        """Every hold that stands in the fleet, oldest first."""
        query = select(t.holds).where(t.holds.c.lifted_at.is_(None)).order_by(t.holds.c.row)
        async with self.store.read() as db:
            return tuple(hold_of(row) for row in (await db.execute(query)).all())

    async def open_repairs(self, node: str | None = None) -> tuple[RepairRecord, ...]:
        """Repairs that have not ended on record, of one node or of the fleet, oldest first."""
        query = select(t.repairs).where(t.repairs.c.ending.is_(None))
        if node is not None:
            query = query.where(t.repairs.c.node == node)
        async with self.store.read() as db:
            rows = await db.execute(query.order_by(t.repairs.c.started_at, t.repairs.c.repair_id))
            return tuple(_record_of(row) for row in rows.mappings().all())

    async def last_step_of_standing(self, node: str) -> int:
        """The highest step of the repairs whose holds stand on a node, 0 without one."""
        standing = select(t.holds.c.repair_id).where(
            t.holds.c.node == node, t.holds.c.lifted_at.is_(None)
        )
        top = select(func.max(t.steps.c.ordinal)).where(t.steps.c.repair_id.in_(standing))
        async with self.store.read() as db:
            return int((await db.execute(top)).scalar() or 0)

    async def open_tickets_of(self, repair_id: str) -> tuple[str, ...]:
        """Ids of the local tickets of a repair that are still open."""
        still = and_(t.tickets.c.repair_id == repair_id, t.tickets.c.closed_at.is_(None))
        async with self.store.read() as db:
            found = await db.execute(select(t.tickets.c.id).where(still).order_by(t.tickets.c.id))
            return tuple(str(number) for number in found.scalars())

    async def lose_repair(self, repair_id: str, *, at: datetime) -> None:
        """Record that how a repair ended is not known; one that ended on record stays so."""
        running = and_(t.repairs.c.repair_id == repair_id, t.repairs.c.ending.is_(None))
        lost = {"ending": LOST, "ended_at": at, "updated_at": at, "next_step": ""}
        async with self.store.write(turn=f"repair {repair_id}") as db:
            await db.execute(update(t.repairs).where(running).values(**lost, deadline=None))

    async def repair_on_record(self, repair_id: str) -> tuple[RepairRecord, int] | None:
        """A repair's row and its highest step (0 without one), None when there is no row."""
        mine = t.steps.c.repair_id == repair_id
        async with self.store.read() as db:
            found = await db.execute(select(t.repairs).where(t.repairs.c.repair_id == repair_id))
            row = found.mappings().first()
            if row is None:
                return None
            top = (await db.execute(select(func.max(t.steps.c.ordinal)).where(mine))).scalar()
        return _record_of(row), int(top or 0)


def _record_of(row: RowMapping) -> RepairRecord:
    fields = {name: value for name, value in row.items() if name != "stage_since"}
    fields["severity"] = Severity(row["severity"])
    fields["cured_by"] = Treatment(row["cured_by"]) if row["cured_by"] else None
    return RepairRecord(**fields)
