"""Kernel log text: which Xids it holds, which of them is the cause, and whose fault each is.

Events of one GPU are one incident: clean-up codes, details and the recovery action are attached to
their cause. Application codes never blame hardware. NVSwitch lines (SXid) count in another number
space and are an echo while a GPU's own cause is there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers.conclusion import conclude, tool_finding
from sickbay.scoring.xid import (
    OFF_BUS,
    RECOVERY_ACTION,
    XidGate,
    bus_id_of,
    gate_of,
    is_consequence,
    meaning_of,
    parse_line,
)

TOOL = "kernel-log"

_ACTION = re.compile(
    r"recovery action changed(?: from 0x[0-9a-f]+[^)]*\)?)? to 0x([0-9a-f]+)", re.IGNORECASE
)
# NVML's numbers: 1 reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX
# domain, 6 bus reset, 7 system reboot. The number counts: its wording changed over the releases.
_ACTIONS: Mapping[int, Treatment | None] = {
    1: Treatment.RESET,
    2: Treatment.REBOOT,
    3: Treatment.RESET,
    4: Treatment.RESET,
    5: None,
    6: Treatment.REBOOT,
    7: Treatment.REBOOT,
}
_CAUSED_BY = re.compile(r"caused by previous xid (\d+)", re.IGNORECASE)
_SXID = re.compile(r"SXid \(PCI:([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})[^)]*\): (\d+), *Fatal",
                   re.IGNORECASE)  # fmt: skip
# The driver's sentence about a lost GPU runs over several lines and may carry no Xid at all.
_FELL_OFF = re.compile(
    r"NVRM:[^\n]{0,60}?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?"
    r"(?:(?!Xid|GPU \d|GPU [0-9a-f]{4}:).){0,200}?fallen off the bus",
    re.IGNORECASE | re.DOTALL,
)
_LOG_LINE = re.compile(
    r"^(?:<\d+>|\d+,\d+,\d+,[^;]*;|\[ *\d+\.\d+\]|.* kernel: |kern +:)|NVRM: |\bS?Xid \(",
    re.MULTILINE,
)
# A remap record beside the error that made it, and details of that error.
_ATTACHED = {63: {48, 94, 95, 140, 64}, 171: {48}, 172: {48}}
_NVLINK_EVENT = 149
_DETAIL_CHARS = 300


@dataclass
class _Gpu:
    """What the text says of one GPU, in order of appearance."""

    lines: dict[int, str] = field(default_factory=dict)
    gates: dict[int, XidGate] = field(default_factory=dict)
    action: int | None = None
    action_line: str = ""
    named_causes: set[int] = field(default_factory=set)
    fell_off: bool = False

    def note(self, code: int, gate: XidGate, text: str) -> None:
        """Keep the worst line of each code."""
        order = (XidGate.FATAL, XidGate.SUSPECT, XidGate.SOFT)
        known = self.gates.get(code)
        if known is None or (gate in order and _rank(gate) < _rank(known)):
            self.gates[code], self.lines[code] = gate, text


def read(text: str, *, exit_code: int | None) -> Reading:
    """What kernel log text means: dmesg, journal, syslog or /dev/kmsg form.

    Silence passes only when there was text to read.
    """
    gpus = _gpus(text)
    lost = any(OFF_BUS in g.gates or g.fell_off for g in gpus.values())
    findings = [f for part, gpu in gpus.items() for f in _findings(part, gpu, lost=lost)]
    if not any(f.kind is FindingKind.HARDWARE for f in findings):
        findings += _switches(text)
    if exit_code not in {0, None}:
        findings.append(tool_finding("tool_error", f"exit status {exit_code}"))
    lines = sum(1 for line in text.splitlines() if line.strip())
    return conclude(
        TOOL,
        text,
        findings,
        passed=f"no fault of a GPU in {lines} lines" if lines else None,
    )


def recognises(text: str) -> bool:
    """Whether a text looks like kernel log lines in any of their forms."""
    return bool(_LOG_LINE.search(text))


def _gpus(text: str) -> dict[str, _Gpu]:
    gpus: dict[str, _Gpu] = {}
    for line in text.splitlines():
        found = parse_line(line)
        if found is None or "xid" not in line.lower():
            continue
        gpu = gpus.setdefault(found.bus_id, _Gpu())
        if found.code == RECOVERY_ACTION:
            action = _ACTION.search(line)
            gpu.action = int(action[1], 16) if action else gpu.action
            gpu.action_line = line
            continue
        gpu.note(found.code, gate_of(found), line)
        gpu.named_causes.update(int(m[1]) for m in _CAUSED_BY.finditer(line))
    for match in _FELL_OFF.finditer(text):
        gpus.setdefault(bus_id_of(*match.groups()), _Gpu()).fell_off = True
    return gpus


def _findings(part: str, gpu: _Gpu, *, lost: bool) -> list[Finding]:
    """The causes on one GPU, then what belongs to its jobs."""
    fatal = [c for c, gate in gpu.gates.items() if gate in {XidGate.FATAL, XidGate.SUSPECT}]
    causes = [_cause(part, code, gpu) for code in gpu.gates if _is_cause(code, gpu, fatal)]
    if gpu.fell_off and OFF_BUS not in gpu.gates:
        causes.append(_gpu_lost(part))
    if not causes and _NVLINK_EVENT in gpu.named_causes:
        causes.append(_named_cause(part, gpu))
    notes = [_note(part, code, gpu) for code in gpu.gates if _is_note(gpu.gates[code])]
    if not causes:
        causes += _action(part, gpu, lost=lost)
    return causes + notes


def _is_cause(code: int, gpu: _Gpu, fatal: Sequence[int]) -> bool:
    gate = gpu.gates[code]
    if gate in {XidGate.FATAL, XidGate.SUSPECT}:
        # Of the codes that end a GPU, the loss of the GPU explains the rest.
        return code == OFF_BUS or OFF_BUS not in gpu.gates
    if gate is not XidGate.SOFT or is_consequence(code, fatal):
        return False
    if "nonfatal" in gpu.lines[code].lower().replace("-", ""):
        return False
    return not (_ATTACHED.get(code, set()) & gpu.gates.keys())


def _is_note(gate: XidGate) -> bool:
    return gate in {XidGate.APPLICATION, XidGate.UNKNOWN}


def _cause(part: str, code: int, gpu: _Gpu) -> Finding:
    known = meaning_of(code)
    hard = gpu.gates[code] is XidGate.FATAL
    return Finding(
        part,
        f"xid_{code}",
        known.severity if hard else Severity.WARNING,
        FindingKind.HARDWARE,
        known.treatment,
        known.category,
        _short(gpu.lines[code]),
    )


def _note(part: str, code: int, gpu: _Gpu) -> Finding:
    """A job's own error, or a code nobody described."""
    application = gpu.gates[code] is XidGate.APPLICATION
    return Finding(
        part,
        f"xid_{code}",
        Severity.INFO if application else Severity.WARNING,
        FindingKind.APPLICATION if application else FindingKind.TOOL,
        detail=_short(gpu.lines[code]),
    )


def _named_cause(part: str, gpu: _Gpu) -> Finding:
    """A clean-up line names an NVLink event whose own line is not in the text."""
    known = meaning_of(_NVLINK_EVENT)
    line = next(text for text in gpu.lines.values() if _CAUSED_BY.search(text))
    return Finding(
        part,
        f"xid_{_NVLINK_EVENT}",
        Severity.MAJOR,
        FindingKind.HARDWARE,
        known.treatment,
        known.category,
        _short(line),
    )


def _gpu_lost(part: str) -> Finding:
    known = meaning_of(OFF_BUS)
    return Finding(
        part,
        "gpu_lost",
        Severity.CRITICAL,
        FindingKind.HARDWARE,
        known.treatment or Treatment.REBOOT,
        known.category,
        "the GPU has fallen off the bus",
    )


def _action(part: str, gpu: _Gpu, *, lost: bool) -> list[Finding]:
    """The last recovery action of a GPU without a cause of its own.

    When one GPU of a node is lost the driver asks every other one for a reboot as well.
    """
    if not gpu.action:
        return []
    treatment = _ACTIONS.get(gpu.action)
    if lost and treatment is Treatment.REBOOT:
        return []
    return [
        Finding(
            part,
            f"xid_{RECOVERY_ACTION}",
            Severity.MAJOR,
            FindingKind.HARDWARE,
            treatment,
            Category.COMPUTE,
            _short(gpu.action_line),
        )
    ]


def _switches(text: str) -> list[Finding]:
    """Fatal NVSwitch events without a GPU's own cause: a suspicion, no verdict."""
    return [
        tool_finding(f"sxid_{m[4]}", "fatal NVSwitch event", bus_id_of(m[1], m[2], m[3]))
        for m in _SXID.finditer(text)
    ]


def _rank(gate: XidGate) -> int:
    order = (XidGate.FATAL, XidGate.SUSPECT, XidGate.SOFT)
    return order.index(gate) if gate in order else len(order)


def _short(line: str) -> str:
    return " ".join(line.split())[:_DETAIL_CHARS]
