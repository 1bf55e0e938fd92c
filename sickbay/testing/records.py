"""The read model and the ledger in memory: the Records and Inventory ports."""

# ruff: noqa: ARG002 - the signatures are the port's, whatever memory needs of them

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sickbay.contracts.steps import (
    NodeContext,
    PageDraft,
    PresentHealth,
    RepairRecord,
    StepRecord,
    TicketDraft,
)
from sickbay.domain.gate import Hold, HoldKind
from sickbay.domain.health import UNKNOWN_HEALTH, Health, Standing
from sickbay.domain.neighbour import Bystander
from sickbay.domain.node import Node, Part, Treatment
from sickbay.domain.repair import Attempt
from sickbay.errors import UnknownNode, UnknownTicket

TRIED = frozenset({"done", "ambiguous", "failed", "replaced", "work_done"})


@dataclass(frozen=True)
class PermitRow:
    """One permit event."""

    pool: str
    repair_id: str
    node: str
    event: str
    detail: str
    at: datetime


@dataclass
class MemoryRecords:
    """Everything in plain lists and dicts, for a test to read."""

    on_record: dict[str, Node]
    repairs: dict[str, RepairRecord] = field(default_factory=dict)
    steps: list[StepRecord] = field(default_factory=list)
    every_hold: list[Hold] = field(default_factory=list)
    gate: list[tuple[str, bool, datetime]] = field(default_factory=list)
    returns: list[tuple[str, str, datetime]] = field(default_factory=list)
    answered: dict[str, datetime] = field(default_factory=dict)
    health: dict[str, PresentHealth] = field(default_factory=dict)
    permits: list[PermitRow] = field(default_factory=list)
    tickets: dict[str, tuple[TicketDraft, list[str], bool]] = field(default_factory=dict)
    pages: dict[str, PageDraft] = field(default_factory=dict)
    _permit_keys: set[tuple[str, str, str, datetime]] = field(default_factory=set)

    async def nodes(self, *, pool: str | None = None) -> tuple[Node, ...]:
        """The nodes of one pool, or of the fleet."""
        return tuple(n for n in self.on_record.values() if pool in {None, n.pool})

    async def node(self, node: str) -> Node | None:
        """One node, None when it is not on record."""
        return self.on_record.get(node)

    async def node_context(
        self, node: str, *, now: datetime, memory_s: float, probation_s: float
    ) -> NodeContext:
        """What is known when a repair starts. Raises `UnknownNode`."""
        known = self.on_record.get(node)
        if known is None:
            raise UnknownNode(f"no node {node!r} is on record", field="node")
        last = self.answered.get(node)
        probation = last is not None and now - last <= timedelta(seconds=probation_s)
        standing = {h.repair_id for h in await self.holds(node)}
        ordinals = [s.ordinal for s in self.steps if s.repair_id in standing]
        return NodeContext(
            node=known,
            last_return_at=last,
            attempts=self._attempts(known, since=now - timedelta(seconds=memory_s)),
            holds=await self.holds(node),
            in_probation=probation,
            last_step=max(ordinals, default=0),
        )

    def _attempts(self, node: Node, *, since: datetime) -> tuple[Attempt, ...]:
        present = {node.id, *(p.uuid for p in node.parts)}
        counts: Counter[tuple[str, str, Treatment]] = Counter(
            (s.part, s.category, s.treatment)
            for s in self.steps
            if s.node == node.id
            and s.treatment is not None
            and s.outcome in TRIED
            and s.ended_at > since
            and s.part in present
        )
        return tuple(Attempt(*key, count) for key, count in counts.items())

    async def save_repair(self, record: RepairRecord) -> None:
        """Write or replace a repair's row; an older row never replaces a newer."""
        old = self.repairs.get(record.repair_id)
        if old is None or old.updated_at <= record.updated_at:
            self.repairs[record.repair_id] = record

    async def save_step(self, record: StepRecord) -> None:
        """Write one step once per (repair id, ordinal)."""
        known = {(s.repair_id, s.ordinal) for s in self.steps}
        if (record.repair_id, record.ordinal) not in known:
            self.steps.append(record)

    async def place_hold(self, hold: Hold) -> None:
        """Record a hold; a standing one with this id stays as it is."""
        if all(h.id != hold.id or h.lifted_at for h in self.every_hold):
            self.every_hold.append(hold)

    async def lift_hold(self, hold_id: str, *, by: str, at: datetime) -> None:
        """Record that a hold ended."""
        self.every_hold = [
            replace(h, lifted_at=at, lifted_by=by) if h.id == hold_id and not h.lifted_at else h
            for h in self.every_hold
        ]

    async def holds(self, node: str) -> tuple[Hold, ...]:
        """The holds that stand on a node."""
        return tuple(h for h in self.every_hold if h.node == node and h.lifted_at is None)

    async def standing_holds(self) -> tuple[Hold, ...]:
        """Every hold that stands in the fleet."""
        return tuple(h for h in self.every_hold if h.lifted_at is None)

    async def open_repairs(self, node: str | None = None) -> tuple[RepairRecord, ...]:
        """Repairs that have not ended on record."""
        rows = self.repairs.values()
        return tuple(r for r in rows if r.ending is None and node in {None, r.node})

    async def open_tickets_of(self, repair_id: str) -> tuple[str, ...]:
        """Ids of the tickets of a repair that are still open."""
        known = self.tickets.items()
        return tuple(i for i, (d, _, is_open) in known if d.repair_id == repair_id and is_open)

    async def lose_repair(self, repair_id: str, *, at: datetime) -> None:
        """Record that how a repair ended is not known."""
        row = self.repairs[repair_id]
        if row.ending is None:
            self.repairs[repair_id] = replace(row, ending="lost", ended_at=at, updated_at=at)

    async def repair_on_record(self, repair_id: str) -> tuple[RepairRecord, int] | None:
        """A repair's row and its highest step, None when there is no row."""
        row = self.repairs.get(repair_id)
        ordinals = [s.ordinal for s in self.steps if s.repair_id == repair_id]
        return None if row is None else (row, max(ordinals, default=0))

    async def borrowed(self) -> tuple[Hold, ...]:
        """The holds on borrowed neighbours that stand."""
        standing = (h for h in self.every_hold if h.lifted_at is None)
        return tuple(h for h in standing if h.kind is HoldKind.BORROWED)

    async def bystanders(self, pool: str) -> tuple[Bystander, ...]:
        """Every node of a pool as it stands on record."""
        open_ = {node: is_open for node, is_open, _ in self.gate}
        sick = {r.node for r in self.repairs.values() if r.ending is None}
        found = []
        for node in await self.nodes(pool=pool):
            seen = await self.present_health(node.id)
            found.append(
                Bystander(
                    node=node.id,
                    group=node.group,
                    rack=node.rack,
                    node_class=node.node_class,
                    standing=seen.standing,
                    value=seen.health.value,
                    gate_open=open_.get(node.id, True),
                    in_repair=node.id in sick,
                    held=bool(await self.holds(node.id)),
                )
            )
        return tuple(found)

    async def gate_moved(self, node: str, *, open_: bool, at: datetime) -> None:
        """Record a change of the scheduler's bit."""
        self.gate.append((node, open_, at))

    async def returned(
        self, node: str, *, repair_id: str, at: datetime, proven_from: datetime | None = None
    ) -> None:
        """Record a proven return, once per repair."""
        if all(known != repair_id for _, known, _ in self.returns):
            self.returns.append((node, repair_id, at))
            self.answered[node] = proven_from or at

    async def replace_part(self, node: str, *, slot: str, part: Part, at: datetime) -> None:
        """Re-key a slot."""
        known = self.on_record[node]
        others = [p for p in known.parts if p.slot != slot]
        parts = tuple(sorted((*others, part), key=lambda p: p.slot))
        self.on_record[node] = replace(known, parts=parts)

    async def present_health(self, node: str) -> PresentHealth:
        """The newest health; unknown when there is none."""
        nothing = PresentHealth(UNKNOWN_HEALTH, Standing.UNKNOWN, at=None)
        return self.health.get(node, nothing)

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
        """Record a change of health or standing; memory has one scorer, so no epoch is older."""
        self.health[node] = PresentHealth(health, standing, at=at)

    async def save_permit(
        self, pool: str, *, repair_id: str, node: str, event: str, at: datetime, detail: str
    ) -> None:
        """Record a permit event once."""
        key = (pool, repair_id, event, at)
        if key not in self._permit_keys:
            self._permit_keys.add(key)
            self.permits.append(PermitRow(pool, repair_id, node, event, detail, at))

    async def save_ticket(self, draft: TicketDraft, *, at: datetime) -> str:
        """The ticket of this key, reopened when it was closed, or a new one."""
        known = next((i for i, (d, _, _) in self.tickets.items() if d.key == draft.key), None)
        number = known or str(len(self.tickets) + 1)
        lines = self.tickets[number][1] if known else []
        self.tickets[number] = (draft, lines, True)
        return number

    async def ticket_line(self, ticket: str, *, text: str, at: datetime, close: bool) -> None:
        """Add a line, and close when asked. Raises `UnknownTicket`."""
        if ticket not in self.tickets:
            raise UnknownTicket(f"no ticket {ticket!r}", field="ticket")
        draft, lines, is_open = self.tickets[ticket]
        self.tickets[ticket] = (draft, [*lines, text], is_open and not close)

    async def save_page(self, draft: PageDraft, *, at: datetime) -> bool:
        """Record a page, once per key; True when it is new."""
        new = draft.key not in self.pages
        self.pages.setdefault(draft.key, draft)
        return new
