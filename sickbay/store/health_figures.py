"""Figures of health on record, for the page of metrics."""

from sqlalchemy import func, select

from sickbay.store import tables as t
from sickbay.store.writing import StoreSide


class HealthFigures(StoreSide):
    """Counts over the rows of health."""

    async def entered(self) -> dict[str, dict[str, int]]:
        """How often each node came into each standing.

        The first row of a standing is never pruned, so these counts never fall.
        """
        change = t.health_changes.c
        query = (
            select(change.node, change.standing, func.count())
            .where(change.at == change.standing_since)
            .group_by(change.node, change.standing)
        )
        out: dict[str, dict[str, int]] = {}
        async with self.store.read() as db:
            for node, standing, count in (await db.execute(query)).all():
                out.setdefault(node, {})[standing] = count
        return out
