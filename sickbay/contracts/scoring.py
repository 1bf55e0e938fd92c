"""Shapes of a pool's scoring: what the long-running activity and its workflow are started with."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sickbay.scoring.ruleset import RuleSet, Times

SCORE_POOL = "score_pool"
STOP_SCORING = "stop"


@dataclass(frozen=True)
class ScoringInput:
    """Argument of `PoolScoring` and of the activity `score_pool`.

    `rules` is the rule set as parsed content, so that what is scored with is in the history.
    `times` are its durations in seconds of the clock, already divided by `time_scale` (seconds of
    the fleet per second of the clock). `heartbeat_timeout_s` is real time of the machine.
    """

    pool: str
    rules: dict[str, Any]
    times: Times = field(default_factory=Times)
    time_scale: float = 1.0
    heartbeat_timeout_s: float = 60.0
    inventory_refresh_s: float = 10.0


@dataclass(frozen=True)
class ScoringEnded:
    """Why the activity ended by itself: `superseded` by a newer epoch."""

    epoch: int
    reason: str


_MINIMUM_TICK_S = 2.0
_MINIMUM_WATCH_S = 1.0
# What the machine needs, not the fleet: how many ticks a duration spans at the very least.
_MINIMUM_TICKS: Mapping[str, float] = {
    "freshness_s": 4.0,
    "unknown_grace_s": 6.0,
    "boot_grace_s": 3.0,
    "cause_window_s": 3.0,
    "event_window_s": 60.0,
}


def scaled_times(rules: RuleSet, *, time_scale: float) -> Times:
    """The rule set's durations divided by the time scale, with floors bound to the machine.

    A tick takes at least two seconds; freshness and the graces span a few ticks, or one late scrape
    would read as an outage.
    """
    divided = {f.name: getattr(rules.times, f.name) / time_scale for f in fields(Times)}
    tick_s = max(_MINIMUM_TICK_S, divided["tick_s"])
    divided["tick_s"] = tick_s
    divided["event_watch_s"] = max(_MINIMUM_WATCH_S, divided["event_watch_s"])
    for name, ticks in _MINIMUM_TICKS.items():
        least = min(ticks * tick_s, getattr(rules.times, name))
        divided[name] = max(divided[name], least)
    return replace(Times(), **divided)
