"""Blame: what failing nodes have in common, and which of two nodes makes a run of both fail.

A factor counts only when its carriers fail significantly more than the others: eight failing nodes
that all run the only driver there is have nothing in common. One failing pair blames nobody: it
takes a third partner.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
class PairRun:
    """One run across two nodes. `good` is None when nothing was measured."""

    one: str
    other: str
    good: bool | None

    @property
    def pair(self) -> frozenset[str]:
        """The two nodes, in no order."""
        return frozenset((self.one, self.other))


@dataclass(frozen=True)
class PairBlame:
    """What a table of pairs says: nodes that work, nodes to blame, and paths to blame.

    A path is two nodes that each work with another one and fail together: neither is at fault.
    """

    good: frozenset[str] = frozenset()
    bad: frozenset[str] = frozenset()
    paths: frozenset[frozenset[str]] = frozenset()


def blame_pairs(runs: Sequence[PairRun]) -> PairBlame:
    """Who is at fault, by a table of pairs; the last measured run of a pair counts.

    A node that worked with anybody works. In a failing pair with a node that works the other one is
    to blame. Where nobody is known to work, a node is to blame when it failed with two partners or
    more and no failing pair near it is without it: one cause explains all that was seen.
    """
    last = {run.pair: run.good for run in runs if run.good is not None and len(run.pair) > 1}
    good = frozenset(node for pair, ok in last.items() if ok for node in pair)
    failing = [pair for pair, ok in last.items() if not ok]
    paths = frozenset(pair for pair in failing if pair <= good)
    bad = {node for pair in failing if len(pair & good) == 1 for node in pair - good}
    open_pairs = [pair for pair in failing if not pair & good and not pair & bad]
    for near in _neighbourhoods(open_pairs):
        common = frozenset.intersection(*near)
        if len(near) > 1 and len(common) == 1:
            bad |= common
    return PairBlame(good, frozenset(bad), paths)


def _neighbourhoods(pairs: Sequence[frozenset[str]]) -> list[list[frozenset[str]]]:
    """Pairs that share nodes, directly or through others, put together."""
    found: list[list[frozenset[str]]] = []
    for pair in pairs:
        touching = [near for near in found if any(pair & known for known in near)]
        joined = [pair, *(known for near in touching for known in near)]
        found = [near for near in found if near not in touching] + [joined]
    return found


def next_pair(
    runs: Sequence[PairRun], *, suspect: str, partners: Collection[str]
) -> tuple[str, str] | None:
    """The pair whose run tells more about the suspect; None when it is decided or nobody is left.

    Partners known to work come first, then in the order given.
    """
    told = blame_pairs(runs)
    if suspect in told.good | told.bad:
        return None
    tried = {node for run in runs if suspect in run.pair for node in run.pair}
    left = [p for p in partners if p != suspect and p not in tried and p not in told.bad]
    left.sort(key=lambda p: p not in told.good)
    return (suspect, left[0]) if left else None
