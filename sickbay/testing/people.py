"""People in memory: tickets with their lines, and pages delivered once per key."""

from dataclasses import dataclass, field

from sickbay.contracts.steps import Effect, Outcome, PageDraft, TicketDraft
from sickbay.testing.fleet import MemoryFleet


@dataclass
class MemoryTicket:
    """One ticket: its draft, its lines, and whether it is open."""

    id: str
    draft: TicketDraft
    lines: list[str] = field(default_factory=list)
    is_open: bool = True
    reopened: int = 0


class MemoryTickets:
    """The Tickets port. Verbs to script: `tickets.comment`, `tickets.close` with an `Effect`."""

    def __init__(self, fleet: MemoryFleet) -> None:
        self._fleet = fleet
        self.all: dict[str, MemoryTicket] = {}

    async def open(self, draft: TicketDraft) -> str:
        """The ticket of this key: found, reopened or created."""
        self._fleet.log.add("tickets.open", node=draft.node, detail=draft.key, changes=True)
        known = next((t for t in self.all.values() if t.draft.key == draft.key), None)
        if known is None:
            known = MemoryTicket(str(len(self.all) + 1), draft)
            self.all[known.id] = known
        elif not known.is_open:
            known.is_open, known.reopened = True, known.reopened + 1
            known.lines.append("reopened: the fault is back")
        return known.id

    async def comment(self, ticket: str, *, text: str) -> Effect:
        """Add a line; the newest line again is the same line."""
        return self._line("comment", ticket, text)

    async def close(self, ticket: str, *, text: str) -> Effect:
        """Close with a last line."""
        effect = self._line("close", ticket, text)
        if effect.outcome is Outcome.SUCCEEDED:
            self.all[ticket].is_open = False
        return effect

    def _line(self, verb: str, ticket: str, text: str) -> Effect:
        name = f"tickets.{verb}"
        self._fleet.log.add(name, detail=text, changes=True)
        scripted: Effect | None = self._fleet.log.scripted(name)
        effect = scripted or Effect(Outcome.SUCCEEDED)
        if ticket not in self.all:
            return Effect(Outcome.PERMANENT, f"no ticket {ticket!r}")
        lines = self.all[ticket].lines
        if effect.outcome is Outcome.SUCCEEDED and lines[-1:] != [text]:
            lines.append(text)
        return effect


class MemoryPager:
    """The Pager port. Verb to script: `pager.page` with an `Effect`."""

    def __init__(self, fleet: MemoryFleet) -> None:
        self._fleet = fleet
        self.delivered: dict[str, PageDraft] = {}

    async def page(self, draft: PageDraft) -> Effect:
        """Deliver once per key."""
        log = self._fleet.log
        log.add("pager.page", node=draft.node or "", detail=draft.key, changes=True)
        effect: Effect = log.scripted("pager.page") or Effect(Outcome.SUCCEEDED)
        if effect.outcome is Outcome.SUCCEEDED:
            self.delivered.setdefault(draft.key, draft)
        return effect

    def about(self, word: str) -> list[PageDraft]:
        """Delivered pages whose key or summary has this word, in order."""
        return [p for p in self.delivered.values() if word in p.key or word in p.summary]
