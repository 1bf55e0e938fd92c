"""Which slot of a node a tool means: tools name GPUs by index, bus id, UUID or serial."""

import re

from sickbay.domain.node import Node, PartKind

_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE)


def bus_id(text: str) -> str | None:
    """A bus id as `dddd:bb:dd` in lower case, whatever its spelling; None when it is none.

    An unprinted domain is 0000.
    """
    found = _BUS.fullmatch(text.strip())
    if found is None:
        return None
    domain, bus, device = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}"


def slot_of(node: Node, part: str | None) -> str | None:
    """The slot a finding's part names, None for the node itself or an unknown part.

    An index counts the node's GPUs in the order of their bus ids, as the driver does. It drifts
    while a GPU is lost, so readers give bus ids where the tool prints them.
    """
    if not part:
        return None
    known = node.find_part(part)
    if known is not None:
        return known.slot
    wanted = bus_id(part)
    if wanted is not None:
        return next((p.slot for p in node.parts if bus_id(p.bus_id) == wanted), None)
    if part.isdecimal():
        gpus = [p for p in node.parts if p.kind is PartKind.GPU]
        if all(p.bus_id for p in gpus):
            gpus.sort(key=lambda p: bus_id(p.bus_id) or p.bus_id)
        return gpus[int(part)].slot if int(part) < len(gpus) else None
    return None
