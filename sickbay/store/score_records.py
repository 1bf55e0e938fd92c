"""The part of the store the scorer lives by: health, standings, fencing epochs, events seen."""

import hashlib
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sickbay.contracts.steps import PresentHealth
from sickbay.domain.health import UNKNOWN_HEALTH, Health, Standing
from sickbay.errors import Superseded
from sickbay.store import tables as t
from sickbay.store.rows import health_of, standing_of
from sickbay.store.writing import StoreSide, insert_once


class ScoreRecords(StoreSide):
    """Health changes, epochs and kernel records."""

    async def present_health(self, node: str) -> PresentHealth:
        """The newest health on record; unknown when there is none."""
        async with self.store.read() as db:
            row = (await db.execute(_newest_of(node))).first()
        if row is None:
            return PresentHealth(UNKNOWN_HEALTH, Standing.UNKNOWN, at=None)
        return PresentHealth(health_of(row), standing_of(row), at=row.at)

    async def save_health(
        self,
        node: str,
        *,
        health: Health,
        standing: Standing,
        at: datetime,
        rules: str,
        epoch: int | None = None,
    ) -> None:
        """Record a change of health or standing, with the rule set's version and digest.

        The same answer of the same moment again is no row.

        Raises:
            Superseded: the node's pool has a newer fencing epoch than `epoch`.
        """
        row = {
            **asdict(health),
            "worst": str(health.worst) if health.worst else None,
            "node": node,
            "at": at,
            "standing": str(standing),
            "rules": rules,
        }
        async with self.store.write(turn=f"health {node}") as db:
            if epoch is not None:
                await fence(db, node, epoch=epoch)
            last = (await db.execute(_newest_of(node))).mappings().first()
            if last is not None and all(last[name] == value for name, value in row.items()):
                return
            same = last is not None and last["standing"] == str(standing)
            since = last["standing_since"] if last is not None and same else at
            await db.execute(insert(t.health_changes).values(standing_since=since, **row))

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
        async with self.store.write(turn=f"epoch {pool}") as db:
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

    async def seen_event(self, identity: tuple[str, int, str], *, at: datetime) -> bool:
        """Book a kernel record by (boot id, monotonic µs, message).

        True the first time, False when it is on record already.
        """
        boot_id, monotonic_us, message = identity
        row = {
            "boot_id": boot_id,
            "monotonic_us": monotonic_us,
            "message_sha256": hashlib.sha256(message.encode()).hexdigest(),
            "seen_at": at,
        }
        key = ("boot_id", "monotonic_us", "message_sha256")
        async with self.store.write(turn=None) as db:
            return await insert_once(db, table=t.kernel_events, row=row, key=key)


async def fence(db: AsyncConnection, node: str, *, epoch: int) -> None:
    """Refuse an older epoch; the row stays as it is until this transaction ends.

    `FOR SHARE` makes a scorer that takes over wait for the writes under way, and makes every later
    one see it. SQLite has no such clause and needs none: its writer is alone.

    Raises:
        Superseded: the node's pool has a newer epoch.
    """
    newest = (
        select(t.epochs.c.epoch)
        .join(t.nodes, t.nodes.c.pool == t.epochs.c.pool)
        .where(t.nodes.c.id == node)
        .with_for_update(read=True, of=t.epochs)
    )
    found = (await db.execute(newest)).scalar()
    if found is not None and found > epoch:
        raise Superseded(f"{node}: epoch {epoch} of its scorer is over, {found} took its place")


def _newest_of(node: str) -> Select[Any]:
    return (
        select(t.health_changes)
        .where(t.health_changes.c.node == node)
        .order_by(t.health_changes.c.id.desc())
        .limit(1)
    )
