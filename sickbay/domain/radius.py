"""What an act on one node disturbs, and how many such acts a rack or a power unit bears at once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sickbay.domain.node import Node, Treatment

SHARED_POWER = frozenset({Treatment.POWER_CYCLE, Treatment.REFLASH})


class Load(StrEnum):
    """What strains the power and cooling that nodes share."""

    RESET = "reset"
    POWER_CYCLE = "power_cycle"
    STRESS = "stress"


SAID = {Load.RESET: "resets", Load.POWER_CYCLE: "power cycles", Load.STRESS: "stress runs"}


@dataclass(frozen=True)
class Limits:
    """How many of each load may run at once in one rack and on one power unit.

    A load that is not named has no limit there.
    """

    per_rack: Mapping[Load, int] = field(default_factory=dict)
    per_power_unit: Mapping[Load, int] = field(default_factory=dict)

    def bound(self, load: Load) -> bool:
        """Whether this load has a limit anywhere."""
        return load in self.per_rack or load in self.per_power_unit


@dataclass(frozen=True)
class Lease:
    """One load that runs until `until` at the latest; `holder` is its operation id."""

    holder: str
    load: Load
    node: str
    rack: str
    power_unit: str
    until: datetime


def radius(treatment: Treatment, *, node: Node, fleet: Iterable[Node]) -> tuple[str, ...]:
    """The nodes an act can disturb, sorted; the node itself is always among them.

    Cutting power reaches every node of the same chassis, when the inventory says that nodes share
    one; a reflash is activated by a power cycle. Everything else stays on its node.
    """
    reached = {node.id}
    if treatment in SHARED_POWER and node.chassis:
        reached |= {n.id for n in fleet if n.chassis == node.chassis}
    return tuple(sorted(reached))


def refusal(ask: Lease, *, held: Sequence[Lease], limits: Limits, now: datetime) -> str:
    """Why a load must wait; empty when it may begin.

    A lease that ran out counts no more, and a holder never waits for itself. A place without a
    name is no shared place.
    """
    running = [
        lease
        for lease in held
        if lease.load is ask.load and lease.until > now and lease.holder != ask.holder
    ]
    places = (
        ("rack", ask.rack, limits.per_rack, [x for x in running if x.rack == ask.rack]),
        (
            "power unit",
            ask.power_unit,
            limits.per_power_unit,
            [x for x in running if x.power_unit == ask.power_unit],
        ),
    )
    for what, name, allowed, here in places:
        most = allowed.get(ask.load)
        if name and most is not None and len(here) >= most:
            return f"waits: {len(here)} {SAID[ask.load]} run in {what} {name}"
    return ""
