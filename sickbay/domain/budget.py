"""The budget's rules: who may have a permit now, who waits, who is withheld, when a human is paged.

A closure counts from the moment the scheduler had truly closed the gate, not from the grant: so no
sliding window, measured from outside, ever holds more than the budget allows. Withheld nodes are
not charged to the window, but count against the same cap on automatic closures.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sickbay.domain.budget_book import Book, worst_first
from sickbay.domain.budget_page import Blocked, page
from sickbay.domain.budget_state import (
    Ask,
    BudgetPolicy,
    BudgetState,
    Decision,
    DecisionKind,
    Refusal,
    Withheld,
)

DECISIONS_PER_TURN = 200
ORDERS_KEPT = 200
HELD_BACK = {Refusal.FROZEN, Refusal.STORM}


def ask(state: BudgetState, request: Ask) -> BudgetState:
    """Book an ask; asked again by the same repair it is the same ask, at its old place in time."""
    book = Book(state)
    book.ask(request)
    return book.state()


def adopt(
    state: BudgetState, request: Ask, *, closed_at: datetime
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """Book a node that is out already, whose repair was lost and goes on."""
    book = Book(state)
    book.adopt(request, closed_at=closed_at)
    return book.state(), tuple(book.decisions)


def release(
    state: BudgetState, repair_id: str, *, closed_at: datetime | None = None
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """Give back a permit or a place; a closure that happened stays in the window.

    `closed_at` is given when a gate may have been closed without having been told.
    """
    book = Book(state)
    book.release(repair_id, at=closed_at or _NEVER, closed_at=closed_at)
    return book.state(), tuple(book.decisions)


def gate_closed(
    state: BudgetState, repair_id: str, *, at: datetime
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """The scheduler closed the gate: the window counts from now, a withheld mark is not needed."""
    book = Book(state)
    book.gate_closed(repair_id, at=at)
    return book.state(), tuple(book.decisions)


def withhold(state: BudgetState, request: Withheld) -> BudgetState:
    """Book a node to be withheld; `decide` places it when the cap allows."""
    book = Book(state)
    book.withhold(request)
    return book.state()


def end_withhold(state: BudgetState, node: str) -> tuple[BudgetState, tuple[Decision, ...]]:
    """The reason is gone; a node that waits for its repair's permit stays withheld."""
    book = Book(state)
    book.end_withhold(node)
    return book.state(), tuple(book.decisions)


def grant(state: BudgetState, count: int) -> BudgetState:
    """A person lends `count` closures beyond the window and the cap (never beyond the group)."""
    return replace(state, extra=state.extra + count)


def freeze(state: BudgetState, *, by: str | None, reason: str = "") -> BudgetState:
    """A person freezes the pool's permits, or (`by` None) unfreezes them."""
    return replace(state, frozen_by=by, frozen_reason=reason)


def ordered(state: BudgetState, order: str) -> BudgetState:
    """A person's order of this id is carried out: the same one again changes nothing."""
    return replace(state, orders=(*state.orders, order)[-ORDERS_KEPT:])


def rechecked(
    state: BudgetState, asked: Iterable[str], *, recovered: Collection[str], now: datetime
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """Present health was read: who recovered leaves the queue and is told, the others keep place.

    `asked` and `recovered` are repair ids. Health that cannot be read is no recovery.
    """
    book = Book(state)
    book.rechecked(asked, recovered=recovered, at=now)
    return book.state(), tuple(book.decisions)


def decide(
    state: BudgetState, *, policy: BudgetPolicy, now: datetime
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """One turn: grant what may be granted, worst first; withhold, and page once per episode."""
    state = _storm(_expire(state, policy=policy, now=now), policy=policy, now=now)
    book = Book(state, policy=policy)
    blocked = _grant(book, policy=policy, now=now)
    over = _place_withheld(book, blocked, policy=policy, now=now)
    state, pages = page(book.state(), blocked, over, policy=policy, now=now)
    return state, (*book.decisions, *pages)


def refusal_of(
    state: BudgetState, request: Ask, *, policy: BudgetPolicy, now: datetime
) -> Refusal | None:
    """Why this ask must wait now, None when it may be granted."""
    return _refusal(Book(state), request, policy=policy, now=now)


def next_wake(state: BudgetState, *, policy: BudgetPolicy, now: datetime) -> datetime | None:
    """When time alone may change a decision; None when only a message can."""
    window = timedelta(seconds=policy.window_s)
    times = [s.closed_at + window for s in state.spent if s.closed_at]
    times.extend(state.not_before.values())
    if state.storm_until:
        times.append(state.storm_until)
    if state.paged and state.episode_quiet_since:
        times.append(state.episode_quiet_since + timedelta(seconds=policy.cooldown_s))
    if state.blocked_since and not state.paged:
        times.append(state.blocked_since + timedelta(seconds=policy.settle_s))
    if state.queue and not state.paged:
        times.extend(a.asked_at + window for a in state.queue)
    return min((t for t in times if t > now), default=None)


# Nobody reads the notes of a single message.
_NEVER = datetime.min.replace(tzinfo=UTC)


def _grant(book: Book, *, policy: BudgetPolicy, now: datetime) -> list[Blocked]:
    """Grant worst first; who waits, and why.

    An ask that a person or a storm held back is not granted on what was true then: its present
    health is read first, and whoever is not worse waits for that answer.
    """
    blocked: list[Blocked] = []
    left, checking = DECISIONS_PER_TURN, False
    for request in sorted(book.queue.values(), key=worst_first):
        refusal = _refusal(book, request, policy=policy, now=now)
        if refusal is not None:
            blocked.append((request, refusal))
            if request.soft and refusal in HELD_BACK and not request.stale:
                book.queue[request.repair_id] = replace(request, stale=True)
        elif left == 0 or (checking and not request.stale):
            continue
        elif request.stale:
            checking, left = True, left - 1
            book.decisions.append(_recheck(request))
        else:
            left -= 1
            book.grant(request, now=now, extra=_needs_extra(book, request, policy, now))
    return blocked


def _recheck(request: Ask) -> Decision:
    return Decision(
        DecisionKind.RECHECK,
        node=request.node,
        repair_id=request.repair_id,
        workflow_id=request.workflow_id,
        since=request.asked_at,
    )


def _refusal(book: Book, request: Ask, *, policy: BudgetPolicy, now: datetime) -> Refusal | None:
    state = book.kept
    if state.frozen_by:
        return Refusal.FROZEN
    own = book.permit_of.get(request.node)
    in_group = book.groups[request.group] - (own is not None and own.group == request.group)
    if in_group >= policy.per_group:
        return Refusal.GROUP
    if state.extra > 0:
        return None
    return _own_refusal(book, request, policy=policy, now=now)


def _own_refusal(
    book: Book, request: Ask, *, policy: BudgetPolicy, now: datetime
) -> Refusal | None:
    """What the budget itself says, whatever was lent."""
    size, storm_until = book.kept.nodes_on_record, book.kept.storm_until
    if storm_until and now < storm_until and not request.hard:
        return Refusal.STORM
    if len(book.spent) >= policy.allowed(size):
        return Refusal.WINDOW
    out = len(book.permit_of) - (request.node in book.permit_of)
    closed = len(book.closed) + (request.node not in book.closed)
    room = out < policy.out_at_once(size) and closed <= policy.closures(size)
    return None if room else Refusal.OUT


def _needs_extra(book: Book, request: Ask, policy: BudgetPolicy, now: datetime) -> bool:
    """A lent closure is used only when the budget itself has no room."""
    if book.kept.extra <= 0:
        return False
    return _own_refusal(book, request, policy=policy, now=now) is not None


def _expire(state: BudgetState, *, policy: BudgetPolicy, now: datetime) -> BudgetState:
    horizon = now - timedelta(seconds=policy.window_s)
    storm_horizon = now - timedelta(seconds=policy.storm_window_s)
    return replace(
        state,
        spent=tuple(s for s in state.spent if s.closed_at is None or s.closed_at > horizon),
        asked_at=tuple(t for t in state.asked_at if t > storm_horizon),
        not_before={node: t for node, t in state.not_before.items() if t > now},
    )


def _storm(state: BudgetState, *, policy: BudgetPolicy, now: datetime) -> BudgetState:
    threshold = policy.storm_factor * policy.allowed(state.nodes_on_record)
    if len(state.asked_at) >= threshold:
        return replace(state, storm_until=now + timedelta(seconds=policy.cooldown_s))
    over = state.storm_until is not None and now >= state.storm_until
    return replace(state, storm_until=None) if over else state


def _place_withheld(
    book: Book, blocked: Iterable[Blocked], *, policy: BudgetPolicy, now: datetime
) -> tuple[Withheld, ...]:
    """Withhold hard fails that wait, and whatever was asked, inside the cap; hard fails first.

    Returns those beyond the cap. A hard fail that waits is not booked twice: its ask stands for it
    until its mark is placed.
    """
    waits = {a.node: a for a, _ in blocked if a.hard}
    # Whoever asked first: while a hard fail waits for its permit, no other word opens its gate.
    for node, one in waits.items():
        row = book.withheld.get(node)
        if row is not None and not (row.hard and row.repair_id):
            book.put(replace(row, hard=True, repair_id=row.repair_id or one.repair_id))
    rows = [*book.withheld.values(), *(_mark(a, now=now) for n, a in waits.items()
                                       if n not in book.withheld)]  # fmt: skip
    cap, left = policy.closures(book.kept.nodes_on_record), DECISIONS_PER_TURN
    over: list[Withheld] = []
    for row in sorted(rows, key=lambda w: not w.hard):
        if row.placed or row.node in book.closed or row.node in book.kept.not_before:
            continue
        if len(book.closed) < cap and left > 0:
            left -= 1
            book.put(replace(row, placed=True, since=now))
            book.decisions.append(
                Decision(
                    DecisionKind.WITHHOLD,
                    node=row.node,
                    repair_id=row.repair_id or "",
                    text=row.reason,
                )
            )
        else:
            over.append(row)
    return tuple(over)


def _mark(request: Ask, *, now: datetime) -> Withheld:
    return Withheld(
        request.node,
        request.reason,
        hard=True,
        since=now,
        group=request.group,
        repair_id=request.repair_id,
        factors=request.factors,
    )
