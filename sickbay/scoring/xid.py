"""What an Xid means for the node: whose fault it is, how bad, and the first treatment.

Codes of an application never fail a node. Codes that follow from another are attached to it. A code
nobody described is a warning and never more.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.scoring.xid_table import ROWS

OFF_BUS = 79
RECOVERY_ACTION = 154
NVLINK_REGISTERS = 74
NVLINK5 = range(144, 151)


class XidGate(StrEnum):
    """What one occurrence does.

    `fatal`: a hard fail. `soft`: lowers its category. `suspect`: as soft, but lower, because the
    line names hardware and could not be decoded. `application`: a note for the job. `note`:
    recorded only. `unknown`: a warning.
    """

    FATAL = "fatal"
    SOFT = "soft"
    SUSPECT = "suspect"
    APPLICATION = "application"
    NOTE = "note"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class XidMeaning:
    """One row of the table, in sickbay's words."""

    code: int
    gate: XidGate
    category: Category
    severity: Severity
    treatment: Treatment | None
    says: str


@dataclass(frozen=True)
class XidLine:
    """One kernel line that carries an Xid. `bus_id` is `dddd:bb:dd`; `pid` names the victim."""

    bus_id: str
    code: int
    pid: str
    text: str


_CATEGORY = {
    "memory_hw": Category.MEMORY,
    "nvlink": Category.INTERCONNECT,
    "gpu_hw": Category.COMPUTE,
    "firmware_driver": Category.SOFTWARE,
}
_APPLICATION = frozenset({"app", "app_or_copy_engine", "secondary_or_app"})
_GATES = {
    "FATAL": XidGate.FATAL,
    "SOFT": XidGate.SOFT,
    "FATAL_IF": XidGate.SUSPECT,
    "REPEAT": XidGate.APPLICATION,
    "NONE": XidGate.NOTE,
}
_TREATMENTS = {
    "RESET_GPU": Treatment.RESET,
    "WORKFLOW_XID_48": Treatment.RESET,
    "WORKFLOW_NVLINK_ERR": Treatment.RESET,
    "WORKFLOW_NVLINK5_ERR": Treatment.RESET,
    "RESTART_BM": Treatment.REBOOT,
    "RESTART_VM": Treatment.REBOOT,
}
_TREATMENT_OF = {
    # NVIDIA says reset, then RMA; sickbay goes to the swap, as for the remap-failure flag.
    64: Treatment.SWAP,
    63: Treatment.RESET,
    94: Treatment.RESET,
}
# The whole GPU or node is gone or untrusted: waiting for the job's end protects nothing.
_CRITICAL = frozenset({46, 54, 62, 79, 95, 109, 119, 120, 140, 142, 143, 158, 167})

CONSEQUENCES: dict[int, frozenset[int]] = {
    43: frozenset(),
    45: frozenset(),
    94: frozenset({48, 140}),
    154: frozenset(),
    171: frozenset({48}),
    172: frozenset({48}),
}
"""Codes that follow from another one on the same node; an empty set means from any fatal code."""


def _meaning(row: tuple[int, str, str, str, str]) -> XidMeaning:
    code, attribution, gate_word, immediate, says = row
    gate = _GATES[gate_word]
    if attribution in _APPLICATION:
        gate = XidGate.APPLICATION
    return XidMeaning(
        code=code,
        gate=gate,
        category=_CATEGORY.get(attribution, Category.SOFTWARE),
        severity=_severity(code, gate),
        treatment=_TREATMENT_OF.get(code, _TREATMENTS.get(immediate)),
        says=says,
    )


def _severity(code: int, gate: XidGate) -> Severity:
    if gate is XidGate.FATAL:
        return Severity.CRITICAL if code in _CRITICAL else Severity.MAJOR
    if gate is XidGate.SUSPECT:
        return Severity.MAJOR
    return Severity.WARNING if gate is XidGate.SOFT else Severity.INFO


TABLE: dict[int, XidMeaning] = {row[0]: _meaning(row) for row in ROWS}


def meaning_of(code: int) -> XidMeaning:
    """The meaning of a code; one outside the table is unknown, a warning without a gate."""
    unknown = XidMeaning(
        code, XidGate.UNKNOWN, Category.SOFTWARE, Severity.WARNING, None, "not in the catalogue"
    )
    return TABLE.get(code, unknown)


def is_consequence(code: int, causes: Iterable[int]) -> bool:
    """Whether `code` follows from one of the codes `causes` seen on the same node."""
    if code not in CONSEQUENCES:
        return False
    roots = CONSEQUENCES[code]
    return any(
        cause in roots if roots else meaning_of(cause).gate is XidGate.FATAL
        for cause in causes
        if cause != code
    )


# Without the look-behind NVSwitch lines (SXid, another number space) would match.
_XID = re.compile(
    r"(?<![A-Za-z])Xid \((?:PCI:)?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?"
    r"(?: GPU-I:\d+)?\): (\d+)",
    re.IGNORECASE,
)
_PID = re.compile(r"\bpid='?(\d+)'?")
# The driver says this without any Xid too.
_FELL_OFF = re.compile(
    r"NVRM:.*?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?.*fallen off the bus",
    re.IGNORECASE,
)
_ACTION = re.compile(r"recovery action changed from 0x[0-9a-f]+.*? to 0x([0-9a-f]+)", re.IGNORECASE)
_REGISTERS = re.compile(r"\b0x([0-9a-f]+)", re.IGNORECASE)


def bus_id_of(domain: str, bus: str, device: str) -> str:
    """Bus id as `dddd:bb:dd` in lower case, whatever the width of the domain."""
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"


def parse_line(message: str) -> XidLine | None:
    """The Xid in a kernel line, None for any other line. Lines without a device are not guessed."""
    pid = _PID.search(message)
    victim = pid.group(1) if pid else ""
    if match := _XID.search(message):
        domain, bus, device, code = match.groups()
        return XidLine(bus_id_of(domain, bus, device), int(code), victim, message)
    if match := _FELL_OFF.search(message):
        return XidLine(bus_id_of(*match.groups()), OFF_BUS, victim, message)
    return None


def recovery_code(text: str) -> int | None:
    """The new recovery action of an Xid 154 line, None when the line does not say."""
    match = _ACTION.search(text)
    return int(match.group(1), 16) if match else None


def gate_of(line: XidLine) -> XidGate:
    """What this line does, its registers and its wording taken into account."""
    if line.code == NVLINK_REGISTERS:
        return _nvlink_gate(line.text)
    if line.code in NVLINK5 and "nonfatal" in line.text.lower().replace("-", ""):
        return XidGate.SOFT
    if line.code in NVLINK5 and re.search(r"\bfatal\b", line.text, re.IGNORECASE):
        return XidGate.FATAL
    if line.code == RECOVERY_ACTION:
        # The recovery action itself is a signal of the page and a hard fail there.
        return XidGate.NOTE
    return meaning_of(line.code).gate


_IGNORED_FIRST = {0, 23, 30}
_SECONDARY_FIRST = {1, 20}
_REPEAT_FIRST = {4, 5, 27, 29}


def _nvlink_gate(text: str) -> XidGate:
    """Xid 74 by its first register; a line without registers stays a suspicion."""
    tail = text.split(":", maxsplit=1)[-1]
    registers = [int(word, 16) for word in _REGISTERS.findall(tail)]
    if not registers:
        return XidGate.SUSPECT
    first = {bit for bit in range(32) if registers[0] >> bit & 1}
    serious = first - _IGNORED_FIRST - _SECONDARY_FIRST - _REPEAT_FIRST
    if serious:
        return XidGate.FATAL
    if first & _REPEAT_FIRST or any(registers[1:]):
        return XidGate.SOFT
    return XidGate.NOTE
