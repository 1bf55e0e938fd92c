"""How a reading becomes a sub-score on 0…1: ramp, peer, bits. NaN in, NaN out.

All functions take numpy columns of any shape, so that one node and 50,000 run the same code.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

MAD_TO_SIGMA = 1.4826
"""Makes the median absolute deviation of a normal distribution its standard deviation."""


def ramp(x: Floats, *, warn: float, crit: float) -> Floats:
    """1 up to `warn`, 0 from `crit` on, straight between; `warn` above `crit` means lower is worse.

    NaN stays NaN: not evaluated.
    """
    return np.clip((crit - x) / (crit - warn), 0.0, 1.0)


def bits(x: Floats, *, mask: int) -> Floats:
    """0 where one of the bits of `mask` is set, 1 where none is."""
    known = np.isfinite(x)
    words = np.where(known, x, 0.0).astype(np.int64)
    return np.where(known, (words & mask == 0).astype(np.float64), np.nan)


def deviation(
    x: Floats, groups: Ints, *, min_effect: float, warn_z: float, min_cohort: int
) -> Floats:
    """Robust z of each value inside its group of peers.

    The scale is 1.4826 MAD, but never so small that a deviation of `min_effect` (in the unit of
    `x`) would exceed `warn_z`: with a zero MAD one event is not infinitely bad. Groups with fewer
    than `min_cohort` numbers are not evaluated.

    Args:
        x: one value per row, NaN where there is none.
        groups: group number per row, negative for a row that has no peers.
        min_effect: smallest absolute deviation that may count at all.
        warn_z: the z at which the ramp begins.
        min_cohort: fewest peers, the row itself included.
    """
    z = np.full(x.shape, np.nan)
    rows = np.flatnonzero(np.isfinite(x) & (groups >= 0))
    if not rows.size:
        return z
    order = rows[np.argsort(groups[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    for members in np.split(order, starts[1:]):
        if members.size < min_cohort:
            continue
        values = x[members]
        middle = np.median(values)
        spread = MAD_TO_SIGMA * np.median(np.abs(values - middle))
        z[members] = (values - middle) / max(float(spread), min_effect / warn_z)
    return z


def peer(
    x: Floats,
    groups: Ints,
    *,
    warn: float,
    crit: float,
    min_effect: float,
    min_cohort: int,
    low_is_bad: bool,
) -> Floats:
    """Sub-score by distance from the peers' median, in robust z, on the bad side only."""
    z = deviation(x, groups, min_effect=min_effect, warn_z=warn, min_cohort=min_cohort)
    return ramp(-z if low_is_bad else z, warn=warn, crit=crit)
