"""The budget's rules: who may have a permit now, who waits, who is withheld, when a human is paged.

A closure counts from the moment the scheduler had truly closed the gate, not from the grant: so no
sliding window, measured from outside, ever holds more than the budget allows. Withheld nodes are
not charged to the window, but count against the same cap on automatic closures.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

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

DECISIONS_PER_TURN = 200


def ask(state: BudgetState, request: Ask) -> BudgetState:
    """Book an ask; asked again by the same repair it is the same ask, at its old place in time."""
    if any(p.repair_id == request.repair_id for p in state.permits):
        return state
    old = next((a for a in state.queue if a.repair_id == request.repair_id), None)
    if old is not None:
        kept = replace(request, asked_at=old.asked_at)
        return replace(state, queue=tuple(kept if a is old else a for a in state.queue))
    return replace(
        state,
        queue=(*state.queue, request),
        asked_at=(*state.asked_at, request.asked_at),
    )


def adopt(
    state: BudgetState, request: Ask, *, closed_at: datetime
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """Book a node that is out already, whose repair was lost and goes on.

    A budget that kept its memory changes nothing. One that lost it counts the node as out again,
    and the closure in the window from when it truly happened; no limit is asked, because the gate
    is closed whatever the answer would be.
    """
    if any(p.repair_id == request.repair_id for p in state.permits):
        return state, ()
    permit = Permit(
        repair_id=request.repair_id,
        workflow_id=request.workflow_id,
        node=request.node,
        group=request.group,
        granted_at=closed_at,
    )
    charged = any(s.repair_id == request.repair_id for s in state.spent)
    charge = () if charged else (Spent(request.repair_id, closed_at, closed_at=closed_at),)
    ended = [w for w in state.withheld if w.node == request.node]
    booked = replace(
        state,
        queue=tuple(a for a in state.queue if a.repair_id != request.repair_id),
        permits=(*(p for p in state.permits if p.node != request.node), permit),
        spent=(*state.spent, *charge),
        withheld=tuple(w for w in state.withheld if w.node != request.node),
    )
    return booked, _end_withhold(w for w in ended if w.placed)


def release(
    state: BudgetState, repair_id: str, *, closed_at: datetime | None = None
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """Give back a permit or a place; a closure that happened stays in the window.

    `closed_at` is given when a gate may have been closed without having been told.
    """
    if closed_at is not None:
        state = replace(
            state,
            spent=tuple(
                replace(s, closed_at=s.closed_at or closed_at) if s.repair_id == repair_id else s
                for s in state.spent
            ),
        )
    ended = [w for w in state.withheld if w.repair_id == repair_id]
    left = replace(
        state,
        permits=tuple(p for p in state.permits if p.repair_id != repair_id),
        queue=tuple(a for a in state.queue if a.repair_id != repair_id),
        spent=tuple(s for s in state.spent if s.repair_id != repair_id or s.closed_at),
        withheld=tuple(w for w in state.withheld if w.repair_id != repair_id),
    )
    return left, _end_withhold(w for w in ended if w.placed)


def gate_closed(
    state: BudgetState, repair_id: str, *, at: datetime
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """The scheduler closed the gate: the window counts from now, a withheld mark is not needed."""
    node = next((p.node for p in state.permits if p.repair_id == repair_id), None)
    ended = [w for w in state.withheld if w.node == node]
    moved = replace(
        state,
        spent=tuple(
            replace(s, closed_at=s.closed_at or at) if s.repair_id == repair_id else s
            for s in state.spent
        ),
        withheld=tuple(w for w in state.withheld if w.node != node),
    )
    return moved, _end_withhold(w for w in ended if w.placed)


def withhold(state: BudgetState, request: Withheld) -> BudgetState:
    """Book a node to be withheld; `decide` places it when the cap allows."""
    if any(w.node == request.node for w in state.withheld) or request.node in state.out():
        return state
    return replace(state, withheld=(*state.withheld, request))


def end_withhold(state: BudgetState, node: str) -> tuple[BudgetState, tuple[Decision, ...]]:
    """The reason is gone; a node that waits for its repair's permit stays withheld."""
    ended = [w for w in state.withheld if w.node == node and w.repair_id is None]
    kept = tuple(w for w in state.withheld if w not in ended)
    return replace(state, withheld=kept), _end_withhold(w for w in ended if w.placed)


def not_withheld(state: BudgetState, node: str, *, drop: bool) -> BudgetState:
    """A gate that was to be withheld stayed open: it is tried at a later turn, or dropped."""
    return replace(
        state,
        withheld=tuple(
            replace(w, placed=False) if w.node == node else w
            for w in state.withheld
            if not (drop and w.node == node)
        ),
    )


def grant(state: BudgetState, count: int) -> BudgetState:
    """A person lends `count` closures beyond the window and the cap (never beyond the group)."""
    return replace(state, extra=state.extra + count)


def freeze(state: BudgetState, *, by: str | None, reason: str = "") -> BudgetState:
    """A person freezes the pool's permits, or (`by` None) unfreezes them."""
    return replace(state, frozen_by=by, frozen_reason=reason)


def decide(
    state: BudgetState, *, policy: BudgetPolicy, now: datetime
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """One turn: grant what may be granted, worst first; withhold, and page once per episode."""
    state = _storm(_expire(state, policy=policy, now=now), policy=policy, now=now)
    decisions: list[Decision] = []
    blocked: list[tuple[Ask, Refusal]] = []
    for request in sorted(state.queue, key=_worst_first):
        refusal = refusal_of(state, request, policy=policy, now=now)
        if refusal is None and len(decisions) < DECISIONS_PER_TURN:
            state = _granted(state, request, policy=policy, now=now)
            decisions.append(
                Decision(
                    DecisionKind.GRANT,
                    node=request.node,
                    repair_id=request.repair_id,
                    workflow_id=request.workflow_id,
                )
            )
        elif refusal is not None:
            blocked.append((request, refusal))
    state, placed, over = _place_withheld(state, blocked, policy=policy, now=now)
    state, pages = _page(state, blocked, over, policy=policy, now=now)
    return state, (*decisions, *placed, *pages)


def refusal_of(
    state: BudgetState, request: Ask, *, policy: BudgetPolicy, now: datetime
) -> Refusal | None:
    """Why this ask must wait now, None when it may be granted."""
    size = state.nodes_on_record
    if state.frozen_by:
        return Refusal.FROZEN
    others = [p for p in state.permits if p.node != request.node]
    if sum(p.group == request.group for p in others) >= policy.per_group:
        return Refusal.GROUP
    if state.extra > 0:
        return None
    if state.storm_until and now < state.storm_until and not request.hard:
        return Refusal.STORM
    if len(state.spent) >= policy.allowed(size):
        return Refusal.WINDOW
    closed = state.closed() | {request.node}
    room = len(others) < policy.out_at_once(size) and len(closed) <= policy.closures(size)
    return None if room else Refusal.OUT


def next_wake(state: BudgetState, *, policy: BudgetPolicy, now: datetime) -> datetime | None:
    """When time alone may change a decision; None when only a message can."""
    window = timedelta(seconds=policy.window_s)
    times = [s.closed_at + window for s in state.spent if s.closed_at]
    if state.storm_until:
        times.append(state.storm_until)
    if state.paged and state.episode_quiet_since:
        times.append(state.episode_quiet_since + timedelta(seconds=policy.cooldown_s))
    if state.queue and not state.paged:
        times.extend(a.asked_at + window for a in state.queue)
    return min((t for t in times if t > now), default=None)


def _worst_first(request: Ask) -> tuple[bool, int, datetime, str]:
    return (not request.hard, -request.severity.rank, request.asked_at, request.repair_id)


def _end_withhold(ended: Iterable[Withheld]) -> tuple[Decision, ...]:
    return tuple(Decision(DecisionKind.END_WITHHOLD, node=w.node, text=w.reason) for w in ended)


def _expire(state: BudgetState, *, policy: BudgetPolicy, now: datetime) -> BudgetState:
    horizon = now - timedelta(seconds=policy.window_s)
    storm_horizon = now - timedelta(seconds=policy.storm_window_s)
    return replace(
        state,
        spent=tuple(s for s in state.spent if s.closed_at is None or s.closed_at > horizon),
        asked_at=tuple(t for t in state.asked_at if t > storm_horizon),
    )


def _storm(state: BudgetState, *, policy: BudgetPolicy, now: datetime) -> BudgetState:
    threshold = policy.storm_factor * policy.allowed(state.nodes_on_record)
    if len(state.asked_at) >= threshold:
        return replace(state, storm_until=now + timedelta(seconds=policy.cooldown_s))
    over = state.storm_until is not None and now >= state.storm_until
    return replace(state, storm_until=None) if over else state


def _granted(
    state: BudgetState, request: Ask, *, policy: BudgetPolicy, now: datetime
) -> BudgetState:
    """Book the grant; a lent closure is used only when the budget itself had no room."""
    needs_extra = (
        state.extra > 0
        and refusal_of(replace(state, extra=0), request, policy=policy, now=now) is not None
    )
    permit = Permit(
        repair_id=request.repair_id,
        workflow_id=request.workflow_id,
        node=request.node,
        group=request.group,
        granted_at=now,
        extra=needs_extra,
    )
    charge = () if needs_extra else (Spent(request.repair_id, granted_at=now),)
    return replace(
        state,
        queue=tuple(a for a in state.queue if a.repair_id != request.repair_id),
        # A node whose repair was aborted keeps its permit; a new repair takes it over.
        permits=(*(p for p in state.permits if p.node != request.node), permit),
        spent=(*state.spent, *charge),
        extra=state.extra - needs_extra,
        granted=state.granted + 1,
    )


def _place_withheld(
    state: BudgetState,
    blocked: list[tuple[Ask, Refusal]],
    *,
    policy: BudgetPolicy,
    now: datetime,
) -> tuple[BudgetState, tuple[Decision, ...], tuple[Withheld, ...]]:
    """Withhold hard fails that wait, and whatever was asked, inside the cap; hard fails first."""
    waits = {a.node: a.repair_id for a, _ in blocked if a.hard}
    # Whoever asked first: while a hard fail waits for its permit, no other word opens its gate.
    booked = [
        replace(w, hard=True, repair_id=w.repair_id or waits[w.node]) if w.node in waits else w
        for w in state.withheld
    ]
    known = {w.node for w in booked}
    waiting = [
        Withheld(
            a.node, a.reason, hard=True, since=now, group=a.group, repair_id=a.repair_id,
            factors=a.factors,
        )
        for a, _ in blocked
        if a.hard and a.node not in known
    ]  # fmt: skip
    cap = policy.closures(state.nodes_on_record)
    closed = set(state.closed())
    decisions: list[Decision] = []
    over: list[Withheld] = []
    rows: list[Withheld] = []
    for row in sorted((*booked, *waiting), key=lambda w: (not w.placed, not w.hard)):
        if row.placed or row.node in closed:
            rows.append(row)
        elif len(closed) < cap and len(decisions) < DECISIONS_PER_TURN:
            closed.add(row.node)
            rows.append(replace(row, placed=True, since=now))
            decisions.append(
                Decision(
                    DecisionKind.WITHHOLD,
                    node=row.node,
                    repair_id=row.repair_id or "",
                    text=row.reason,
                )
            )
        else:
            over.append(row)
            rows.append(row)
    return replace(state, withheld=tuple(rows)), tuple(decisions), tuple(over)


def _page(
    state: BudgetState,
    blocked: list[tuple[Ask, Refusal]],
    over: tuple[Withheld, ...],
    *,
    policy: BudgetPolicy,
    now: datetime,
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """One page per episode: from the first ask the budget or the cap blocks until it was quiet."""
    stuck = now - timedelta(seconds=policy.window_s)
    reasons = [r for a, r in blocked if r is not Refusal.GROUP or a.asked_at <= stuck]
    if not reasons and not over:
        return _quiet(state, policy=policy, now=now), ()
    if state.paged:
        return replace(state, episode_quiet_since=None), ()
    why = str(reasons[0]) if reasons else "the cap on automatic closures is reached"
    text = (
        f"pool {state.pool}: {why}; {len(state.queue)} waiting, {len(state.permits)} out, "
        f"{sum(w.placed for w in state.withheld)} withheld, {len(over)} beyond the cap"
    )
    paged = replace(
        state,
        paged=True,
        episode=state.episode + 1,
        episode_quiet_since=None,
        refused=state.refused + len(blocked),
    )
    factors = tuple(a.factors for a, _ in blocked) + tuple(w.factors for w in over)
    key = f"budget/{state.pool}/{paged.episode}"
    return paged, (Decision(DecisionKind.PAGE, repair_id=key, text=text, factors=factors),)


def _quiet(state: BudgetState, *, policy: BudgetPolicy, now: datetime) -> BudgetState:
    if not state.paged:
        return state
    since = state.episode_quiet_since or now
    if now - since >= timedelta(seconds=policy.cooldown_s):
        return replace(state, paged=False, episode_quiet_since=None)
    return replace(state, episode_quiet_since=since)
