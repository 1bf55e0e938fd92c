"""What `nvidia-smi` answers in sentences: errors, `-L`, resets, MIG changes, one-column tables.

Error text goes to standard output, and most queries end at the first GPU that is lost: nothing is
said of the others then. A refused reset is no statement about the hardware, a done one neither.
"""

import re
from collections.abc import Sequence

from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.node import Category, Part, PartKind, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers.conclusion import conclude, first_line, tool_finding
from sickbay.readers.parts import bus_id

TOOL = "nvidia-smi"

_BUS = r"([0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_LOST = re.compile(
    rf"unable to determine the device handle for gpu\s*{_BUS}\s*:\s*([^\n]*)", re.IGNORECASE
)
_LISTED = re.compile(r"^\s*GPU (\d+): .*\(UUID: (GPU-[0-9a-f-]+)\)", re.MULTILINE)
_IN_USE = (
    re.compile(rf"GPU {_BUS}: In use by another client", re.IGNORECASE),
    re.compile(rf"GPU {_BUS} is currently in use by another process", re.IGNORECASE),
)
_MIG_PENDING = re.compile(rf"pending (?:dis|en)able state for GPU {_BUS}", re.IGNORECASE)
_MIG_IN_USE = re.compile(
    r"unable to (?:destroy|create) .*?(?:from|on) GPU\s+(\d+): In use", re.IGNORECASE
)
_RESET_DONE = re.compile(rf"GPU {_BUS} was successfully reset", re.IGNORECASE)
_ACTION_ROW = re.compile(r"^\s*(\d+)\s*,\s*(None|Reset|Reboot|Drain P2P|Drain and Reset)\s*$",
                         re.MULTILINE)  # fmt: skip
_SENTENCES: tuple[tuple[str, str, FindingKind], ...] = (
    ("driver/library version mismatch", "driver_mismatch", FindingKind.CONFIGURATION),
    ("couldn't communicate with the nvidia driver", "driver_unreachable", FindingKind.TOOL),
    ("failed to initialize nvml", "nvml_unavailable", FindingKind.TOOL),
    ("insufficient permissions", "no_permission", FindingKind.TOOL),
    ("no devices were found", "no_devices", FindingKind.TOOL),
)
# A shell's exit status of a tool that a signal ended.
_SIGNALLED = range(129, 160)


def lost_finding(part: str | None, detail: str) -> Finding:
    """A GPU the driver cannot reach any more."""
    return Finding(
        part,
        "gpu_lost",
        Severity.CRITICAL,
        FindingKind.HARDWARE,
        Treatment.REBOOT,
        Category.COMPUTE,
        detail[:300],
    )


def of_text(text: str) -> list[Finding]:
    """What the sentences in a text say, each once per part."""
    found = [lost_finding(bus_id(m[1]), m[0].strip()) for m in _LOST.finditer(text)]
    for pattern in _IN_USE:
        found += [
            tool_finding("reset_refused_in_use", m[0], bus_id(m[1])) for m in pattern.finditer(text)
        ]
    found += [
        tool_finding("mig_change_pending", m[0], bus_id(m[1])) for m in _MIG_PENDING.finditer(text)
    ]
    found += [
        tool_finding("mig_destroy_refused_in_use", m[0], m[1]) for m in _MIG_IN_USE.finditer(text)
    ]
    lowered = text.lower()
    said = [(reason, kind) for sign, reason, kind in _SENTENCES if sign in lowered][:1]
    for reason, kind in said:
        found.append(
            Finding(
                None,
                reason,
                Severity.WARNING,
                kind,
                category=Category.SOFTWARE,
                detail=first_line(text),
            )
        )
    return found


def read_answer(text: str, *, exit_code: int | None, expected: Sequence[Part] = ()) -> Reading:
    """What an answer in sentences, or the list of `-L`, means.

    Args:
        text: what was printed.
        exit_code: the exit status, None when it is not known.
        expected: the parts on record; a GPU of them that a whole list does not name is lost.
    """
    findings = of_text(text) + _asked_actions(text)
    listed = {m[2].lower() for m in _LISTED.finditer(text)}
    lost = any(f.reason == "gpu_lost" for f in findings)
    if listed and not lost and exit_code in {0, None}:
        findings += _missing(listed, expected)
    passed = None
    if listed:
        passed = f"{len(listed)} GPUs answer"
    elif _ACTION_ROW.search(text):
        passed = "no GPU asks for an action"
    done = _RESET_DONE.search(text)
    if done:
        # It says that the act was done, nothing of the GPU's health.
        findings.append(tool_finding("reset_done", done[0], bus_id(done[1])))
    if exit_code not in {0, None} and not findings:
        findings.append(tool_finding("tool_error", f"exit status {exit_code}: {first_line(text)}"))
    if not findings and passed is None:
        findings.append(tool_finding("tool_error", first_line(text)))
    return conclude(TOOL, text, findings, passed=passed)


def read_reset(text: str, *, exit_code: int | None) -> Effect:
    """Whether a reset took effect: done, refused (permanent), or not to be known (ambiguous)."""
    reasons = {f.reason for f in of_text(text)}
    done = bool(_RESET_DONE.search(text))
    if done and exit_code == 0:
        return Effect(Outcome.SUCCEEDED, "reset")
    said = f"exit status {exit_code}: {first_line(text)}"
    if done:
        return Effect(Outcome.AMBIGUOUS, said)
    if "reset_refused_in_use" in reasons or "in use by another client" in text.lower():
        return Effect(Outcome.PERMANENT, "refused: the GPU is in use by another client")
    if "gpu_lost" in reasons:
        return Effect(Outcome.PERMANENT, f"refused: the GPU is lost ({first_line(text)})")
    if exit_code in {None, 0} or exit_code in _SIGNALLED:
        return Effect(Outcome.AMBIGUOUS, said)
    return Effect(Outcome.PERMANENT, f"refused: {said}")


def _asked_actions(text: str) -> list[Finding]:
    """Rows `index, action` of `--query-gpu=index,gpu_recovery_action`."""
    found = []
    for match in _ACTION_ROW.finditer(text):
        action = match[2].lower()
        if action == "none":
            continue
        reboot = action == "reboot"
        found.append(
            Finding(
                match[1],
                "recovery_action_" + action.replace(" ", "_"),
                Severity.CRITICAL if reboot else Severity.MAJOR,
                FindingKind.HARDWARE,
                Treatment.REBOOT if reboot else Treatment.RESET,
                Category.COMPUTE,
                f"the driver asks for: {match[2]}",
            )
        )
    return found


def _missing(listed: set[str], expected: Sequence[Part]) -> list[Finding]:
    return [
        lost_finding(bus_id(p.bus_id) or p.uuid, f"the GPU of {p.slot} is not listed")
        for p in expected
        if p.kind is PartKind.GPU and p.uuid.lower() not in listed
    ]
