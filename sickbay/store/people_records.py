"""The part of the store people are asked through: permits, tickets, pages, withheld acts."""

from datetime import datetime

from sqlalchemy import and_, insert, select, update

from sickbay.contracts.steps import PageDraft, TicketDraft
from sickbay.errors import UnknownTicket
from sickbay.store import tables as t
from sickbay.store.engine import Store


class PeopleRecords:
    """Permit events, local tickets, pages and would-have rows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def save_permit(
        self, pool: str, *, repair_id: str, node: str, event: str, at: datetime, detail: str
    ) -> None:
        """Record a permit event once."""
        key = and_(
            t.permits.c.pool == pool,
            t.permits.c.repair_id == repair_id,
            t.permits.c.event == event,
            t.permits.c.at == at,
        )
        async with self._store.write() as db:
            if (await db.execute(select(t.permits.c.id).where(key))).first() is None:
                await db.execute(
                    insert(t.permits).values(
                        pool=pool, repair_id=repair_id, node=node, event=event, at=at, detail=detail
                    )
                )

    async def save_ticket(self, draft: TicketDraft, *, at: datetime) -> str:
        """Find the ticket by its key (reopened when closed) or create it; its id."""
        here = t.tickets.c.key == draft.key
        async with self._store.write() as db:
            row = (await db.execute(select(t.tickets).where(here))).first()
            if row is None:
                values = {**vars(draft), "evidence": list(draft.evidence)}
                done = await db.execute(
                    insert(t.tickets).values(**values, opened_at=at, reopened=0)
                )
                (number,) = done.inserted_primary_key or (None,)
                return str(number)
            if row.closed_at is not None:
                await db.execute(
                    update(t.tickets)
                    .where(here)
                    .values(closed_at=None, reopened=row.reopened + 1, repair_id=draft.repair_id)
                )
                line = "reopened: the fault is back"
                await db.execute(insert(t.ticket_lines).values(ticket=row.id, at=at, text=line))
            return str(row.id)

    async def ticket_line(self, ticket: str, *, text: str, at: datetime, close: bool) -> None:
        """Add a line to a ticket, and close it when asked. Raises `UnknownTicket`."""
        if not ticket.isdigit():
            raise UnknownTicket(f"no ticket {ticket!r}", field="ticket")
        number = int(ticket)
        here = t.tickets.c.id == number
        async with self._store.write() as db:
            if (await db.execute(select(t.tickets.c.id).where(here))).first() is None:
                raise UnknownTicket(f"no ticket {ticket!r}", field="ticket")
            await db.execute(insert(t.ticket_lines).values(ticket=number, at=at, text=text))
            if close:
                await db.execute(update(t.tickets).where(here).values(closed_at=at))

    async def save_page(self, draft: PageDraft, *, at: datetime) -> bool:
        """Record a page, once per key; True when it is new."""
        here = t.pages.c.key == draft.key
        async with self._store.write() as db:
            row = (await db.execute(select(t.pages.c.repeats).where(here))).first()
            if row is not None:
                await db.execute(
                    update(t.pages).where(here).values(last_at=at, repeats=row.repeats + 1)
                )
                return False
            values = {**vars(draft), "labels": dict(draft.labels)}
            await db.execute(insert(t.pages).values(**values, first_at=at, last_at=at, repeats=0))
            return True

    async def save_would_have(
        self, *, node: str, pool: str, action: str, detail: str, why: str, at: datetime
    ) -> None:
        """Record an act that a safety switch withheld."""
        async with self._store.write() as db:
            await db.execute(
                insert(t.would_have).values(
                    node=node, pool=pool, action=action, detail=detail, why=why, at=at
                )
            )
