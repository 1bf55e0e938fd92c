"""What was pushed, until the scorer has read it. Each item is kept once by its sender's id."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import and_, delete, insert, select, update

from sickbay.contracts.pushes import PushedEvent, PushedSignal
from sickbay.store import source_tables as t
from sickbay.store.writing import StoreSide, insert_once

TURN = "pushes"


class StorePushes(StoreSide):
    """The inbox of pushes on an open store."""

    async def add_events(self, events: Sequence[PushedEvent], *, at: datetime) -> list[bool]:
        """Keep events; for each, whether it was new."""
        async with self.store.write(turn=TURN) as db:
            return [
                await insert_once(
                    db,
                    table=t.pushed_events,
                    row={**asdict(event), "received_at": at},
                    key=("id",),
                )
                for event in events
            ]

    async def add_signals(self, signals: Sequence[PushedSignal], *, at: datetime) -> list[bool]:
        """Keep the newest reading of each signal; for each, whether it was new and the newest."""
        kept: list[bool] = []
        signal = t.pushed_signals.c
        async with self.store.write(turn=TURN) as db:
            for given in signals:
                here = and_(
                    signal.node == given.node,
                    signal.part == given.part,
                    signal.signal == given.signal,
                )
                row = {**asdict(given), "labels": dict(given.labels), "received_at": at}
                old = (await db.execute(select(signal.id, signal.at).where(here))).first()
                newer = old is None or (old.id != given.id and given.at > old.at)
                if old is None:
                    await db.execute(insert(t.pushed_signals).values(**row))
                elif newer:
                    await db.execute(update(t.pushed_signals).where(here).values(**row))
                kept.append(newer)
        return kept

    async def events_since(
        self, nodes: Collection[str], *, received_after: datetime
    ) -> list[PushedEvent]:
        """The events of these nodes received after a moment, oldest first."""
        event = t.pushed_events.c
        query = (
            select(t.pushed_events)
            .where(event.received_at > received_after)
            .order_by(event.at, event.monotonic_us)
        )
        wanted = set(nodes)
        async with self.store.read() as db:
            return [
                PushedEvent(r.id, r.node, r.boot_id, r.monotonic_us, r.message, r.at)
                for r in (await db.execute(query)).all()
                if r.node in wanted
            ]

    async def signals_of(
        self, nodes: Collection[str], *, taken_after: datetime
    ) -> list[PushedSignal]:
        """The readings of these nodes that were taken after a moment."""
        query = select(t.pushed_signals).where(t.pushed_signals.c.at > taken_after)
        wanted = set(nodes)
        async with self.store.read() as db:
            return [
                PushedSignal(r.id, r.node, r.part, r.signal, r.value, r.at, r.labels)
                for r in (await db.execute(query)).all()
                if r.node in wanted
            ]

    async def forget(self, *, received_before: datetime) -> int:
        """Remove what was received before a moment; how many rows that were."""
        gone = 0
        async with self.store.write(turn=TURN) as db:
            for table in (t.pushed_events, t.pushed_signals):
                done = await db.execute(delete(table).where(table.c.received_at < received_before))
                gone += done.rowcount
        return gone
