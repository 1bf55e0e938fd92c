"""Management controllers that speak Redfish, behind the Bmc and Firmware ports."""

from sickbay.adapters.redfish.connection import Access, Connections
from sickbay.adapters.redfish.firmware import RedfishFirmware
from sickbay.adapters.redfish.power import RedfishPower

__all__ = ["Access", "Connections", "RedfishFirmware", "RedfishPower"]
