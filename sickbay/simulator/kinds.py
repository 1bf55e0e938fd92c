"""Names of the fault kinds and what each one means, for people. Behaviour is in `defects`."""

from enum import StrEnum


class FaultKind(StrEnum):
    """What can go wrong with one part of a node of the simulated fleet."""

    REMAP_PENDING = "remap_pending"
    ECC_UNCORRECTABLE = "ecc_uncorrectable"
    ECC_RECURRING = "ecc_recurring"
    REMAP_FAILURE = "remap_failure"
    GSP_HANG = "gsp_hang"
    OFF_BUS = "off_bus"
    OFF_BUS_COLD = "off_bus_cold"
    OFF_BUS_DEAD = "off_bus_dead"
    FIRMWARE_WEDGED = "firmware_wedged"
    MARGINAL_MEMORY = "marginal_memory"
    SLOW_GPU = "slow_gpu"
    THERMAL = "thermal"
    NVLINK_DOWN = "nvlink_down"
    SLOW_LINK = "slow_link"
    HOST_HANG = "host_hang"
    APP_ERROR = "app_error"


class Work(StrEnum):
    """What a technician did that changed no serial number."""

    RESEATED = "reseated"
    CLEANED = "cleaned"
    CABLE = "cable"
    OTHER = "other"


SAYS: dict[FaultKind, str] = {
    FaultKind.REMAP_PENDING: (
        "a memory row is marked for remapping (Xid 63); a GPU reset takes it out of use"
    ),
    FaultKind.ECC_UNCORRECTABLE: (
        "one uncorrectable memory error (Xid 48) ends the job; a GPU reset cures it"
    ),
    FaultKind.ECC_RECURRING: (
        "uncorrectable memory errors that stop after a GPU reset and come back half an hour to two"
        " hours later, or under a memory test; only a new part ends them"
    ),
    FaultKind.REMAP_FAILURE: (
        "no spare row is left (Xid 64) and the failure flag stays; only a new part cures it"
    ),
    FaultKind.GSP_HANG: (
        "the GPU's system processor hangs (Xid 119); a reset does not help, a reboot does"
    ),
    FaultKind.OFF_BUS: "the GPU falls off the bus (Xid 79); a reboot brings it back",
    FaultKind.OFF_BUS_COLD: (
        "the GPU falls off the bus (Xid 79) and is missing after a reboot; it comes back when the"
        " node has been without power"
    ),
    FaultKind.OFF_BUS_DEAD: (
        "the GPU falls off the bus (Xid 79) and never comes back; only a new part cures it"
    ),
    FaultKind.FIRMWARE_WEDGED: (
        "the GPU runs a bad firmware version, trains half of its PCIe lanes and counts NVLink"
        " errors, without any code; no reset, reboot or power cycle holds, flashing the wanted"
        " version does"
    ),
    FaultKind.MARGINAL_MEMORY: (
        "corrected memory errors at a high rate; a short memory test misses it the first time,"
        " repeated or longer ones find it; only a new part cures it"
    ),
    FaultKind.SLOW_GPU: (
        "about 25 % slow under load without any code; a reset does not help, a reboot cures half"
        " of them, else a new part"
    ),
    FaultKind.THERMAL: (
        "overheats under load and slows its clock; cleaning cures it, and so does a new part"
    ),
    FaultKind.NVLINK_DOWN: "one NVLink is down (Xid 74); a GPU reset trains it again",
    FaultKind.SLOW_LINK: (
        "one NIC moves data at half its rate and reports nothing: only a run across two nodes shows"
        " it; reseating or a new NIC cures it"
    ),
    FaultKind.HOST_HANG: (
        "the host hangs: no page, no log and no tool answers, and it comes back only by its power"
    ),
    FaultKind.APP_ERROR: (
        "the job's own error (Xid 13, 31 or 43 with its pid); nothing is wrong with the GPU"
    ),
}
