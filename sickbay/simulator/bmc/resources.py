"""The resources of one node as its management controller shows them."""

from datetime import UTC, datetime
from typing import Any

from sickbay.simulator.bmc.messages import ROOT, link
from sickbay.simulator.hardware import MODEL, Node, Power
from sickbay.simulator.power import ResetType

POWER_STATES = {
    Power.ON: "On",
    Power.OFF: "Off",
    Power.GOING_ON: "PoweringOn",
    Power.GOING_OFF: "PoweringOff",
}
ALLOWED = "ResetType@Redfish.AllowableValues"
MANAGER_RESETS = ("ForceRestart", "GracefulRestart")
OK = {"State": "Enabled", "Health": "OK"}


def root() -> dict[str, Any]:
    """The service root, which anybody may read."""
    return {
        "@odata.id": f"{ROOT}/",
        "@odata.type": "#ServiceRoot.v1_16_0.ServiceRoot",
        "Id": "RootService",
        "Name": "Root Service",
        "RedfishVersion": "1.20.0",
        "UUID": "5f3c2c3e-3f0f-5d1c-9d5e-0c0ffee00001",
        "Product": "Simulated management controllers",
        "ProtocolFeaturesSupported": {
            "ExpandQuery": {"ExpandAll": False, "Levels": True, "Links": False, "NoLinks": True},
            "FilterQuery": False,
            "OnlyMemberQuery": False,
            "SelectQuery": False,
        },
        "Systems": link(f"{ROOT}/Systems"),
        "Managers": link(f"{ROOT}/Managers"),
        "Chassis": link(f"{ROOT}/Chassis"),
        "UpdateService": link(f"{ROOT}/UpdateService"),
        "Tasks": link(f"{ROOT}/TaskService"),
        "SessionService": link(f"{ROOT}/SessionService"),
        "Links": {"Sessions": link(f"{ROOT}/SessionService/Sessions")},
    }


def system(node: Node) -> dict[str, Any]:
    """The computer system of a node."""
    path = f"{ROOT}/Systems/{node.name}"
    on = node.power is Power.ON
    return {
        "@odata.id": path,
        "@odata.type": "#ComputerSystem.v1_22_0.ComputerSystem",
        "Id": node.name,
        "Name": node.name,
        "HostName": node.name,
        "SystemType": "Physical",
        "Manufacturer": "Sickbay Simulated",
        "Model": f"{len(node.gpus)} x {MODEL}",
        "SerialNumber": f"SN-{node.name}",
        "PowerState": POWER_STATES[node.power],
        "LastResetTime": stamp(node.last_reset_at or node.booted_at),
        "BootProgress": {
            "LastState": _boot_state(node),
            "LastStateTime": stamp(max(node.booted_at, node.last_reset_at)),
        },
        "Status": OK if on else {"State": "StandbyOffline", "Health": "OK"},
        "Links": {
            "Chassis": [link(f"{ROOT}/Chassis/{node.name}")],
            "ManagedBy": [link(f"{ROOT}/Managers/{node.name}")],
        },
        "Actions": {
            "#ComputerSystem.Reset": {
                "target": f"{path}/Actions/ComputerSystem.Reset",
                ALLOWED: [str(kind) for kind in ResetType],
            }
        },
    }


def manager(node: Node, *, version: str, now: float) -> dict[str, Any]:
    """The controller itself. `now` in unix seconds."""
    path = f"{ROOT}/Managers/{node.name}"
    return {
        "@odata.id": path,
        "@odata.type": "#Manager.v1_19_0.Manager",
        "Id": node.name,
        "Name": f"Management controller of {node.name}",
        "ManagerType": "BMC",
        "FirmwareVersion": version,
        "DateTime": stamp(now),
        "PowerState": "On",
        "Status": OK,
        "Links": {
            "ManagerForServers": [link(f"{ROOT}/Systems/{node.name}")],
            "ManagerForChassis": [link(f"{ROOT}/Chassis/{node.name}")],
        },
        "Actions": {
            "#Manager.Reset": {
                "target": f"{path}/Actions/Manager.Reset",
                ALLOWED: list(MANAGER_RESETS),
            }
        },
    }


def chassis(node: Node) -> dict[str, Any]:
    """The box, with the rack it stands in."""
    return {
        "@odata.id": f"{ROOT}/Chassis/{node.name}",
        "@odata.type": "#Chassis.v1_25_0.Chassis",
        "Id": node.name,
        "Name": node.name,
        "ChassisType": "RackMount",
        "SerialNumber": f"CH-{node.name}",
        "PowerState": POWER_STATES[node.power],
        "Location": {"Placement": {"Rack": node.rack}},
        "Status": OK,
        "Links": {
            "ComputerSystems": [link(f"{ROOT}/Systems/{node.name}")],
            "ManagedBy": [link(f"{ROOT}/Managers/{node.name}")],
        },
    }


def stamp(wall: float) -> str:
    """Unix seconds as Redfish writes a moment."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")


def _boot_state(node: Node) -> str:
    if node.power is not Power.ON:
        return "None"
    return "OSRunning" if node.up else "OSBootStarted"
