"""The way from a repair to its pool's budget, and the permit history."""

from temporalio import activity

from sickbay.contracts.budget import (
    PermitAdopted,
    PermitAsk,
    PermitEvent,
    PermitReleased,
    Recheck,
    ReconcileRequest,
)
from sickbay.ports import Permits, Records


class PermitActivities:
    """Carries messages to the budget; the answers come back as messages."""

    def __init__(self, permits: Permits, *, records: Records) -> None:
        self._permits = permits
        self._records = records

    @activity.defn(name="ask_permit")
    async def ask_permit(self, pool: str, ask: PermitAsk) -> None:
        """Ask for a permit; asking again is the same ask."""
        await self._permits.ask(pool, ask)

    @activity.defn(name="adopt_permit")
    async def adopt_permit(self, pool: str, message: PermitAdopted) -> None:
        """Tell the budget of a node that is out already; telling again is the same."""
        await self._permits.adopt(pool, message)

    @activity.defn(name="release_permit")
    async def release_permit(self, pool: str, message: PermitReleased) -> None:
        """Give the permit, or the place in the queue, back."""
        await self._permits.release(pool, message)

    @activity.defn(name="record_permits")
    async def record_permits(self, events: list[PermitEvent]) -> None:
        """Write permit events to the store."""
        for event in events:
            await self._records.save_permit(
                event.pool,
                repair_id=event.repair_id,
                node=event.node,
                event=event.event,
                at=event.at,
                detail=event.detail,
            )

    @activity.defn(name="reconcile_permits")
    async def reconcile_permits(self, request: ReconcileRequest) -> list[str]:
        """Repair ids whose permit is free again: the repair ended and no hold of it stands."""
        running = await self._permits.running(request.permits)
        ended = [repair for repair, runs in running.items() if not runs]
        free = []
        for repair in ended:
            node = repair.rsplit(".", maxsplit=1)[0]
            standing = {hold.repair_id for hold in await self._records.holds(node)}
            if repair not in standing:
                free.append(repair)
        return free

    @activity.defn(name="recheck_health")
    async def recheck_health(self, asks: list[Recheck]) -> list[str]:
        """Repair ids of the asks whose node was seen well since; unknown is no recovery."""
        recovered = []
        for ask in asks:
            present = await self._records.present_health(ask.node)
            if present.recovered_since(ask.since):
                recovered.append(ask.repair_id)
        return recovered
