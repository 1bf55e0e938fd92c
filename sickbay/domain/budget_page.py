"""When a budget pages a human, and what the page says: once per episode, with what was counted."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from sickbay.domain.blame import counted
from sickbay.domain.budget_state import (
    Ask,
    BudgetPolicy,
    BudgetState,
    Decision,
    DecisionKind,
    Refusal,
    Withheld,
)

Blocked = tuple[Ask, Refusal]

VALUES_KEPT = 20
"""Values of one factor that a page weighs: the most frequent ones."""


def page(
    state: BudgetState,
    blocked: list[Blocked],
    over: tuple[Withheld, ...],
    *,
    policy: BudgetPolicy,
    now: datetime,
) -> tuple[BudgetState, tuple[Decision, ...]]:
    """One page per episode: from the first ask the budget or the cap blocks until it was quiet."""
    stuck = now - timedelta(seconds=policy.window_s)
    reasons = [r for a, r in blocked if r is not Refusal.GROUP or a.asked_at <= stuck]
    if not reasons and not over:
        return _quiet(replace(state, blocked_since=None), policy=policy, now=now), ()
    if state.paged:
        return replace(state, episode_quiet_since=None), ()
    since = state.blocked_since or now
    if now - since < timedelta(seconds=policy.settle_s):
        return replace(state, blocked_since=since), ()
    paged = replace(
        state,
        paged=True,
        blocked_since=None,
        episode=state.episode + 1,
        episode_quiet_since=None,
        refused=state.refused + len(blocked),
    )
    return paged, (_decision(paged, reasons, blocked, over),)


def _decision(
    state: BudgetState,
    reasons: list[Refusal],
    blocked: list[Blocked],
    over: tuple[Withheld, ...],
) -> Decision:
    why = str(reasons[0]) if reasons else "the cap on automatic closures is reached"
    full = f", {state.turned_away} told to ask again" if state.turned_away else ""
    text = (
        f"pool {state.pool}: {why}; {len(state.queue)} waiting, {len(state.permits)} out, "
        f"{sum(w.placed for w in state.withheld)} withheld, {len(over)} beyond the cap{full}"
    )
    about = {a.node: a.factors for a, _ in blocked}
    for row in over:
        about.setdefault(row.node, row.factors)
    return Decision(
        DecisionKind.PAGE,
        repair_id=f"budget/{state.pool}/{state.episode}",
        text=text,
        failing=len(about),
        carriers=_carriers(about.values()),
    )


def _carriers(factors: Iterable[Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """How many of the nodes carry each value of each factor, the most frequent values only."""
    return {
        name: dict(sorted(values.items(), key=lambda v: (-v[1], v[0]))[:VALUES_KEPT])
        for name, values in sorted(counted(factors).items())
    }


def _quiet(state: BudgetState, *, policy: BudgetPolicy, now: datetime) -> BudgetState:
    if not state.paged:
        return state
    since = state.episode_quiet_since or now
    if now - since >= timedelta(seconds=policy.cooldown_s):
        return replace(state, paged=False, episode_quiet_since=None)
    return replace(state, episode_quiet_since=since)
