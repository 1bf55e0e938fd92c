"""From columns to category scores and confidence: the whole pool in one pass of numpy."""

from dataclasses import dataclass

import numpy as np

from sickbay.domain.node import Category
from sickbay.scoring import aggregate, shapes
from sickbay.scoring.columns import Columns
from sickbay.scoring.ruleset import RuleSet, Shape, SignalRule
from sickbay.scoring.shapes import Bools, Floats, Ints

CATEGORIES = tuple(Category)
_HOUR_S = 3600.0


@dataclass(frozen=True)
class PoolScores:
    """What one pass found.

    `sub` is rows by (signals, then soft events per category, then suspect ones); `part_category`
    rows by categories; `category` nodes by categories; `value` and `worst` per node, NaN and -1
    where nothing is known; `serving` the geometric mean; `fresh` tells which nodes' sources are.
    """

    sub: Floats
    part_category: Floats
    category: Floats
    value: Floats
    worst: Ints
    serving: Floats
    confidence: Floats
    fresh: Bools


def score(
    columns: Columns,
    rules: RuleSet,
    *,
    soft: Floats,
    suspect: Floats,
    at_s: float,
    freshness_s: float,
    time_scale: float,
) -> PoolScores:
    """Score every part and node of a pool.

    Args:
        columns: the readings.
        rules: the rule set.
        soft: rows by categories, the score of a soft event there, NaN where there is none.
        suspect: the same for suspect events.
        at_s: the present moment in epoch seconds.
        freshness_s: how long ago a source's liveness may have changed.
        time_scale: seconds of the fleet per second of the clock; rates are of the fleet's time.
    """
    fresh = at_s - columns.fresh_at <= freshness_s
    row_fresh = fresh[columns.node_of]
    values = np.where(row_fresh[:, None], columns.values, np.nan)
    sub = np.concatenate([sub_scores(columns, rules, values, time_scale), soft, suspect], axis=1)
    sub[~row_fresh] = np.nan
    part_category = _part_category(sub, rules)
    category = aggregate.per_node(part_category, node_of=columns.node_of, nodes=len(columns.nodes))
    value, worst = aggregate.weakest(category)
    return PoolScores(
        sub=sub,
        part_category=part_category,
        category=category,
        value=value,
        worst=worst,
        serving=aggregate.geometric(category),
        confidence=_confidence(columns, rules, values),
        fresh=fresh,
    )


def _part_category(sub: Floats, rules: RuleSet) -> Floats:
    count = len(CATEGORIES)
    category_of = [CATEGORIES.index(rule.category) for rule in rules.signals]
    weights = [
        *(rule.weight for rule in rules.signals),
        *[rules.events.soft_weight] * count,
        *[rules.events.suspect_weight] * count,
    ]
    return aggregate.category_scores(
        sub,
        weights=weights,
        category_of=[*category_of, *range(count), *range(count)],
        categories=count,
    )


def sub_scores(columns: Columns, rules: RuleSet, values: Floats, time_scale: float) -> Floats:
    """One sub-score per part and signal, NaN where it is not evaluated."""
    rates = columns.counters.rates() / time_scale
    load = values[:, rules.position(rules.load.signal)]
    with np.errstate(invalid="ignore"):
        idle = ~(load >= rules.load.at_least)
    out = np.full(values.shape, np.nan)
    for at, rule in enumerate(rules.signals):
        x = values[:, at]
        if at in columns.counter_at:
            rate = rates[:, columns.counter_at.index(at)]
            x = np.where(np.isfinite(x), rate, np.nan) * (_HOUR_S if rule.per_hour else 1.0)
        out[:, at] = _shaped(rule, x, groups=columns.group_of, idle=idle)
    return out


def _shaped(rule: SignalRule, x: Floats, *, groups: Ints, idle: Bools) -> Floats:
    match rule.shape:
        case Shape.RAMP:
            return shapes.ramp(x, warn=rule.warn, crit=rule.crit)
        case Shape.BITS:
            return shapes.bits(x, mask=rule.mask)
        case Shape.PEER:
            return shapes.peer(
                np.where(idle, np.nan, x),
                groups,
                warn=rule.warn,
                crit=rule.crit,
                min_effect=rule.min_effect,
                min_cohort=rule.min_cohort,
                low_is_bad=rule.low_is_bad,
            )
        case _:
            return np.full(x.shape, np.nan)


def _confidence(columns: Columns, rules: RuleSet, values: Floats) -> Floats:
    wanted_of = np.array([rule.wanted for rule in rules.signals])
    wanted = wanted_of[None, :] & ~columns.unsupported
    had = wanted & np.isfinite(values)
    nodes = len(columns.nodes)
    wanted_sum = np.bincount(columns.node_of, weights=wanted.sum(axis=1), minlength=nodes)
    had_sum = np.bincount(columns.node_of, weights=had.sum(axis=1), minlength=nodes)
    return aggregate.confidence(had_sum.astype(np.intp), wanted_sum.astype(np.intp))
