"""What the GPU driver says in a kernel log: which event is the cause, and whose fault each is.

Events of one GPU are one incident: clean-up codes, details and the recovery action are attached to
their cause. Application codes never blame hardware. NVSwitch lines (SXid) count in another number
space and are an echo while a GPU's own cause is there. Only what opens a message counts: a victim's
name may hold any text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers.conclusion import tool_finding
from sickbay.scoring.xid import (
    NVLINK5,
    NVLINK_REGISTERS,
    OFF_BUS,
    RECOVERY_ACTION,
    XidGate,
    XidLine,
    bus_id_of,
    gate_of,
    is_consequence,
    meaning_of,
)

_BUS = r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?"
_XID = re.compile(
    rf"(?:NVRM: )?Xid \((?:PCI:)?{_BUS}(?: GPU-I:\d+)?\): (\d+)(?=[,\s]|$),? ?(.*)",
    re.IGNORECASE,
)
_SXID = re.compile(
    rf"nvidia-nvswitch\d+: SXid \(PCI:{_BUS}\): (\d+), *(Fatal|Non-?fatal)\b", re.IGNORECASE
)
_FELL_OFF = re.compile(
    rf"NVRM: GPU (?:at )?(?:PCI:)?{_BUS}:? (?:GPU )?has fallen off the bus", re.IGNORECASE
)
# The driver's sentence about a GPU it cannot use runs over several lines.
_SENTENCE = re.compile(rf"NVRM: The NVIDIA (?:probed )?GPU {_BUS}(.*)", re.IGNORECASE)
_SENTENCE_LINES = 4
_ANNOUNCED = re.compile(rf"NVRM: GPU at PCI:{_BUS}: GPU-", re.IGNORECASE)
_INIT_FAILED = re.compile(rf"NVRM: GPU {_BUS}: RmInitAdapter failed", re.IGNORECASE)
_LOST_SOMEWHERE = re.compile(r"NVRM: .*\[?NV_ERR_GPU_IS_LOST", re.IGNORECASE)
_UVM_FATAL = re.compile(r"NVRM: .*uvm encountered global fatal error", re.IGNORECASE)
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
# Xid 149 with a link that went down: the reason is in bits 20-25 of the first register (the same
# for drivers before and after R575). These two ask for nothing (NVIDIA's decode table).
_LINK_DOWN = re.compile(r"NETIR_LINK_(?:EVT|DOWN)\b.*?\(0x([0-9a-f]{8})\b", re.IGNORECASE)
_LINK_DOWN_IGNORED = {0b100110, 0b101000}
_NVLINK_EVENT = 149
# A remap record beside the error that made it, and details of that error.
_ATTACHED = {63: {48, 94, 95, 140, 64}, 171: {48}, 172: {48}}
_NVLINK_CODES = {NVLINK_REGISTERS, OFF_BUS, 155, *NVLINK5}
_ORDER = (XidGate.FATAL, XidGate.SUSPECT, XidGate.SOFT)
_MOST_GPUS = 1_024
_DETAIL_CHARS = 300


@dataclass
class _Gpu:
    """What the log says of one GPU, in order of appearance."""

    lines: dict[int, str] = field(default_factory=dict)
    gates: dict[int, XidGate] = field(default_factory=dict)
    action: int | None = None
    action_line: str = ""
    named_causes: set[int] = field(default_factory=set)
    fell_off: bool = False
    init_failed: str = ""

    def note(self, code: int, gate: XidGate, text: str) -> None:
        """Keep the worst line of each code."""
        known = self.gates.get(code)
        if known is None or (gate in _ORDER and _rank(gate) < _rank(known)):
            self.gates[code], self.lines[code] = gate, text

    @property
    def is_lost(self) -> bool:
        return self.fell_off or OFF_BUS in self.gates


@dataclass
class DriverLog:
    """Everything the GPU driver and the switch driver said; fed message by message."""

    _gpus: dict[str, _Gpu] = field(default_factory=dict)
    _switches: dict[tuple[str, int], tuple[bool, str]] = field(default_factory=dict)
    _sentence: tuple[str, str, int] | None = None
    _announced: str | None = None
    _lost_somewhere: str = ""
    _uvm_fatal: str = ""

    def feed(self, message: str) -> None:
        """Take one message of the kernel."""
        if self._sentence is not None:
            self._continue(message)
        if found := _XID.match(message):
            self._xid(found)
        elif found := _SXID.match(message):
            key = (bus_id_of(*found.groups()[:3]), int(found[4]))
            fatal = found[5].lower() == "fatal"
            if len(self._switches) < _MOST_GPUS and not self._switches.get(key, (False,))[0]:
                self._switches[key] = (fatal, message)
        elif message.startswith("NVRM: "):
            self._sentences(message)

    def findings(self) -> tuple[list[Finding], list[Finding]]:
        """What was found, and what is worth keeping but changes no verdict."""
        lost = any(g.is_lost for g in self._gpus.values())
        found = [f for part, gpu in self._gpus.items() for f in _findings(part, gpu, lost=lost)]
        if not any(f.severity is Severity.CRITICAL for f in found):
            found += self._of_the_node()
        echo = lost or any(_NVLINK_CODES & g.gates.keys() for g in self._gpus.values())
        remarks = [f for part, gpu in self._gpus.items() for f in _link_notes(part, gpu)]
        for (part, code), (fatal, text) in self._switches.items():
            if fatal and not echo:
                found.append(_switch(part, code, text, Severity.MAJOR))
            elif not fatal:
                remarks.append(_switch(part, code, text, Severity.WARNING))
        return found, remarks

    def unfinished(self) -> Finding | None:
        """A sentence about a GPU that the log breaks off before it says what happened."""
        if self._sentence is not None:
            part, text, _ = self._sentence
            return tool_finding("truncated", f"the log ends inside: {text}", part)
        if self._announced is not None:
            return tool_finding("truncated", "the log ends before the event", self._announced)
        return None

    def _xid(self, found: re.Match[str]) -> None:
        code, text = int(found[4]), _short(found[0])
        gpu = self._gpu(found)
        if code == RECOVERY_ACTION:
            action = _ACTION.search(text)
            gpu.action = int(action[1], 16) if action else gpu.action
            gpu.action_line = text
            return
        gpu.note(code, _gate(code, text), text)
        gpu.named_causes.update(int(m[1]) for m in _CAUSED_BY.finditer(text))

    def _sentences(self, message: str) -> None:
        if found := _FELL_OFF.match(message):
            self._gpu(found).fell_off = True
        elif found := _INIT_FAILED.match(message):
            self._gpu(found).init_failed = message
        elif found := _ANNOUNCED.match(message):
            self._announced = bus_id_of(*found.groups())
        elif found := _SENTENCE.match(message):
            self._sentence = (bus_id_of(*found.groups()[:3]), found[4].strip(), _SENTENCE_LINES)
            self._judge_sentence()
        elif _LOST_SOMEWHERE.match(message):
            self._lost_somewhere = message
        elif _UVM_FATAL.match(message):
            self._uvm_fatal = message

    def _continue(self, message: str) -> None:
        """Put the next line of a sentence to it; other messages may stand between."""
        part, text, left = self._sentence or ("", "", 0)
        if message.startswith("NVRM: ") and not _XID.match(message):
            text = f"{text} {message.removeprefix('NVRM: ')}"
        self._sentence = (part, text, left - 1)
        self._judge_sentence()

    def _judge_sentence(self) -> None:
        part, text, left = self._sentence or ("", "", 0)
        if "fallen off the bus" in text.lower():
            self._gpus.setdefault(part, _Gpu()).fell_off = True
            self._sentence = None
        elif left <= 0 or text.rstrip().endswith("."):
            self._sentence = None

    def _gpu(self, found: re.Match[str]) -> _Gpu:
        part = bus_id_of(found[1], found[2], found[3])
        if part == self._announced:
            self._announced = None
        if len(self._gpus) >= _MOST_GPUS and part not in self._gpus:
            return _Gpu()
        return self._gpus.setdefault(part, _Gpu())

    def _of_the_node(self) -> list[Finding]:
        """What the driver says without naming a GPU, while no GPU explains it."""
        if self._lost_somewhere:
            return [_gpu_lost(None, self._lost_somewhere)]
        if self._uvm_fatal:
            kind, reboot = FindingKind.HARDWARE, Treatment.REBOOT
            text = _short(self._uvm_fatal)
            return [
                Finding(None, "uvm_fatal", Severity.MAJOR, kind, reboot, Category.SOFTWARE, text)
            ]
        return []


def _gate(code: int, text: str) -> XidGate:
    down = _LINK_DOWN.search(text) if code == _NVLINK_EVENT else None
    if down and (int(down[1], 16) >> 20 & 0x3F) in _LINK_DOWN_IGNORED:
        return XidGate.SOFT
    return gate_of(XidLine("", code, "", text))


def _findings(part: str, gpu: _Gpu, *, lost: bool) -> list[Finding]:
    """The causes on one GPU, then what belongs to its jobs."""
    fatal = [c for c, gate in gpu.gates.items() if gate in {XidGate.FATAL, XidGate.SUSPECT}]
    causes = [_cause(part, code, gpu) for code in gpu.gates if _is_cause(code, gpu, fatal)]
    if gpu.fell_off and OFF_BUS not in gpu.gates:
        causes.append(_gpu_lost(part, "the GPU has fallen off the bus"))
    if not causes and _NVLINK_EVENT in gpu.named_causes:
        causes.append(_named_cause(part, gpu))
    if not causes and gpu.init_failed:
        causes.append(_init_failed(part, gpu.init_failed))
    if causes:
        causes = [_with_action(cause, gpu, lost=lost) for cause in causes]
    else:
        causes = _action(part, gpu, lost=lost)
    return causes + [_note(part, code, gpu) for code in gpu.gates if _is_note(gpu.gates[code])]


def _is_cause(code: int, gpu: _Gpu, fatal: Sequence[int]) -> bool:
    gate = gpu.gates[code]
    if gate in {XidGate.FATAL, XidGate.SUSPECT}:
        # Of the codes that end a GPU, the loss of the GPU explains the rest.
        return code == OFF_BUS or not gpu.is_lost
    if gate is not XidGate.SOFT or is_consequence(code, fatal):
        return False
    if code in NVLINK5:
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
        gpu.lines[code],
    )


def _with_action(cause: Finding, gpu: _Gpu, *, lost: bool) -> Finding:
    """The cause with what the driver asks for, when that is more than what its code asks for.

    When one GPU of a node is lost the driver asks every one for a reboot, which says nothing then.
    """
    asked = _ACTIONS.get(gpu.action or 0)
    if asked is Treatment.REBOOT and cause.treatment is Treatment.RESET and not lost:
        return replace(cause, treatment=asked)
    return replace(cause, treatment=asked) if cause.treatment is None else cause


def _note(part: str, code: int, gpu: _Gpu) -> Finding:
    """A job's own error, or a code nobody described."""
    application = gpu.gates[code] is XidGate.APPLICATION
    return Finding(
        part,
        f"xid_{code}",
        Severity.INFO if application else Severity.WARNING,
        FindingKind.APPLICATION if application else FindingKind.TOOL,
        detail=gpu.lines[code],
    )


def _link_notes(part: str, gpu: _Gpu) -> list[Finding]:
    """NVLink events the driver calls non-fatal: a link to watch, nothing to be done."""
    kind, category = FindingKind.HARDWARE, Category.INTERCONNECT
    return [
        Finding(part, f"xid_{code}", Severity.WARNING, kind, None, category, gpu.lines[code])
        for code, gate in gpu.gates.items()
        if code in NVLINK5 and gate is XidGate.SOFT and not gpu.is_lost
    ]


def _named_cause(part: str, gpu: _Gpu) -> Finding:
    """A clean-up line names an NVLink event whose own line is not in the log."""
    known = meaning_of(_NVLINK_EVENT)
    line = next(text for text in gpu.lines.values() if _CAUSED_BY.search(text))
    kind, reason = FindingKind.HARDWARE, f"xid_{_NVLINK_EVENT}"
    return Finding(part, reason, Severity.MAJOR, kind, known.treatment, known.category, line)


def _gpu_lost(part: str | None, detail: str) -> Finding:
    known = meaning_of(OFF_BUS)
    kind, treatment = FindingKind.HARDWARE, known.treatment or Treatment.REBOOT
    text = _short(detail)
    return Finding(part, "gpu_lost", Severity.CRITICAL, kind, treatment, known.category, text)


def _init_failed(part: str, line: str) -> Finding:
    kind, treatment = FindingKind.HARDWARE, Treatment.REBOOT
    category = Category.COMPUTE
    return Finding(part, "gpu_init_failed", Severity.MAJOR, kind, treatment, category, _short(line))


def _action(part: str, gpu: _Gpu, *, lost: bool) -> list[Finding]:
    """The last recovery action of a GPU without a cause of its own."""
    if not gpu.action:
        return []
    treatment = _ACTIONS.get(gpu.action)
    if lost and treatment is Treatment.REBOOT:
        return []
    kind, reason = FindingKind.HARDWARE, f"xid_{RECOVERY_ACTION}"
    category = Category.COMPUTE
    return [Finding(part, reason, Severity.MAJOR, kind, treatment, category, gpu.action_line)]


def _switch(part: str, code: int, text: str, severity: Severity) -> Finding:
    """An event of an NVSwitch: a fatal one isolates what hangs on it (DCGM's error 15)."""
    kind = FindingKind.HARDWARE
    return Finding(part, f"sxid_{code}", severity, kind, None, Category.FABRIC, _short(text))


def _rank(gate: XidGate) -> int:
    return _ORDER.index(gate) if gate in _ORDER else len(_ORDER)


def _short(line: str) -> str:
    return " ".join(line.split())[:_DETAIL_CHARS]
