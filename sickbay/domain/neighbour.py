"""Which node a repair may borrow for a run across two nodes: known good, idle, and not of its own.

The choice is made on what is on record; whether the node is truly idle is the scheduler's to say,
at the moment it is borrowed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from zlib import crc32

from sickbay.domain.health import Standing
from sickbay.domain.node import Node

FULL_HEALTH = 0.7
"""Below this a node is flagged or degraded: a suspicion, though its gate is open."""


@dataclass(frozen=True)
class Bystander:
    """A node of the pool as the records know it. `value` is its health, None when unknown."""

    node: str
    group: str
    rack: str
    node_class: str
    standing: Standing
    value: float | None
    gate_open: bool
    in_repair: bool
    held: bool


@dataclass(frozen=True)
class Borrowed:
    """A neighbour that is ours until a moment, and no longer."""

    node: str
    until: datetime


def neighbours(
    suspect: Node, bystanders: Sequence[Bystander], *, avoid: Collection[str] = ()
) -> tuple[str, ...]:
    """The nodes that may be borrowed for `suspect`, the best first.

    Of the suspect's class and of another group, healthy, without any suspicion, behind an open
    gate; never of a group of which a node is out or borrowed already, so that no group loses two.
    Another rack comes first: a fault of the suspect's own rack then does not hide. Among equals the
    order differs from suspect to suspect, so that two repairs seldom want the same node.
    """
    taken = {b.group for b in bystanders if not b.gate_open or b.in_repair or b.held}
    # A node without a group shares it with nobody.
    taken = (taken | {suspect.group}) - {""}
    fit = [
        b
        for b in bystanders
        if b.node != suspect.id
        and b.node not in avoid
        and b.group not in taken
        and b.gate_open
        and not b.in_repair
        and not b.held
        and b.node_class == suspect.node_class
        and b.standing is Standing.HEALTHY
        and b.value is not None
        and b.value >= FULL_HEALTH
    ]

    def rank(b: Bystander) -> tuple[bool, int, str]:
        return b.rack == suspect.rack, crc32(f"{suspect.id}/{b.node}".encode()), b.node

    return tuple(b.node for b in sorted(fit, key=rank))
