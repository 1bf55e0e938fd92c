"""The store behind the Operations, Leases and Rollouts ports: acts out of band, durable."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sickbay.contracts.operations import Operation, Phase
from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain import firmware
from sickbay.domain.firmware import Reservation, Rollout, RolloutKey, RolloutStage
from sickbay.domain.node import Treatment
from sickbay.domain.radius import Lease, Limits, Load, refusal
from sickbay.errors import Refused, Superseded, UsageError
from sickbay.store import tables as t
from sickbay.store.writing import StoreSide, insert_once

SICKBAY = "sickbay"


class StoreOperations(StoreSide):
    """The journal of out-of-band acts; only the owner on record may advance one."""

    async def lookup(self, operation_id: str) -> Operation | None:
        """The operation, None when it never began."""
        async with self.store.read() as db:
            row = (await db.execute(_operation(operation_id))).first()
        return None if row is None else _operation_of(row)

    async def take(self, operation: Operation) -> Operation:
        """Begin it, or take over the one on record; a finished one stays as it is."""
        row = {
            "id": operation.id,
            "node": operation.node,
            "treatment": str(operation.treatment),
            "owner": operation.owner,
            "phase": str(operation.phase),
            "phase_at": operation.started_at,
            "witness": operation.witness,
            "memo": dict(operation.memo),
            "started_at": operation.started_at,
            "detail": "",
        }
        open_ = and_(t.operations.c.id == operation.id, t.operations.c.outcome.is_(None))
        async with self.store.write() as db:
            if not await insert_once(db, table=t.operations, row=row, key=("id",)):
                await db.execute(update(t.operations).where(open_).values(owner=operation.owner))
            return _operation_of((await db.execute(_operation(operation.id))).one())

    async def advance(
        self,
        operation: Operation,
        *,
        phase: Phase,
        at: datetime,
        memo: Mapping[str, str] | None = None,
    ) -> Operation:
        """Write the next phase. Raises `Superseded` when another attempt owns it now."""
        added = {**operation.memo, **(memo or {})}
        await self._write(operation, phase=str(phase), phase_at=at, memo=added)
        return replace(operation, phase=phase, phase_at=at, memo=added)

    async def finish(self, operation: Operation, *, effect: Effect, at: datetime) -> Operation:
        """Record the outcome. Raises `Superseded` when another attempt owns it now."""
        await self._write(
            operation,
            phase=str(Phase.FINISHED),
            phase_at=at,
            outcome=str(effect.outcome),
            detail=effect.detail,
            finished_at=at,
        )
        return replace(operation, phase=Phase.FINISHED, effect=effect, finished_at=at)

    async def _write(self, operation: Operation, **values: object) -> None:
        mine = and_(
            t.operations.c.id == operation.id,
            t.operations.c.owner == operation.owner,
            t.operations.c.phase == str(operation.phase),
        )
        async with self.store.write() as db:
            done = await db.execute(update(t.operations).where(mine).values(**values))
            if done.rowcount != 1:
                raise Superseded(f"another attempt of {operation.id} acts now")


class StoreLeases(StoreSide):
    """Loads that run now; the rule of `domain.radius` decides inside one transaction."""

    async def take(self, ask: Lease, *, limits: Limits, now: datetime) -> str:
        """Take or renew a lease; why it must wait, empty when it was taken."""
        async with self.store.write() as db:
            if self.store.engine.dialect.name == "postgresql":
                # SQLite's writer is alone; elsewhere two could count the same free place.
                await db.exec_driver_sql("lock table leases in exclusive mode")
            await db.execute(delete(t.leases).where(t.leases.c.until_at <= now))
            held = [_lease_of(row) for row in (await db.execute(select(t.leases))).all()]
            why = refusal(ask, held=held, limits=limits, now=now)
            if why:
                return why
            await db.execute(delete(t.leases).where(t.leases.c.holder == ask.holder))
            await db.execute(
                insert(t.leases).values(
                    holder=ask.holder,
                    load=str(ask.load),
                    node=ask.node,
                    rack=ask.rack,
                    power_unit=ask.power_unit,
                    until_at=ask.until,
                )
            )
        return ""

    async def give_back(self, holder: str) -> None:
        """End the holder's lease. Idempotent."""
        async with self.store.write() as db:
            await db.execute(delete(t.leases).where(t.leases.c.holder == holder))


class StoreRollouts(StoreSide):
    """Firmware on its way; the rule of `domain.firmware` decides inside one transaction."""

    async def reserve(self, key: RolloutKey, *, node: str, at: datetime) -> Reservation:
        """Ask for the node's turn; the same node again is the same turn."""
        async with self.store.write() as db:
            await self._alone(db)
            old = await _rollout(db, key)
            new, answer = firmware.reserve(old or Rollout(key), node=node)
            if new != old and answer.granted:
                await _save(db, new, at=at, by=SICKBAY)
        return answer

    async def settle(self, node: str, *, proven: bool | None, why: str, at: datetime) -> None:
        """A node in flight returned proven (True), failed (False), or tells nothing (None)."""

        def settled(rollout: Rollout) -> Rollout:
            if proven is None:
                return firmware.withdrawn(rollout, node=node)
            if proven:
                return firmware.proven(rollout, node=node)
            return firmware.failed(rollout, node=node, why=why)

        # Most nodes carry nothing for others: they need no write lock to say so.
        if any(node in rollout.in_flight for rollout in await self.all()):
            await self._each(settled, at=at)

    async def all(self) -> tuple[Rollout, ...]:
        """Every rollout on record, by class, component and version."""
        async with self.store.read() as db:
            rows = (await db.execute(select(t.firmware_rollouts))).all()
        return tuple(sorted((_rollout_of(r) for r in rows), key=lambda r: _words(r.key)))

    async def unfreeze(self, key: RolloutKey, *, by: str, reason: str, at: datetime) -> Rollout:
        """Let a frozen version go on, canary first.

        Raises:
            UsageError: no such rollout, or nobody is named. Refused: it is not frozen.
        """
        if not by or not reason:
            raise UsageError(
                "say who unfreezes it and why", field="by", remedy="--by NAME --reason TEXT"
            )
        async with self.store.write() as db:
            await self._alone(db)
            old = await _rollout(db, key)
            said = "/".join(_words(key))
            if old is None:
                raise UsageError(
                    f"no firmware {said} was ever flashed",
                    field="firmware",
                    remedy="`sickbay firmware` lists them",
                )
            if old.stage is not RolloutStage.FROZEN:
                raise Refused(f"{said} is {old.stage}, not frozen")
            new = firmware.unfrozen(old)
            await _save(db, new, at=at, by=f"{by}: {reason}"[:128])
        return new

    async def _each(self, change: Callable[[Rollout], Rollout], *, at: datetime) -> None:
        async with self.store.write() as db:
            await self._alone(db)
            for row in (await db.execute(select(t.firmware_rollouts))).all():
                old = _rollout_of(row)
                new = change(old)
                if new != old:
                    await _save(db, new, at=at, by=SICKBAY)

    async def _alone(self, db: AsyncConnection) -> None:
        if self.store.engine.dialect.name == "postgresql":
            await db.exec_driver_sql("lock table firmware_rollouts in exclusive mode")


def _operation(operation_id: str) -> Any:
    return select(t.operations).where(t.operations.c.id == operation_id)


def _operation_of(row: Any) -> Operation:
    return Operation(
        id=row.id,
        node=row.node,
        treatment=Treatment(row.treatment),
        owner=row.owner,
        started_at=row.started_at,
        phase=Phase(row.phase),
        phase_at=row.phase_at,
        witness=row.witness,
        memo=dict(row.memo),
        effect=Effect(Outcome(row.outcome), row.detail) if row.outcome else None,
        finished_at=row.finished_at,
    )


def _lease_of(row: Any) -> Lease:
    return Lease(
        holder=row.holder,
        load=Load(row.load),
        node=row.node,
        rack=row.rack,
        power_unit=row.power_unit,
        until=row.until_at,
    )


def _words(key: RolloutKey) -> tuple[str, str, str]:
    return (key.node_class, key.component, key.version)


def _here(key: RolloutKey) -> Any:
    c = t.firmware_rollouts.c
    return and_(
        c.node_class == key.node_class,
        c.component == key.component,
        c.version == key.version,
    )


async def _rollout(db: AsyncConnection, key: RolloutKey) -> Rollout | None:
    row = (await db.execute(select(t.firmware_rollouts).where(_here(key)))).first()
    return None if row is None else _rollout_of(row)


def _rollout_of(row: Any) -> Rollout:
    return Rollout(
        key=RolloutKey(row.node_class, row.component, row.version),
        stage=RolloutStage(row.stage),
        canary=row.canary,
        in_flight=tuple(row.in_flight),
        why=row.why,
    )


async def _save(db: AsyncConnection, rollout: Rollout, *, at: datetime, by: str) -> None:
    await db.execute(delete(t.firmware_rollouts).where(_here(rollout.key)))
    await db.execute(
        insert(t.firmware_rollouts).values(
            **vars(rollout.key),
            stage=str(rollout.stage),
            canary=rollout.canary,
            in_flight=list(rollout.in_flight),
            why=rollout.why,
            changed_at=at,
            changed_by=by,
        )
    )
