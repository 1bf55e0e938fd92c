"""A budget's state opened for a batch of messages or one turn: each costs the same in a storm.

`BudgetState` is what is kept; a `Book` is its working copy with indexes. Whatever a message makes
necessary is appended to `decisions`, and what people may read about it to `notes`.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from sickbay.domain.budget_rows import Weight
from sickbay.domain.budget_state import (
    Ask,
    BudgetPolicy,
    BudgetState,
    Decision,
    DecisionKind,
    Permit,
    Refusal,
    Spent,
    Withheld,
)

LARGEST_STATE = 1_000_000
"""Bytes the carried state may have; the server refuses payloads of twice that."""

GROWTH_BYTES = 88
"""What a waiting node may still grow by: a permit and a closure for its ask, or a mark."""


@dataclass(frozen=True)
class Note:
    """One line of the permit history."""

    at: datetime
    event: str
    repair_id: str
    node: str
    detail: str = ""


class Book:
    """The working copy. Messages change it at once; `state` closes it."""

    def __init__(self, state: BudgetState, *, policy: BudgetPolicy | None = None) -> None:
        self.kept = state
        self.permits = {p.repair_id: p for p in state.permits}
        self.permit_of = {p.node: p for p in state.permits}
        self.groups = Counter(p.group for p in state.permits)
        self.queue = {a.repair_id: a for a in state.queue}
        self.spent = list(state.spent)
        self.withheld = {w.node: w for w in state.withheld}
        self.asked_at = list(state.asked_at)
        self.closed = set(state.closed())
        self.decisions: list[Decision] = []
        self.notes: list[Note] = []
        self._mark_of = {w.repair_id: w.node for w in state.withheld if w.repair_id}
        self._weight: Weight | None = None
        self._softest: list[Ask] | None = None
        reserve = GROWTH_BYTES * policy.closures(state.nodes_on_record) if policy else 0
        self._room = max(LARGEST_STATE - reserve, LARGEST_STATE // 2)

    def state(self) -> BudgetState:
        """The state as it stands now."""
        return replace(
            self.kept,
            permits=tuple(self.permits.values()),
            queue=tuple(self.queue.values()),
            spent=tuple(self.spent),
            withheld=tuple(self.withheld.values()),
            asked_at=tuple(self.asked_at),
        )

    # --- messages -------------------------------------------------------------------------------

    def ask(self, request: Ask, *, at: datetime | None = None) -> None:
        """Book an ask; asked again it is the same ask, and after a grant it is told again."""
        permit = self.permits.get(request.repair_id)
        if permit is not None:
            told = replace(permit, workflow_id=request.workflow_id)
            self.decisions.append(tell(told))
            return
        old = self.queue.get(request.repair_id)
        if old is not None:
            kept = replace(request, asked_at=old.asked_at, stale=old.stale)
            self.queue[request.repair_id] = kept
            return
        if not self._make_room(request):
            return
        self.weight().add_ask(request)
        self.queue[request.repair_id] = request
        self.asked_at.append(request.asked_at)
        self._note(at or request.asked_at, "asked", request, request.reason)

    def adopt(self, request: Ask, *, closed_at: datetime) -> None:
        """Book a node that is out already, whose repair was lost and goes on.

        A budget that kept its memory changes nothing. One that lost it counts the node as out
        again, and the closure in the window from when it truly happened; no limit is asked, because
        the gate is closed whatever the answer would be.
        """
        if request.repair_id in self.permits:
            return
        if request.repair_id in self.queue:
            self._drop_ask(self.queue[request.repair_id])
        if request.node in self.permit_of:
            self.drop_permit(self.permit_of[request.node])
        self._put_permit(
            Permit(
                repair_id=request.repair_id,
                workflow_id=request.workflow_id,
                node=request.node,
                group=request.group,
                granted_at=closed_at,
            )
        )
        if all(s.repair_id != request.repair_id for s in self.spent):
            self.spent.append(Spent(request.repair_id, closed_at, closed_at=closed_at))
        if request.node in self.withheld:
            self._unmark(request.node)
        self._note(closed_at, "adopted", request, request.reason)

    def release(
        self, repair_id: str, *, at: datetime, why: str = "", closed_at: datetime | None = None
    ) -> None:
        """Take a permit or a place back; a closure that happened stays in the window."""
        permit, waiting = self.permits.get(repair_id), self.queue.get(repair_id)
        if closed_at is not None:
            self._count_closure(repair_id, closed_at)
        self.spent = [s for s in self.spent if s.repair_id != repair_id or s.closed_at]
        if permit is not None:
            self.drop_permit(permit)
        if waiting is not None:
            self._drop_ask(waiting)
        marked = self._mark_of.get(repair_id)
        if marked is not None:
            self._unmark(marked)
        held = permit or waiting
        if held is not None:
            self._note(at, "released", held, why)

    def gate_closed(self, repair_id: str, *, at: datetime) -> None:
        """The gate truly closed: the window counts from now, a withheld mark is not needed."""
        self._count_closure(repair_id, at)
        permit = self.permits.get(repair_id)
        if permit is not None and permit.node in self.withheld:
            self._unmark(permit.node)

    def withhold(self, request: Withheld) -> None:
        """Book a node to be withheld; `decide` places it when the cap allows."""
        if request.node in self.withheld or request.node in self.permit_of:
            return
        if self.weight().total >= self._room and not request.hard:
            self._turn_away(1)
            return
        self.weight().add_withheld(request)
        self.put(request)

    def end_withhold(self, node: str) -> None:
        """The reason is gone; a node that waits for its repair's permit stays withheld."""
        row = self.withheld.get(node)
        if row is not None and row.repair_id is None:
            self._unmark(node)

    def not_withheld(self, node: str, *, drop: bool, until: datetime | None = None) -> None:
        """A gate that was to be withheld stayed open: tried again, after `until`, or dropped."""
        if until is not None:
            later = {**self.kept.not_before, node: until}
            self.kept = replace(self.kept, not_before=later)
        row = self.withheld.get(node)
        if row is None:
            return
        if drop:
            self._forget(row)
        else:
            self.put(replace(row, placed=False))

    def rechecked(self, asked: Iterable[str], *, recovered: Collection[str], at: datetime) -> None:
        """Present health was read: who recovered leaves the queue and is told to ask again.

        `asked` and `recovered` are repair ids. Health that cannot be read is no recovery.
        """
        for repair_id in asked:
            ask = self.queue.get(repair_id)
            if ask is None:
                continue
            if repair_id in recovered:
                self._refuse(ask, Refusal.RECOVERED, at=at)
            else:
                self.queue[repair_id] = replace(ask, stale=False)

    def not_paged(self) -> None:
        """The page could not be delivered: the episode is paged again."""
        self.kept = replace(self.kept, paged=False)

    def resize(self, nodes_on_record: int) -> None:
        """The pool's number of nodes on record changed."""
        self.kept = replace(self.kept, nodes_on_record=nodes_on_record)

    # --- what a turn changes --------------------------------------------------------------------

    def grant(self, ask: Ask, *, now: datetime, extra: bool) -> None:
        """Book a grant; a lent closure is not charged to the window."""
        self._drop_ask(ask)
        # A node whose repair was aborted keeps its permit; a new repair takes it over.
        if ask.node in self.permit_of:
            self.drop_permit(self.permit_of[ask.node])
        permit = Permit(
            ask.repair_id, ask.workflow_id, ask.node, ask.group, granted_at=now, extra=extra
        )
        self._put_permit(permit)
        if not extra:
            self.spent.append(Spent(ask.repair_id, granted_at=now))
        self.kept = replace(self.kept, extra=self.kept.extra - extra, granted=self.kept.granted + 1)
        self.decisions.append(tell(permit))

    def put(self, row: Withheld) -> None:
        """Write one withheld row."""
        self.withheld[row.node] = row
        if row.repair_id:
            self._mark_of[row.repair_id] = row.node
        self._touch(row.node)

    def _put_permit(self, permit: Permit) -> None:
        self.permits[permit.repair_id] = permit
        self.permit_of[permit.node] = permit
        self.groups[permit.group] += 1
        self.closed.add(permit.node)

    def drop_permit(self, permit: Permit) -> None:
        """Take a permit away."""
        self.permits.pop(permit.repair_id, None)
        self.permit_of.pop(permit.node, None)
        self.groups[permit.group] -= 1
        self._touch(permit.node)

    def weight(self) -> Weight:
        """The upper bound of the state's size, counted when first needed."""
        if self._weight is None:
            self._weight = Weight(self.state())
        return self._weight

    # --- within ---------------------------------------------------------------------------------

    def _make_room(self, request: Ask) -> bool:
        """Whether the ask may be booked; a softer one gives way to a worse one when it is full."""
        if self.weight().total < self._room:
            return True
        if self._softest is None:
            self._softest = sorted(self.queue.values(), key=worst_first)
        while self._softest and self._softest[-1].repair_id not in self.queue:
            self._softest.pop()
        if not self._softest or worst_first(request) >= worst_first(self._softest[-1]):
            self._refuse(request, Refusal.FULL, at=request.asked_at)
            return False
        self._refuse(self._softest.pop(), Refusal.FULL, at=request.asked_at)
        return True

    def _refuse(self, ask: Ask, why: Refusal, *, at: datetime) -> None:
        """Tell a repair "no": it asks again when it next looks, so nothing is lost."""
        if ask.repair_id in self.queue:
            self._drop_ask(ask)
            marked = self._mark_of.get(ask.repair_id)
            if marked is not None:
                self._unmark(marked)
        if why is Refusal.FULL:
            self._turn_away(1)
        self.decisions.append(
            Decision(
                DecisionKind.REFUSE,
                node=ask.node,
                repair_id=ask.repair_id,
                workflow_id=ask.workflow_id,
                text=str(why),
            )
        )
        self._note(at, "refused", ask, str(why))

    def _turn_away(self, count: int) -> None:
        self.kept = replace(self.kept, turned_away=self.kept.turned_away + count)

    def _drop_ask(self, ask: Ask) -> None:
        del self.queue[ask.repair_id]
        if self._weight is not None:
            self._weight.drop_ask()

    def _unmark(self, node: str) -> None:
        row = self.withheld[node]
        self._forget(row)
        if row.placed:
            self.decisions.append(
                Decision(DecisionKind.END_WITHHOLD, node=row.node, text=row.reason)
            )

    def _forget(self, row: Withheld) -> None:
        del self.withheld[row.node]
        if row.repair_id:
            self._mark_of.pop(row.repair_id, None)
        if self._weight is not None:
            self._weight.drop_withheld()
        self._touch(row.node)

    def _touch(self, node: str) -> None:
        row = self.withheld.get(node)
        if node in self.permit_of or (row is not None and row.placed):
            self.closed.add(node)
        else:
            self.closed.discard(node)

    def _count_closure(self, repair_id: str, at: datetime) -> None:
        self.spent = [
            replace(s, closed_at=s.closed_at or at) if s.repair_id == repair_id else s
            for s in self.spent
        ]

    def _note(self, at: datetime, event: str, held: Ask | Permit, detail: str) -> None:
        self.notes.append(Note(at, event, held.repair_id, held.node, detail))


def worst_first(request: Ask) -> tuple[bool, int, datetime, str]:
    """The order of grants: hard fails, then severity, then age."""
    return (not request.hard, -request.severity.rank, request.asked_at, request.repair_id)


def tell(permit: Permit) -> Decision:
    """The decision to tell a repair of its permit, with when it was granted."""
    return Decision(
        DecisionKind.GRANT,
        node=permit.node,
        repair_id=permit.repair_id,
        workflow_id=permit.workflow_id,
        since=permit.granted_at,
    )
