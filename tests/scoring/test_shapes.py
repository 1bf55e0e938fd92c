"""Shapes, rates and aggregation: the worked examples and the rules any input obeys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.scoring.aggregate import category_scores, geometric, per_node, weakest
from sickbay.scoring.rates import Counters
from sickbay.scoring.shapes import bits, deviation, peer, ramp

unit = st.one_of(st.just(float("nan")), st.floats(0, 1))


def test_node_37_is_flagged_and_not_gated():
    """Robust z 2.7 and 4.1 on a ramp from 3 to 6, equal weights: 0.82 for performance."""
    subs = ramp(np.array([[2.7, 4.1]]), warn=3, crit=6)
    assert subs[0, 0] == 1.0
    assert subs[0, 1] == pytest.approx(0.633, abs=0.001)
    value, worst = weakest(category_scores(subs, weights=[1, 1], category_of=[0, 0], categories=1))
    assert round(float(value[0]), 2) == 0.82
    assert worst[0] == 0


def test_node_37_a_day_later_is_zero():
    subs = ramp(np.array([[8.8, 8.8]]), warn=3, crit=6)
    score = category_scores(subs, weights=[1, 1], category_of=[0, 0], categories=1)
    assert score[0, 0] == 0.0
    assert round(float(ramp(np.array(5.05), warn=3, crit=6)) / 2, 2) == 0.16


def test_lower_is_worse_when_warn_lies_above_crit():
    assert ramp(np.array([16.0, 12.0, 8.0, 4.0]), warn=16, crit=8).tolist() == [1, 0.5, 0, 0]


def test_a_zero_spread_does_not_make_a_small_deviation_infinite():
    x = np.array([1980.0] * 7 + [1950.0])
    group = np.zeros(8, dtype=np.intp)
    z = deviation(x, group, min_effect=100.0, warn_z=3.0, min_cohort=8)
    assert abs(z[7]) < 3
    x[7] = 1480.0
    options = {"warn": 3, "crit": 6, "min_effect": 100, "min_cohort": 8}
    assert peer(x, group, low_is_bad=True, **options)[7] == 0.0
    assert peer(x, group, low_is_bad=False, **options)[7] == 1.0


def test_too_few_peers_are_not_evaluated():
    z = deviation(np.arange(5.0), np.zeros(5, np.intp), min_effect=1, warn_z=3, min_cohort=6)
    assert np.isnan(z).all()


def test_bits_outside_the_mask_are_normal():
    assert bits(np.array([0x4, 0x1, 0x40, 0x48]), mask=0xC8).tolist() == [1, 1, 0, 0]
    assert np.isnan(bits(np.array([np.nan]), mask=1))[0]


@given(st.lists(st.floats(0, 5000), min_size=8, max_size=30), st.randoms(use_true_random=False))
def test_peers_do_not_depend_on_their_order(values, random):
    x = np.array(values)
    order = list(range(len(values)))
    random.shuffle(order)
    options = {"min_effect": 100.0, "warn_z": 3.0, "min_cohort": 8}
    group = np.zeros(len(values), dtype=np.intp)
    straight = deviation(x, group, **options)
    assert deviation(x[order], group, **options) == pytest.approx(straight[order])


@given(st.lists(unit, min_size=6, max_size=6), st.integers(0, 5), st.floats(0, 1))
def test_a_worse_signal_never_raises_health(values, at, factor):
    subs = np.array([values])
    worse = subs.copy()
    worse[0, at] *= factor
    options = {"weights": [1, 2, 3, 1, 5, 1], "category_of": [0, 0, 1, 1, 2, 2], "categories": 3}
    better_value, _ = weakest(category_scores(subs, **options))
    worse_value, _ = weakest(category_scores(worse, **options))
    if np.isnan(better_value[0]):
        assert np.isnan(worse_value[0])
    else:
        assert worse_value[0] <= better_value[0] + 1e-12


@given(st.lists(st.lists(unit, min_size=3, max_size=3), min_size=1, max_size=12))
def test_one_node_alone_and_in_a_fleet_score_the_same(rows):
    subs = np.array(rows)
    options = {"weights": [1, 2, 1], "category_of": [0, 0, 1], "categories": 2}
    together = category_scores(subs, **options)
    for at in range(len(rows)):
        assert category_scores(subs[at : at + 1], **options) == pytest.approx(
            together[at : at + 1], nan_ok=True
        )


def test_the_worst_part_decides_for_its_node():
    parts = np.array([[1.0, np.nan], [0.2, np.nan], [0.9, 0.5]])
    node = per_node(parts, node_of=np.array([0, 0, 1]), nodes=3)
    assert node[0, 0] == 0.2
    assert np.isnan(node[0, 1])
    assert node[1].tolist() == [0.9, 0.5]
    value, worst = weakest(node)
    assert np.isnan(value[2])
    assert worst[2] == -1


def test_serving_takes_the_geometric_mean_and_a_zero_stays_zero():
    assert geometric(np.array([[0.25, 1.0, np.nan]]))[0] == pytest.approx(0.5)
    assert geometric(np.array([[0.0, 1.0]]))[0] == 0.0


def take(counters, value, at_s):
    return counters.take(np.array([[value]]), rows=np.array([True]), at_s=at_s)[0, 0]


def test_a_counter_that_goes_down_has_no_rate_for_that_interval():
    counters = Counters(1, 1, 600.0)
    assert np.isnan(take(counters, 1000.0, 0.0))
    assert take(counters, 1010.0, 10.0) == 10.0
    assert np.isnan(take(counters, 5.0, 20.0))
    assert counters.rates()[0, 0] == pytest.approx(1.0)
    take(counters, 25.0, 30.0)
    assert counters.rates()[0, 0] == pytest.approx(1.5)


def test_blanks_change_the_resolution_of_a_rate_and_not_its_value():
    counters = Counters(1, 1, 600.0)
    for at in range(20):
        take(counters, float("nan") if at % 2 else at * 70.0, at * 7.0)
    assert counters.rates()[0, 0] == pytest.approx(10.0)


def test_what_left_the_window_no_longer_counts():
    counters = Counters(1, 1, 60.0)
    take(counters, 0.0, 0.0)
    take(counters, 1e6, 1.0)
    for at in range(20):
        take(counters, 1e6, 20.0 * (at + 1))
    assert counters.rates()[0, 0] == 0.0
