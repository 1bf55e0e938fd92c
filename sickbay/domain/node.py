"""Nodes, parts and the closed lists every other module names things by.

A node's id survives a swap, its parts do not: a new UUID in a slot is a new part with an empty
history.
"""

from dataclasses import dataclass
from enum import StrEnum


class Category(StrEnum):
    """Signals that fail together."""

    COMPUTE = "compute"
    MEMORY = "memory"
    INTERCONNECT = "interconnect"
    FABRIC = "fabric"
    THERMAL = "thermal"
    STORAGE = "storage"
    HOST = "host"
    SOFTWARE = "software"
    PERFORMANCE = "performance"


class Severity(StrEnum):
    """How bad a finding is; `rank` orders them, worst highest."""

    INFO = "info"
    WARNING = "warning"
    MAJOR = "major"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Position in the order info < warning < major < critical."""
        return _RANKS[self]


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


class Treatment(StrEnum):
    """What is done to a node or part to cure it, in the order of the ladder."""

    RESTART_APP = "restart_app"
    RESET = "reset"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    REFLASH = "reflash"
    SWAP = "swap"


class PartKind(StrEnum):
    """What sort of thing sits in a slot."""

    GPU = "gpu"
    NIC = "nic"
    CABLE = "cable"
    NODE = "node"


@dataclass(frozen=True)
class Part:
    """One replaceable thing in one slot of one node.

    `bus_id` is `dddd:bb:dd` in lower case and may drift over boots; `uuid` and `serial` are the
    identity.
    """

    slot: str
    kind: PartKind
    uuid: str
    serial: str
    bus_id: str = ""


@dataclass(frozen=True)
class Node:
    """A chassis under a stable id, with where it stands and what it holds now.

    `chassis` names an enclosure that several nodes share, `power_unit` what feeds it; empty when
    the inventory does not say.
    """

    id: str
    pool: str
    group: str
    rack: str
    node_class: str
    parts: tuple[Part, ...] = ()
    chassis: str = ""
    power_unit: str = ""

    def part_in(self, slot: str) -> Part | None:
        """The part in `slot`, or None when the node has no such slot."""
        return next((part for part in self.parts if part.slot == slot), None)

    def find_part(self, key: str) -> Part | None:
        """The part whose slot, UUID, serial or bus id is `key`."""
        return next((p for p in self.parts if key in {p.slot, p.uuid, p.serial, p.bus_id}), None)
