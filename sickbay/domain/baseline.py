"""The reference a node class is measured against: a floor, a cohort's median, a fraction of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Baseline:
    """What a class owes on one measurement: an absolute floor and a fraction of its median."""

    floor: float
    fraction_of_median: float
    minimum_cohort: int = 5

    def limit(self, cohort: Sequence[float]) -> float:
        """The larger of the floor and the fraction of the median decides; few peers, the floor."""
        if len(cohort) < self.minimum_cohort:
            return self.floor
        return max(self.floor, self.fraction_of_median * median(cohort))

    def holds(self, measured: float, *, cohort: Sequence[float]) -> bool:
        """Whether a measurement reaches the limit."""
        return measured >= self.limit(cohort)
