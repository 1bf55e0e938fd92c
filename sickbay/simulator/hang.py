"""A host that hangs: nothing on the node answers any more, and only its power brings it back.

Its job hangs with it: the scheduler goes on believing in the job until somebody ends it.
"""

from typing import Any

from sickbay.simulator.defects import Defect
from sickbay.simulator.hardware import Node
from sickbay.simulator.kinds import FaultKind
from sickbay.simulator.world import World

SLOT = "host"
# Later than any run: a hung host does not come back by itself.
NEVER_H = 1e9


def hang(world: World, *, node: Node) -> dict[str, Any]:
    """The host stops, its power stays on."""
    kind = FaultKind.HOST_HANG
    defect_id = f"f{world.number('fault'):04d}"
    defect = Defect(defect_id, kind, node.name, SLOT, "", world.now_h, shown=1)
    node.down_until_h = NEVER_H
    world.log("fault_injected", node=node.name, slot=SLOT, fault=kind, id=defect_id, serial="")
    world.touch(node)
    world.keep_defect(defect)
    return {"id": defect_id, "node": node.name, "slot": SLOT, "kind": kind}


def hung(world: World, *, node: Node) -> bool:
    """Whether the node waits for its power."""
    return bool(world.defects_of(node.name, slot=SLOT))


def started(world: World, *, node: Node, by: str) -> None:
    """The node was started by its power: a host that hung runs again."""
    for defect in world.defects_of(node.name, slot=SLOT):
        world.drop_defect(defect)
        world.log("fault_cured", node=node.name, slot=SLOT, fault=defect.kind, id=defect.id, by=by)
