"""The simulated technician: walks to the rack after a while, does what the ticket says, reports it.

`python -m workers.technician --config FILE`. It has hands in the simulated fleet and otherwise only
what a real technician has: the open tickets and the messages `part_replaced` and `work_done`.
"""

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field

from sickbay.client import TemporalRepairs
from sickbay.connection import open_client
from sickbay.contracts.repair import PartReplaced, Work, WorkDone
from sickbay.domain.node import Category
from sickbay.domain.repair import Stage
from sickbay.errors import Refused, Unreachable
from sickbay.settings import Settings
from sickbay.simulator.client import SimulatorClient
from sickbay.store.engine import open_store
from sickbay.store.queries import OpenTicket, open_tickets
from sickbay.store.records import StoreRecords
from workers import wiring
from workers.process import arguments, run

log = logging.getLogger(__name__)

NAME = "simulated-technician"
POLL_S = 0.5
ALL_NICS = "nics"
# Spread of the time to the rack (log-normal sigma of a swap with a spare on site).
SIGMA = 0.5


@dataclass
class Technician:
    """Works on every open ticket once its time has come."""

    settings: Settings
    records: StoreRecords
    repairs: TemporalRepairs
    fleet: SimulatorClient
    due: dict[str, float] = field(default_factory=dict)
    cleaned: set[str] = field(default_factory=set)
    reported: dict[str, tuple[str, int]] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(11))  # noqa: S311

    async def look(self) -> None:
        """One look at the tickets."""
        tickets = await open_tickets(self.records.store)
        for ticket in tickets:
            due = self.due.setdefault(ticket.id, time.monotonic() + self._walk_s())
            if time.monotonic() >= due:
                self.due[ticket.id] = time.monotonic() + self._walk_s()
                await self._work(ticket)

    def _walk_s(self) -> float:
        hours = self.settings.simulator.technician_h * self.rng.lognormvariate(0.0, SIGMA)
        return hours * 3600.0 / self.settings.time_scale

    async def _work(self, ticket: OpenTicket) -> None:
        try:
            # Hands off a node that is being proven: its ticket stays open until the proof is over.
            repair = await self.repairs.status(ticket.node)
            if repair.stage != Stage.SWAP or repair.slot not in {None, ticket.slot}:
                return
            if ticket.category == Category.THERMAL and ticket.id not in self.cleaned:
                await self._clean(ticket)
            elif ticket.category == Category.FABRIC and not ticket.part_serial:
                await self._reseat(ticket)
            else:
                await self._replace(ticket)
        except (Refused, Unreachable) as error:
            log.warning("ticket %s of %s: %s", ticket.id, ticket.node, error)

    async def _clean(self, ticket: OpenTicket) -> None:
        """Dust is the usual cause of heat: clean first, replace when it did not help."""
        await self.fleet.work(ticket.node, slot=ticket.slot, work=Work.CLEANED)
        self.cleaned.add(ticket.id)
        message = WorkDone(work=Work.CLEANED, by=NAME, slot=ticket.slot)
        await self.repairs.send(ticket.node, "work_done", message)
        log.info("cleaned %s of %s", ticket.slot, ticket.node)

    async def _reseat(self, ticket: OpenTicket) -> None:
        """A slow path with no part named: every NIC of the node is taken out and put in again."""
        await self.fleet.work(ticket.node, slot=ALL_NICS, work=Work.RESEATED)
        message = WorkDone(work=Work.RESEATED, by=NAME, note="all NICs and their cables")
        await self.repairs.send(ticket.node, "work_done", message)
        log.info("reseated the NICs of %s", ticket.node)

    async def _replace(self, ticket: OpenTicket) -> None:
        """Replace the part, unless the slot holds a new one that was not reported yet.

        A part that was reported is left alone until the ticket says that the machine knows better.
        """
        serial = await self._serial_in(ticket.node, ticket.slot)
        told, lines = self.reported.get(ticket.id, ("", 0))
        if serial == told and len(ticket.lines) == lines:
            return
        if serial in {ticket.part_serial, told}:
            serial = (await self.fleet.replace(ticket.node, slot=ticket.slot)).serial
        message = PartReplaced(slot=ticket.slot, serial=serial, by=NAME)
        await self.repairs.send(ticket.node, "part_replaced", message)
        self.reported[ticket.id] = (serial, len(ticket.lines))
        log.info("replaced %s of %s by %s", ticket.slot, ticket.node, serial)

    async def _serial_in(self, node: str, slot: str) -> str:
        row = next(n for n in await self.fleet.inventory() if n.node == node)
        return next(p.serial for p in row.parts if p.slot == slot)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Work until `stop`."""
    client = await open_client(settings)
    out = wiring.outside(settings)
    store = await open_store(settings.store_url, password=settings.store_password())
    repairs = TemporalRepairs(client, policy_of=settings.repair_policy)
    fleet = SimulatorClient(out.base_url, client=out.http)
    technician = Technician(settings, StoreRecords(store), repairs, fleet)
    try:
        while not stop.is_set():
            await technician.look()
            try:
                await asyncio.wait_for(stop.wait(), timeout=POLL_S)
            except TimeoutError:
                continue
    finally:
        await out.http.aclose()
        await store.close()


def main() -> None:
    """Entry of the process."""
    run(serve, config=arguments("the simulated technician").parse_args().config)


if __name__ == "__main__":
    main()
