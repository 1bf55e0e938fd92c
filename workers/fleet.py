"""Which nodes there are: the simulated fleet's inventory, kept in the store."""

from sickbay.domain.node import Node, Part, PartKind
from sickbay.readers.parts import bus_id
from sickbay.store.records import StoreRecords
from workers.wiring import Outside


async def load_inventory(out: Outside, records: StoreRecords) -> tuple[Node, ...]:
    """Book the fleet's nodes; parts already on record keep their history."""
    answer = await out.http.get(f"{out.base_url}/inventory")
    answer.raise_for_status()
    nodes = tuple(_node(row) for row in answer.json()["nodes"])
    await records.sync_inventory(nodes)
    return await records.nodes()


def _node(row: dict[str, object]) -> Node:
    parts = row["parts"]
    if not isinstance(parts, list):
        parts = []
    return Node(
        id=str(row["node"]),
        pool=str(row["pool"]),
        group=str(row["group"]),
        rack=str(row["rack"]),
        node_class=str(row["node_class"]),
        chassis=str(row.get("chassis", "")),
        power_unit=str(row.get("power_unit", "")),
        parts=tuple(
            Part(
                slot=str(p["slot"]),
                kind=PartKind(str(p["kind"])),
                uuid=str(p["uuid"]),
                serial=str(p["serial"]),
                bus_id=bus_id(str(p["bus_id"])) or "",
            )
            for p in parts
        ),
    )
