"""The fleet's sweep: mend what a restore left, remove what is old."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Protocol

from temporalio import activity

from activities.clock import Clock
from sickbay.contracts.steps import PageDraft
from sickbay.contracts.sweep import Pruned, Retention
from sickbay.domain.recovery import RemedyKind
from sickbay.ports import Pager
from sickbay.recovery import Difference

HEARTBEAT_S = 10.0
_SUMMARY = {
    RemedyKind.REHOLD: "someone opened the gate of {node} without a proof: it is closed again",
    RemedyKind.BOOK_HOLD: "{node}: our mark stood in the scheduler without a hold on record",
    RemedyKind.START: "{node}: its repair was lost and goes on",
}


class Compares(Protocol):
    """Compares store, scheduler and Temporal, and mends."""

    async def look(self) -> tuple[Difference, ...]:
        """Every difference there is now."""

    async def mend(self, differences: Sequence[Difference]) -> tuple[Difference, ...]:
        """Carry out each remedy."""


class Prunes(Protocol):
    """Removes what nobody needs any more."""

    async def prune(self, retention: Retention, *, now: datetime) -> Pruned:
        """Remove what is older than the retention says."""


class SweepActivities:
    """One sweep's two halves."""

    def __init__(
        self, recovery: Compares, *, retention: Prunes, pager: Pager, clock: Clock
    ) -> None:
        self._recovery = recovery
        self._retention = retention
        self._pager = pager
        self._clock = clock

    @activity.defn(name="recover_holds")
    async def recover_holds(self) -> int:
        """Mend every difference, page once for each that people must know of; how many."""
        async with _beating():
            rows = await self._recovery.mend(await self._recovery.look())
            for row in rows:
                activity.logger.warning("%s: %s; %s", row.remedy.node, row.remedy.why, row.done)
                await self._page(row)
        return len(rows)

    @activity.defn(name="prune_records")
    async def prune_records(self, retention: Retention) -> Pruned:
        """Remove what is older than the retention says."""
        async with _beating():
            return await self._retention.prune(retention, now=self._clock())

    async def _page(self, row: Difference) -> None:
        remedy = row.remedy
        summary = _SUMMARY.get(remedy.kind)
        if summary is None or remedy.hold is None:
            return
        await self._pager.page(
            PageDraft(
                key=f"recovery/{remedy.kind}/{remedy.hold.id}",
                pool=row.pool,
                node=remedy.node,
                summary=summary.format(node=remedy.node),
                detail=f"{remedy.why}; {row.done}",
                urgent=remedy.kind is RemedyKind.REHOLD,
            )
        )


@contextlib.asynccontextmanager
async def _beating() -> AsyncIterator[None]:
    """Say that this attempt lives while a long comparison goes on."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_S)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
