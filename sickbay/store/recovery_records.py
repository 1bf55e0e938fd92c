"""The part of the store a comparison after a restore reads."""

from sqlalchemy import func, select

from sickbay.contracts.steps import RepairRecord
from sickbay.domain.gate import Hold
from sickbay.domain.node import Severity, Treatment
from sickbay.store import tables as t
from sickbay.store.rows import hold_of
from sickbay.store.writing import StoreSide


class RecoveryRecords(StoreSide):
    """Standing holds of the whole fleet, and what is known of one repair."""

    async def standing_holds(self) -> tuple[Hold, ...]:
        """Every hold that stands in the fleet, oldest first."""
        query = select(t.holds).where(t.holds.c.lifted_at.is_(None)).order_by(t.holds.c.row)
        async with self.store.read() as db:
            return tuple(hold_of(row) for row in (await db.execute(query)).all())

    async def repair_on_record(self, repair_id: str) -> tuple[RepairRecord, int] | None:
        """A repair's row and its highest step (0 without one), None when there is no row."""
        mine = t.steps.c.repair_id == repair_id
        async with self.store.read() as db:
            found = await db.execute(select(t.repairs).where(t.repairs.c.repair_id == repair_id))
            row = found.mappings().first()
            if row is None:
                return None
            top = (await db.execute(select(func.max(t.steps.c.ordinal)).where(mine))).scalar()
        fields = {name: value for name, value in row.items() if name != "stage_since"}
        fields["severity"] = Severity(row["severity"])
        fields["cured_by"] = Treatment(row["cured_by"]) if row["cured_by"] else None
        return RepairRecord(**fields), int(top or 0)
