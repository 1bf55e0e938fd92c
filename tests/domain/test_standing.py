"""Hysteresis: dwell on the standing, unknown that neither acts nor heals, proof that ends."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.health import UNKNOWN_HEALTH, Health, Standing
from sickbay.domain.node import Category
from sickbay.domain.standing import StandingRules, begin, restart_after_proof, step

T0 = datetime(2026, 12, 1, 10, tzinfo=UTC)
RULES = StandingRules()
HARD = Health(0.0, 1.0, Category.MEMORY, "hard_fail:xid_48")


def soft(value: float, reason: str = "min:memory") -> Health:
    return Health(value, 1.0, Category.MEMORY, reason)


def run(healths, *, start=Standing.HEALTHY, every_s=15.0, held=False):
    track = begin(start, since=T0)
    tracks = []
    for at, health in enumerate(healths):
        now = T0 + timedelta(seconds=every_s * at)
        track = step(track, health, now=now, rules=RULES, held=held)
        tracks.append(track)
    return tracks


def test_c17_alternating_reasons_do_not_restart_the_dwell():
    healths = [soft(0.1, f"min:{('memory', 'thermal')[i % 2]}") for i in range(60)]
    tracks = run(healths)
    first = next(t for t in tracks if t.standing is Standing.QUARANTINED)
    assert first.since == T0 + timedelta(minutes=10)
    # healthy -> degraded at five minutes -> quarantined at ten.
    assert tracks[-1].transitions == 2


def test_a_hard_fail_quarantines_at_once():
    assert run([soft(1.0), HARD])[-1].standing is Standing.QUARANTINED


def test_degraded_needs_five_minutes_and_thirty_to_heal():
    tracks = run([soft(0.5)] * 20)
    assert tracks[-1].standing is Standing.HEALTHY
    tracks = run([soft(0.5)] * 21)
    assert tracks[-1].standing is Standing.DEGRADED
    healing = run([soft(0.5)] * 21 + [soft(0.9)] * 120)
    assert healing[-1].standing is Standing.DEGRADED
    assert run([soft(0.5)] * 21 + [soft(0.9)] * 122)[-1].standing is Standing.HEALTHY


def test_between_the_thresholds_nothing_moves():
    assert run([soft(0.5)] * 21 + [soft(0.75)] * 1000)[-1].standing is Standing.DEGRADED


def test_a_single_good_value_restarts_the_dwell():
    healths = ([soft(0.1)] * 19 + [soft(1.0)]) * 20
    assert {t.standing for t in run(healths)} == {Standing.HEALTHY}


def test_c37_ninety_seconds_of_outage_change_nothing():
    tracks = run([soft(1.0)] + [UNKNOWN_HEALTH] * 6 + [soft(1.0)])
    assert {t.standing for t in tracks} == {Standing.HEALTHY}


def test_unknown_past_the_grace_and_back_to_where_it_was():
    low = [soft(0.5)] * 22
    tracks = run(low + [UNKNOWN_HEALTH] * 60)
    assert tracks[-1].standing is Standing.UNKNOWN
    back = run(low + [UNKNOWN_HEALTH] * 60 + [soft(0.9)])
    assert back[-1].standing is Standing.DEGRADED


def test_time_spent_unknown_counts_towards_no_dwell():
    tracks = run([soft(0.1)] * 10 + [UNKNOWN_HEALTH] * 35 + [soft(0.1)] * 2)
    assert tracks[-1].standing is not Standing.QUARANTINED
    healing = run(
        [HARD] + [soft(0.9)] * 10 + [UNKNOWN_HEALTH] * 200 + [soft(0.9)] * 2,
    )
    assert healing[-1].standing is Standing.QUARANTINED


def test_low_confidence_counts_as_unknown():
    doubtful = Health(0.1, 0.4, Category.MEMORY, "min:memory")
    assert run([doubtful] * 200)[-1].standing is Standing.UNKNOWN


@pytest.mark.parametrize("held", [True, False])
def test_quarantine_ends_by_proof_or_without_a_hold_after_the_healthy_dwell(held):
    tracks = run([HARD] + [soft(1.0)] * 500, held=held)
    assert (tracks[-1].standing is Standing.QUARANTINED) is held
    proven = restart_after_proof(tracks[-1], at=T0 + timedelta(hours=3))
    assert proven.standing is Standing.HEALTHY


healths = st.one_of(
    st.just(UNKNOWN_HEALTH), st.floats(0, 1).map(soft), st.just(Health(0.1, 0.3, None, "min:host"))
)


@given(st.lists(healths, max_size=120))
def test_a_quarantine_with_a_hold_survives_any_history(values):
    assert {t.standing for t in run([HARD, *values], held=True)} == {Standing.QUARANTINED}


@given(st.lists(healths, max_size=120))
def test_no_dwell_is_ever_skipped(values):
    previous = begin(Standing.HEALTHY, since=T0)
    for at, (track, health) in enumerate(zip(run(values), values, strict=True)):
        now = T0 + timedelta(seconds=15 * at)
        if track.standing is Standing.QUARANTINED and previous.standing is not Standing.QUARANTINED:
            assert at * 15 >= 600
            assert health.value is not None
            assert track.very_low_since is not None
            assert (now - track.very_low_since).total_seconds() >= 600
        previous = track


@given(st.integers(0, 300))
def test_unknown_alone_never_quarantines(count):
    standings = {t.standing for t in run([soft(1.0)] + [UNKNOWN_HEALTH] * count)}
    assert Standing.QUARANTINED not in standings
