"""Hysteresis: what a row of health values makes of a node's standing.

Dwell is measured on the standing, never on the reason, so that alternating reasons do not restart
it. Time spent unknown counts towards no dwell, neither to act nor to heal.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sickbay.domain.health import Health, Standing

_CAME_BACK = (Standing.HEALTHY, Standing.DEGRADED)


@dataclass(frozen=True)
class StandingRules:
    """Thresholds on the health value (0…1) and dwell times (seconds). Entry and exit differ."""

    degraded_below: float = 0.7
    quarantined_below: float = 0.3
    healthy_above: float = 0.8
    minimum_confidence: float = 0.5
    degraded_dwell_s: float = 300.0
    quarantined_dwell_s: float = 600.0
    healthy_dwell_s: float = 1800.0
    unknown_grace_s: float = 600.0


@dataclass(frozen=True)
class Track:
    """A node's standing, since when, and how long its health has been low, high or unknown.

    `before` is where a node that went unknown comes back to. `transitions` counts changes of
    standing, the measure of flapping.
    """

    standing: Standing
    since: datetime
    before: Standing = Standing.HEALTHY
    low_since: datetime | None = None
    very_low_since: datetime | None = None
    high_since: datetime | None = None
    unknown_since: datetime | None = None
    transitions: int = 0


def begin(standing: Standing, *, since: datetime) -> Track:
    """The track of a node as it stands in the store; a node nobody scored yet is unknown."""
    return Track(standing, since)


def restart_after_proof(track: Track, *, at: datetime) -> Track:
    """The track of a node that came back by proof: healthy, with every dwell starting anew."""
    moved = track.standing is not Standing.HEALTHY
    return Track(Standing.HEALTHY, at, transitions=track.transitions + moved)


def step(track: Track, health: Health, *, now: datetime, rules: StandingRules, held: bool) -> Track:
    """The track after one more health value.

    `held` says that a quarantine hold of ours stands: then only a proof ends the quarantine.
    Without one (observe mode) a quarantined node leaves after the healthy dwell.
    """
    if _is_unknown(health, rules):
        return _while_unknown(track, now=now, rules=rules)
    known = _timed(_back(track, now=now), health.value or 0.0, now=now, rules=rules)
    target = _target(known, health, now=now, rules=rules, held=held)
    return _move(known, target, now=now)


def _is_unknown(health: Health, rules: StandingRules) -> bool:
    """Below the minimum confidence only a hard fail may act."""
    if health.is_hard_fail:
        return False
    return health.value is None or health.confidence < rules.minimum_confidence


def _while_unknown(track: Track, *, now: datetime, rules: StandingRules) -> Track:
    since = track.unknown_since or now
    track = replace(track, unknown_since=since)
    if track.standing in _CAME_BACK and _lasted(since, now, rules.unknown_grace_s):
        return replace(_move(track, Standing.UNKNOWN, now=now), before=track.standing)
    return track


def _back(track: Track, *, now: datetime) -> Track:
    """Known again: the standing from before, and timers moved on by the time spent unknown."""
    if track.unknown_since is not None:
        gap = now - track.unknown_since
        track = replace(
            track,
            unknown_since=None,
            low_since=_shift(track.low_since, gap),
            very_low_since=_shift(track.very_low_since, gap),
            high_since=_shift(track.high_since, gap),
        )
    if track.standing is Standing.UNKNOWN:
        return _move(track, track.before, now=now)
    return track


def _timed(track: Track, value: float, *, now: datetime, rules: StandingRules) -> Track:
    def since(held: datetime | None, holds: bool) -> datetime | None:  # noqa: FBT001 - local
        return (held or now) if holds else None

    return replace(
        track,
        low_since=since(track.low_since, value < rules.degraded_below),
        very_low_since=since(track.very_low_since, value < rules.quarantined_below),
        high_since=since(track.high_since, value > rules.healthy_above),
    )


def _target(
    track: Track, health: Health, *, now: datetime, rules: StandingRules, held: bool
) -> Standing:
    if health.is_hard_fail:
        return Standing.QUARANTINED
    healed = _lasted(track.high_since, now, rules.healthy_dwell_s)
    if track.standing is Standing.QUARANTINED:
        return Standing.HEALTHY if healed and not held else Standing.QUARANTINED
    if _lasted(track.very_low_since, now, rules.quarantined_dwell_s):
        return Standing.QUARANTINED
    if track.standing is Standing.HEALTHY:
        low = _lasted(track.low_since, now, rules.degraded_dwell_s)
        return Standing.DEGRADED if low else Standing.HEALTHY
    return Standing.HEALTHY if healed else track.standing


def _move(track: Track, standing: Standing, *, now: datetime) -> Track:
    if standing is track.standing:
        return track
    return replace(track, standing=standing, since=now, transitions=track.transitions + 1)


def _lasted(since: datetime | None, now: datetime, dwell_s: float) -> bool:
    return since is not None and (now - since).total_seconds() >= dwell_s


def _shift(moment: datetime | None, gap: timedelta) -> datetime | None:
    return None if moment is None else moment + gap
