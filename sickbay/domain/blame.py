"""Blame: what failing nodes have in common, when that is more than chance.

A factor counts only when its carriers fail significantly more than the others: eight failing nodes
that all run the only driver there is have nothing in common.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

SIGNIFICANT = 0.001
"""Chance below which a factor is named, divided by the number of factors looked at."""

MINIMUM_FAILING = 3
"""Fewer failing nodes than this share anything by accident."""


@dataclass(frozen=True)
class CommonFactor:
    """One factor (`driver=550.54`), how many failing carry it, and how likely that is by chance."""

    name: str
    value: str
    failing: int
    carriers: int
    chance: float


def tail(*, population: int, carriers: int, drawn: int, found: int) -> float:
    """Chance that `drawn` nodes taken blindly hold at least `found` of the `carriers`."""
    ways = sum(
        comb(carriers, k) * comb(population - carriers, drawn - k)
        for k in range(found, min(carriers, drawn) + 1)
    )
    return ways / comb(population, drawn)


def common_factor(
    failing: Sequence[Mapping[str, str]], population: Sequence[Mapping[str, str]]
) -> CommonFactor | None:
    """The factor most over-represented among the failing, None when chance explains it.

    Args:
        failing: factors of each failing node; every failing node is in the population too.
        population: factors of all nodes, the failing ones included.
    """
    if len(failing) < MINIMUM_FAILING or len(failing) >= len(population):
        return None
    bad = Counter(item for node in failing for item in node.items())
    carried = Counter(item for node in population for item in node.items())
    found = [
        _weigh(item, count, carried=carried[item], failing=len(failing), nodes=len(population))
        for item, count in bad.items()
    ]
    best = min(found, key=lambda f: (f.chance, -f.failing, f.name, f.value), default=None)
    return best if best is not None and best.chance * len(found) < SIGNIFICANT else None


def _weigh(
    item: tuple[str, str], count: int, *, carried: int, failing: int, nodes: int
) -> CommonFactor:
    name, value = item
    carriers = max(carried, count)
    chance = tail(population=nodes, carriers=carriers, drawn=failing, found=count)
    return CommonFactor(name, value, count, carriers, chance)
