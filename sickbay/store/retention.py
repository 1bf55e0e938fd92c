"""Removing what nobody needs any more: old kernel records, withheld acts, health rows, evidence.

What reports are computed from stays: repairs, steps, holds, gate intervals, returns, and every row
at which a node's standing changed. So the figures of a fleet are the same before and after.
"""

from datetime import datetime, timedelta

from sqlalchemy import delete, func, select

from sickbay.contracts.sweep import Pruned, Retention
from sickbay.store import tables as t
from sickbay.store.engine import Store
from sickbay.store.evidence import EvidenceFiles

TURN = "retention"
_CHUNK = 500


class StoreRetention:
    """Prunes one store and its evidence."""

    def __init__(self, store: Store, *, evidence: EvidenceFiles) -> None:
        self._store = store
        self._evidence = evidence

    async def prune(self, retention: Retention, *, now: datetime) -> Pruned:
        """Remove what is older than the retention says; each kind by itself."""

        def until(kept_s: float | None) -> datetime | None:
            return None if kept_s is None else now - timedelta(seconds=kept_s)

        return Pruned(
            kernel_events=await self._kernel_events(until(retention.kernel_events_s)),
            would_have=await self._would_have(until(retention.would_have_s)),
            health_changes=await self._health_changes(until(retention.health_changes_s)),
            evidence=await self._old_evidence(until(retention.evidence_s)),
        )

    async def _kernel_events(self, until: datetime | None) -> int:
        if until is None:
            return 0
        async with self._store.write(turn=TURN) as db:
            gone = await db.execute(
                delete(t.kernel_events).where(t.kernel_events.c.seen_at < until)
            )
            return gone.rowcount

    async def _would_have(self, until: datetime | None) -> int:
        if until is None:
            return 0
        async with self._store.write(turn=TURN) as db:
            gone = await db.execute(delete(t.would_have).where(t.would_have.c.at < until))
            return gone.rowcount

    async def _health_changes(self, until: datetime | None) -> int:
        """Rows inside one standing go; its first row, and a node's newest one, stay."""
        if until is None:
            return 0
        change = t.health_changes.c
        newest = select(func.max(change.id)).group_by(change.node)
        async with self._store.write(turn=TURN) as db:
            gone = await db.execute(
                delete(t.health_changes).where(
                    change.at < until, change.at > change.standing_since, change.id.not_in(newest)
                )
            )
            return gone.rowcount

    async def _old_evidence(self, until: datetime | None) -> int:
        """The file goes first: a row without a file is found again, a file without a row is not."""
        if until is None:
            return 0
        needed = await self._needed()
        rows = t.evidence.c
        async with self._store.read() as db:
            old = select(rows.sha256).where(rows.first_at < until).order_by(rows.first_at)
            digests = [d for d in (await db.execute(old)).scalars() if d not in needed]
        gone = [d for d in digests if await self._evidence.remove(d, older_than=until)]
        for start in range(0, len(gone), _CHUNK):
            async with self._store.write(turn=TURN) as db:
                chunk = gone[start : start + _CHUNK]
                await db.execute(delete(t.evidence).where(rows.sha256.in_(chunk)))
        return len(gone)

    async def _needed(self) -> set[str]:
        """Digests that a running repair or an open ticket names."""
        running = (
            select(t.steps.c.evidence)
            .join(t.repairs, t.repairs.c.repair_id == t.steps.c.repair_id)
            .where(t.repairs.c.ending.is_(None))
        )
        asked = select(t.tickets.c.evidence).where(t.tickets.c.closed_at.is_(None))
        async with self._store.read() as db:
            lists = [
                *(await db.execute(running)).scalars(),
                *(await db.execute(asked)).scalars(),
            ]
        return {digest for digests in lists for digest in digests}
