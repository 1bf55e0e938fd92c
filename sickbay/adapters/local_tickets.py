"""Tickets kept in the store: what a fleet without a tracker uses, visible by `sickbay tickets`."""

from collections.abc import Callable
from datetime import datetime

from sickbay.contracts.steps import Effect, Outcome, TicketDraft
from sickbay.errors import UnknownTicket
from sickbay.ports import Records


class LocalTickets:
    """Implements the Tickets port on the Records port."""

    def __init__(self, records: Records, *, clock: Callable[[], datetime]) -> None:
        self._records = records
        self._clock = clock

    async def open(self, draft: TicketDraft) -> str:
        """The id of the one ticket with this key."""
        return await self._records.save_ticket(draft, at=self._clock())

    async def comment(self, ticket: str, *, text: str) -> Effect:
        """Add a line."""
        return await self._line(ticket, text, close=False)

    async def close(self, ticket: str, *, text: str) -> Effect:
        """Close with a last line."""
        return await self._line(ticket, text, close=True)

    async def _line(self, ticket: str, text: str, *, close: bool) -> Effect:
        try:
            await self._records.ticket_line(ticket, text=text, at=self._clock(), close=close)
        except UnknownTicket as error:
            return Effect(Outcome.PERMANENT, error.message)
        return Effect(Outcome.SUCCEEDED)
