"""The kernel's log of each node: what the GPU driver prints, in its own grammar.

The variety is meant: with and without a pid, quoted unknowns, the off-bus sentence without a code.
"""

from dataclasses import dataclass, field
from typing import Any

from sickbay.simulator.hardware import Gpu, Job

KERNEL = "kernel"
PROGRAM = "stdout"
ERROR_PRIORITY = "3"
INFO_PRIORITY = "6"
# What one node keeps; older records rotate away.
KEPT = 2000
_UNKNOWN = "pid='<unknown>', name=<unknown>"
_ACTIONS = {0: "None", 1: "GPU Reset Required", 2: "Node Reboot Required"}


@dataclass(frozen=True)
class Record:
    """One record of a node's journal."""

    number: int
    realtime_us: int
    monotonic_us: int
    boot_id: str
    transport: str
    identifier: str
    priority: str
    message: str

    @property
    def cursor(self) -> str:
        """Opaque to readers, as the gateway's is."""
        mixed = self.number * 2654435761 & 0xFFFFFFFF
        return (
            f"s=51c6ba1e;i={self.number:x};b={self.boot_id.replace('-', '')};"
            f"m={self.monotonic_us:x};t={self.realtime_us:x};x={mixed:x}"
        )

    def fields(self, hostname: str) -> dict[str, Any]:
        """Field names and values as the journal gateway exports them."""
        return {
            "__CURSOR": self.cursor,
            "__REALTIME_TIMESTAMP": str(self.realtime_us),
            "__MONOTONIC_TIMESTAMP": str(self.monotonic_us),
            "_BOOT_ID": self.boot_id.replace("-", ""),
            "_TRANSPORT": self.transport,
            "_HOSTNAME": hostname,
            "SYSLOG_IDENTIFIER": self.identifier,
            "PRIORITY": self.priority,
            "MESSAGE": self.message,
        }


@dataclass
class Journal:
    """The records of one node, oldest first, and the number of the next."""

    records: list[Record] = field(default_factory=list)
    next_number: int = 1

    def add(
        self,
        message: str,
        *,
        boot_id: str,
        wall: float,
        booted_at: float,
        transport: str = KERNEL,
        priority: str = ERROR_PRIORITY,
    ) -> Record:
        """Write one record."""
        stamp_us = round(wall * 1e6)
        if self.records:
            # Two lines of one moment still have an order in the kernel's own clock.
            stamp_us = max(stamp_us, self.records[-1].realtime_us + 7)
        record = Record(
            number=self.next_number,
            realtime_us=stamp_us,
            monotonic_us=max(0, stamp_us - round(booted_at * 1e6)),
            boot_id=boot_id,
            transport=transport,
            identifier=KERNEL if transport == KERNEL else "python",
            priority=priority,
            message=message,
        )
        self.next_number += 1
        self.records.append(record)
        if len(self.records) > KEPT:
            del self.records[: KEPT // 4]
        return record


def xid(gpu: Gpu, *, code: int, text: str, job: Job | None = None) -> str:
    """One Xid line; the pid is that of the job it hit."""
    who = f"pid={job.pid}, name=python" if job else _UNKNOWN
    return f"NVRM: Xid (PCI:{_bus(gpu)}): {code}, {who}, {text}"


def dbe(gpu: Gpu) -> str:
    """The text of Xid 48."""
    return (
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at"
        f" physAddr {_address(gpu):#x} partition {_address(gpu) % 20}, subpartition"
        f" {_address(gpu) % 4}."
    )


def row(gpu: Gpu) -> str:
    """The text of Xid 63."""
    row_at = f"{_address(gpu):#018x}"
    return f"Row Remapper: New row ({row_at}) marked for remapping, reset gpu to activate."


def row_failed(gpu: Gpu) -> str:
    """The text of Xid 64."""
    return f"Row Remapper: Failed to remap row ({_address(gpu):#018x}), no spare row is left."


def gsp(gpu: Gpu) -> str:
    """The text of Xid 119."""
    return (
        f"Timeout after 6s of waiting for RPC response from GPU{gpu.index or 0} GSP! Expected"
        " function 76 (GSP_RM_CONTROL) (0x2080014b 0x5)."
    )


def link_down(link: int) -> str:
    """The text of Xid 74; bit 16 of the first register asks to look at the link itself."""
    return f"NVLink: fatal error detected on link {link}(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"


def recovery(gpu: Gpu, *, before: int, after: int) -> str:
    """Xid 154: the driver's advice changed."""
    return (
        f"NVRM: Xid (PCI:{_bus(gpu)}): 154, GPU recovery action changed from"
        f" {before:#x} ({_ACTIONS[before]}) to {after:#x} ({_ACTIONS[after]})"
    )


def off_bus(gpu: Gpu, *, job: Job | None) -> list[str]:
    """What is printed when a GPU stops answering, aftermath included."""
    who = f"pid={job.pid}, name=python, " if job else ""
    bus = _bus(gpu)
    return [
        f"NVRM: Xid (PCI:{bus}): 79, {who}GPU has fallen off the bus.",
        f"NVRM: GPU {bus}.0: GPU has fallen off the bus.",
        f"NVRM: GPU {bus}.0: GPU serial number is 0.",
    ]


_MMU_FAULT = (
    "Ch 00000010, intr 00000000. MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted @"
    " 0x7f29_5b8c9000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
)
APP_LINES = (
    (13, "Graphics SM Warp Exception on (GPC 4, TPC 2, SM 1): Out Of Range Address"),
    (31, _MMU_FAULT),
    (43, "Ch 00000018"),
)


def _bus(gpu: Gpu) -> str:
    """The kernel's spelling: four-digit domain, lower case, no function."""
    domain, bus, device = gpu.bus_id.removesuffix(".0").split(":")
    return f"{domain[-4:]}:{bus}:{device}".lower()


def _address(gpu: Gpu) -> int:
    return int(gpu.serial) * 4096 % 0x23_0000_0000
