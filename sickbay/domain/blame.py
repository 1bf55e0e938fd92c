"""Blame: what failing nodes have in common, when that is more than chance.

A factor counts only when its carriers fail significantly more than the others: eight failing nodes
that all run the only driver there is have nothing in common.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
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

    def sentence(self, *, failing: int, nodes: int) -> str:
        """`rack=r7: 38 of 40 failing nodes carry it, and 40 of all 1000`."""
        return (
            f"{self.name}={self.value}: {self.failing} of {failing} failing nodes carry it, "
            f"and {self.carriers} of all {nodes}"
        )


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
    return common_of_counts(
        counted(failing), failing=len(failing), carried=counted(population), nodes=len(population)
    )


def common_of_counts(
    bad: Mapping[str, Mapping[str, int]],
    *,
    failing: int,
    carried: Mapping[str, Mapping[str, int]],
    nodes: int,
) -> CommonFactor | None:
    """As `common_factor`, from counts: per factor and value, how many carry it.

    A factor whose base rate nobody knows (it is not in `carried`) is never named: what all failing
    nodes share may be shared by every other node too.
    """
    if failing < MINIMUM_FAILING or failing >= nodes:
        return None
    found = [
        _weigh((name, value), count, carried=carried[name][value], failing=failing, nodes=nodes)
        for name, values in bad.items()
        for value, count in values.items()
        if carried.get(name, {}).get(value, 0) >= count
    ]
    best = min(found, key=lambda f: (f.chance, -f.failing, f.name, f.value), default=None)
    return best if best is not None and best.chance * len(found) < SIGNIFICANT else None


def counted(nodes: Iterable[Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """Per factor and value, how many of the nodes carry it."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        for name, value in node.items():
            counts[name][value] += 1
    return {name: dict(values) for name, values in counts.items()}


def _weigh(
    item: tuple[str, str], count: int, *, carried: int, failing: int, nodes: int
) -> CommonFactor:
    name, value = item
    chance = tail(population=nodes, carriers=carried, drawn=failing, found=count)
    return CommonFactor(name, value, count, carried, chance)
