"""The part of the store people are asked through: permits, tickets, pages, withheld acts."""

from datetime import datetime

from sqlalchemy import insert, select, update

from sickbay.contracts.steps import PageDraft, TicketDraft
from sickbay.errors import UnknownTicket
from sickbay.store import tables as t
from sickbay.store.writing import StoreSide, insert_once


class PeopleRecords(StoreSide):
    """Permit events, local tickets, pages and would-have rows."""

    async def save_permit(
        self, pool: str, *, repair_id: str, node: str, event: str, at: datetime, detail: str
    ) -> None:
        """Record a permit event once."""
        row = {
            "pool": pool,
            "repair_id": repair_id,
            "node": node,
            "event": event,
            "at": at,
            "detail": detail,
        }
        key = ("pool", "repair_id", "event", "at")
        async with self.store.write(turn=f"permits {pool}") as db:
            await insert_once(db, table=t.permits, row=row, key=key)

    async def save_ticket(self, draft: TicketDraft, *, at: datetime) -> str:
        """Find the ticket by its key (reopened when closed) or create it; its id."""
        here = t.tickets.c.key == draft.key
        async with self.store.write(turn=f"ticket {draft.key}") as db:
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
                    .values(
                        closed_at=None,
                        reopened=row.reopened + 1,
                        repair_id=draft.repair_id,
                        body=draft.body,
                        evidence=list(draft.evidence),
                    )
                )
                line = "reopened: the fault is back"
                await db.execute(insert(t.ticket_lines).values(ticket=row.id, at=at, text=line))
            return str(row.id)

    async def ticket_line(self, ticket: str, *, text: str, at: datetime, close: bool) -> None:
        """Add a line to a ticket, and close it when asked. Raises `UnknownTicket`.

        A line that repeats the newest one is the same line, sent again by a retry.
        """
        if not (ticket.isascii() and ticket.isdigit()):
            raise UnknownTicket(f"no ticket {ticket!r}", field="ticket")
        number = int(ticket)
        here = t.tickets.c.id == number
        lines = select(t.ticket_lines.c.text).where(t.ticket_lines.c.ticket == number)
        async with self.store.write(turn=f"ticket {ticket}") as db:
            row = (await db.execute(select(t.tickets.c.closed_at).where(here))).first()
            if row is None:
                raise UnknownTicket(f"no ticket {ticket!r}", field="ticket")
            newest = lines.order_by(t.ticket_lines.c.id.desc()).limit(1)
            if (await db.execute(newest)).scalar() != text:
                await db.execute(insert(t.ticket_lines).values(ticket=number, at=at, text=text))
            if close and row.closed_at is None:
                await db.execute(update(t.tickets).where(here).values(closed_at=at))

    async def save_page(self, draft: PageDraft, *, at: datetime) -> bool:
        """Record a page, once per key; True when it is new."""
        here = t.pages.c.key == draft.key
        async with self.store.write(turn=f"page {draft.key}") as db:
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
        async with self.store.write(turn=None) as db:
            await db.execute(
                insert(t.would_have).values(
                    node=node, pool=pool, action=action, detail=detail, why=why, at=at
                )
            )
