"""Management controllers of the simulated fleet: one Redfish service for all its nodes."""
