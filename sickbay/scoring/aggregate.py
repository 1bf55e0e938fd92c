"""Sub-scores to health: weighted mean inside a category, weakest link or product across them."""

from collections.abc import Sequence

import numpy as np

from sickbay.scoring.shapes import Floats, Ints


def category_scores(
    scores: Floats, *, weights: Sequence[float], category_of: Sequence[int], categories: int
) -> Floats:
    """Weighted mean of the evaluated sub-scores of each category: rows by categories.

    NaN where a row has none. Only weights of evaluated signals count, so that what nobody could
    judge neither lowers nor raises a category.
    """
    weight = np.asarray(weights, dtype=np.float64)
    members = np.zeros((len(weights), categories))
    members[np.arange(len(weights)), np.asarray(category_of, dtype=np.intp)] = weight
    known = np.isfinite(scores)
    total = known.astype(np.float64) @ members
    summed = np.where(known, scores, 0.0) @ members
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, summed / total, np.nan)


def per_node(part_scores: Floats, *, node_of: Ints, nodes: int) -> Floats:
    """The worst part decides for its node, category by category: nodes by categories."""
    worst = np.full((nodes, part_scores.shape[1]), np.inf)
    np.minimum.at(worst, node_of, np.where(np.isfinite(part_scores), part_scores, np.inf))
    return np.where(np.isfinite(worst), worst, np.nan)


def weakest(category: Floats) -> tuple[Floats, Ints]:
    """Minimum over categories and its position, for training. NaN and -1 where nothing is known."""
    filled = np.where(np.isfinite(category), category, np.inf)
    where = np.argmin(filled, axis=1)
    value = filled[np.arange(len(filled)), where]
    known = np.isfinite(value)
    return np.where(known, value, np.nan), np.where(known, where, -1)


def geometric(category: Floats) -> Floats:
    """Geometric mean over the known categories, for serving weights."""
    known = np.isfinite(category)
    count = known.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(known, np.log(np.where(known, category, 1.0)), 0.0).sum(axis=1)
        return np.where(count > 0, np.exp(logs / count), np.nan)


def confidence(fresh: Ints, wanted: Ints) -> Floats:
    """Fresh wanted signals over wanted signals; nothing wanted means nothing is known: 0."""
    return np.where(wanted > 0, fresh / np.maximum(wanted, 1), 0.0)
