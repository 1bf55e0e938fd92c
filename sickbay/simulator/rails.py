"""The NICs of a node's rails: what slows one down, and what hands do about it.

A slow NIC shows on no page, in no log and in no tool of its own node: data between two nodes moves
as fast as the slowest rail of either lets it.
"""

from collections.abc import Sequence
from typing import Any

from sickbay.simulator.defects import Defect
from sickbay.simulator.fleet import new_nic
from sickbay.simulator.hardware import Nic, Node
from sickbay.simulator.kinds import FaultKind, Work
from sickbay.simulator.world import NotNow, NotThere, World

HALF_RATE = 0.5
ALL = "nics"
CURES = frozenset({Work.RESEATED, Work.CABLE})


def is_nic(slot: str) -> bool:
    """Whether a slot is a NIC's, or means all NICs of the node."""
    return slot.startswith("nic")


def named(node: Node, *, slot: str) -> list[Nic]:
    """The NICs a slot names. Raises `NotThere`."""
    found = [nic for nic in node.nics if slot in {nic.slot, ALL}]
    if not found:
        slots = ", ".join(nic.slot for nic in node.nics)
        raise NotThere(f"{node.name} has no slot {slot!r}: its NICs are {slots}")
    return found


def slow_down(world: World, *, node: Node, slot: str | None) -> dict[str, Any]:
    """One NIC moves data at half its rate from now on.

    Raises:
        NotThere: no such NIC.
        NotNow: every NIC it could hit is slow already.
    """
    rng = world.draws.keyed("faults", "nic", world.numbers.get("fault", 0))
    wanted = named(node, slot=slot) if slot else node.nics
    whole = [nic for nic in wanted if not world.defects_of(node.name, slot=nic.slot)]
    if not whole:
        raise NotNow(f"{node.name}: {slot or 'every NIC'} has a fault already")
    nic = rng.choice(whole)
    kind = FaultKind.SLOW_LINK
    defect_id = f"f{world.number('fault'):04d}"
    defect = Defect(defect_id, kind, node.name, nic.slot, nic.serial, world.now_h, shown=1)
    nic.factor = HALF_RATE
    world.log(
        "fault_injected", node=node.name, slot=nic.slot, fault=kind, id=defect_id, serial=nic.serial
    )
    world.touch(node)
    world.keep_defect(defect)
    return {"id": defect_id, "node": node.name, "slot": nic.slot, "kind": kind}


def handle(world: World, *, node: Node, nics: Sequence[Nic], work: Work | None) -> dict[str, Any]:
    """Put new NICs in (`work` None), or work on those there are; the serials afterwards."""
    old = nics[0].serial
    for nic in nics:
        if work is None:
            at = node.nics.index(nic)
            node.nics[at] = new_nic(
                node.name, slot=nic.slot, generation=nic.generation + 1, draws=world.draws
            )
            serial = node.nics[at].serial
            world.log(
                "part_replaced",
                node=node.name,
                slot=nic.slot,
                old_serial=nic.serial,
                serial=serial,
            )
        else:
            world.log("work_done", node=node.name, slot=nic.slot, work=work, serial=nic.serial)
        if work is None or work in CURES:
            _cure(world, node=node, slot=nic.slot, by="part_replaced" if work is None else work)
    world.touch(node)
    now = named(node, slot=nics[0].slot)[0]
    return {"old_serial": old, "serial": now.serial, "uuid": now.serial}


def _cure(world: World, *, node: Node, slot: str, by: str) -> None:
    for defect in world.defects_of(node.name, slot=slot):
        world.drop_defect(defect)
        world.log(
            "fault_cured", node=node.name, slot=slot, fault=defect.kind, id=defect.id, by=str(by)
        )
    for nic in named(node, slot=slot):
        nic.factor = 1.0
