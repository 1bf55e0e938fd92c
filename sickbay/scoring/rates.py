"""Counters to rates, over a sliding window, on columns.

A counter that goes down was reset: that interval has no rate. A gap in the samples is one long
interval, so that half the samples missing changes the resolution and not the rate.
"""

from dataclasses import dataclass, field

import numpy as np

from sickbay.scoring.shapes import Bools, Floats

_BUCKETS = 6


@dataclass
class Counters:
    """The last value of each counter and its growth over the window, rows by columns.

    Args:
        rows: number of parts.
        columns: number of counters.
        window_s: length of the window in seconds.
    """

    rows: int
    columns: int
    window_s: float
    value: Floats = field(init=False)
    at: Floats = field(init=False)
    _growth: Floats = field(init=False)
    _time: Floats = field(init=False)
    _bucket: int = field(init=False, default=0)
    _bucket_from: float = field(init=False, default=-np.inf)

    def __post_init__(self) -> None:
        shape = (self.rows, self.columns)
        self.value = np.full(shape, np.nan)
        self.at = np.full(shape, np.nan)
        self._growth = np.zeros((_BUCKETS, *shape))
        self._time = np.zeros((_BUCKETS, *shape))

    def take(self, new: Floats, *, rows: Bools, at_s: float) -> Floats:
        """Take new values of some rows; the growth of each since its last one, NaN where unknown.

        Args:
            new: rows by columns, NaN where there is no number.
            rows: which rows were read now.
            at_s: time of the sample in seconds, never going back.
        """
        self._turn(at_s)
        read = np.isfinite(new) & rows[:, None]
        with np.errstate(invalid="ignore"):
            growth = np.where(read, new - self.value, np.nan)
            growth = np.where(growth < 0, np.nan, growth)
            known = np.isfinite(growth)
            self._growth[self._bucket] += np.where(known, growth, 0.0)
            self._time[self._bucket] += np.where(known, at_s - self.at, 0.0)
        self.value = np.where(read, new, self.value)
        self.at = np.where(read, at_s, self.at)
        return growth

    def rates(self) -> Floats:
        """Growth per second over the window, NaN where no interval is known."""
        total = self._time.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(total > 0, self._growth.sum(axis=0) / total, np.nan)

    def forget(self, rows: Bools) -> None:
        """Start these rows anew: their next values are references, not growth."""
        self.value[rows] = np.nan
        self.at[rows] = np.nan
        self._growth[:, rows] = 0.0
        self._time[:, rows] = 0.0

    def copy_row(self, row: int, other: "Counters", *, source: int) -> None:
        """Take over the reference value of one part; its window starts anew."""
        self.value[row] = other.value[source]
        self.at[row] = other.at[source]

    def _turn(self, at_s: float) -> None:
        if at_s - self._bucket_from < self.window_s / _BUCKETS:
            return
        self._bucket_from = at_s
        self._bucket = (self._bucket + 1) % _BUCKETS
        self._growth[self._bucket] = 0.0
        self._time[self._bucket] = 0.0
