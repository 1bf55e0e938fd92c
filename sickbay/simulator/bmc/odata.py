"""The two OData documents that a Redfish service shows anybody: what there is, of which types."""

from typing import Any

from starlette.responses import Response

from sickbay.simulator.bmc.messages import HEADERS, ROOT

METADATA = f"{ROOT}/$metadata"
_PARTS = ("Systems", "Managers", "Chassis", "UpdateService", "TaskService", "SessionService")
_SCHEMAS = (
    *("ComputerSystemCollection", "ManagerCollection", "ChassisCollection"),
    *("SoftwareInventoryCollection", "TaskCollection", "SessionCollection"),
    *("ServiceRoot", "ComputerSystem", "Manager", "Chassis", "UpdateService"),
    *("SoftwareInventory", "TaskService", "Task", "SessionService", "Session"),
)
_WHERE = "http://redfish.dmtf.org/schemas/v1"


def service_document() -> dict[str, Any]:
    """The service document."""
    parts = [{"name": "Service", "kind": "Singleton", "url": f"{ROOT}/"}]
    parts += [{"name": n, "kind": "Singleton", "url": f"{ROOT}/{n}"} for n in _PARTS]
    return {"@odata.context": METADATA, "value": parts}


def metadata_document() -> Response:
    """The metadata document: references to the published schemas, and the root as container."""
    references = "".join(
        f'<edmx:Reference Uri="{_WHERE}/{name}_v1.xml"><edmx:Include Namespace="{name}"/>'
        "</edmx:Reference>"
        for name in _SCHEMAS
    )
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0">'
        f"{references}<edmx:DataServices>"
        '<Schema xmlns="http://docs.oasis-open.org/odata/ns/edm" Namespace="Service">'
        '<EntityContainer Name="Service" Extends="ServiceRoot.v1_16_0.ServiceContainer"/>'
        "</Schema></edmx:DataServices></edmx:Edmx>"
    )
    return Response(body, media_type="application/xml", headers=HEADERS)
