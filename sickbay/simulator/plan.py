"""The seeded plan of faults that come by themselves."""

from collections.abc import Mapping
from dataclasses import dataclass

from sickbay.simulator.config import DEFAULT_WEIGHTS, FaultPlan, SimulatorConfig
from sickbay.simulator.draws import Draws
from sickbay.simulator.kinds import FaultKind
from sickbay.simulator.treatments import Treatments
from sickbay.simulator.world import NotNow, World

MOST = 100_000


@dataclass(frozen=True)
class Planned:
    """One fault of the plan: when and what; where is decided when it comes."""

    at_h: float
    kind: FaultKind


def planned(config: SimulatorConfig, *, draws: Draws) -> list[Planned]:
    """The whole plan of a configuration, in order of time: the same for the same seed."""
    plan = config.faults
    rng = draws.keyed("faults", "plan")
    weights = {FaultKind(k): v for k, v in plan.weights.items()} or dict(DEFAULT_WEIGHTS)
    times = [rng.uniform(plan.start_after_h, plan.until_h) for _ in range(plan.count)]
    kinds = dealt(weights, count=plan.count)
    rng.shuffle(kinds)
    arrivals = _arrivals(plan, draws=draws)
    kinds += rng.choices(list(weights), list(weights.values()), k=len(arrivals))
    pairs = zip([*times, *arrivals], kinds, strict=True)
    return sorted((Planned(at_h, kind) for at_h, kind in pairs), key=lambda fault: fault.at_h)


def dealt(weights: Mapping[FaultKind, float], *, count: int) -> list[FaultKind]:
    """So many kinds in the shares of the weights, by largest remainder; no luck is in it.

    Drawn one by one, a rare kind would be missing from every other short plan.
    """
    whole = sum(weights.values())
    exact = {kind: count * weight / whole for kind, weight in weights.items()}
    counts = {kind: int(share) for kind, share in exact.items()}
    by_remainder = sorted(exact, key=lambda kind: counts[kind] - exact[kind])
    for kind in by_remainder[: count - sum(counts.values())]:
        counts[kind] += 1
    return [kind for kind, number in counts.items() for _ in range(number)]


def _arrivals(plan: FaultPlan, *, draws: Draws) -> list[float]:
    rng = draws.keyed("faults", "arrivals")
    times: list[float] = []
    at_h = plan.start_after_h
    while plan.rate_per_h > 0 and len(times) < MOST:
        at_h += rng.expovariate(plan.rate_per_h)
        if at_h > plan.until_h:
            break
        times.append(at_h)
    return times


class PlannedFaults:
    """Lays the faults of the plan over healthy nodes, those hit least first."""

    def __init__(self, world: World, *, treatments: Treatments) -> None:
        self.world = world
        self._treatments = treatments
        self._plan = planned(world.config, draws=world.draws)
        world.handlers["planned_fault"] = self._due
        self._next()

    def _next(self) -> None:
        done = self.world.numbers.get("planned", 0)
        if done < len(self._plan):
            self.world.at(self._plan[done].at_h, event="planned_fault")

    def _due(self, _: str) -> None:
        number = self.world.number("planned") - 1
        fault = self._plan[number]
        for name in self._candidates(number, kind=fault.kind):
            try:
                self._treatments.inject(name, kind=fault.kind)
            except NotNow:
                continue
            self.world.numbers[f"hits/{name}"] = self.world.numbers.get(f"hits/{name}", 0) + 1
            break
        else:
            self.world.log("fault_skipped", fault=fault.kind, why="no healthy node is up")
        self._next()

    def _candidates(self, number: int, *, kind: FaultKind) -> list[str]:
        """Healthy nodes that are up: unmarked before marked, then by how often they were hit."""
        sick = {defect.node for defect in self.world.defects.values()}
        names = [n for n, node in self.world.nodes.items() if node.up and n not in sick]
        self.world.draws.keyed("faults", "where", number).shuffle(names)

        def rank(name: str) -> tuple[bool, bool, int]:
            node = self.world.nodes[name]
            idle = kind is FaultKind.APP_ERROR and node.job is None
            return bool(node.marks), idle, self.world.numbers.get(f"hits/{name}", 0)

        return sorted(names, key=rank)
