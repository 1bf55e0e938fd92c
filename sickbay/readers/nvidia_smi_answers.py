"""What `nvidia-smi` answers in sentences: errors, `-L`, resets, MIG changes, one-column tables.

Error text goes to standard output, and most queries end at the first GPU that is lost: nothing is
said of the others then. A refused reset is no statement about the hardware, a done one neither.
"""

import re
from collections.abc import Mapping, Sequence

from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.node import Category, Part, PartKind, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers.conclusion import conclude, first_line, tool_finding
from sickbay.readers.parts import bus_id

TOOL = "nvidia-smi"

_BUS = r"([0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_HANDLE = re.compile(
    rf"unable to determine the device handle for gpu\s*{_BUS}\s*:\s*([^\n]*)", re.IGNORECASE
)
_LISTED = re.compile(r"^[ \t]*GPU (\d+): .*\(UUID: (GPU-[0-9a-f-]+)\)", re.MULTILINE)
_RESET_DONE = re.compile(rf"GPU {_BUS} was successfully reset", re.IGNORECASE)
# Sentences about one GPU that say nothing of its hardware.
_REFUSALS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (rf"GPU {_BUS}: In use by another client", "reset_refused_in_use"),
        (rf"GPU {_BUS} is currently in use by another process", "reset_refused_in_use"),
        (rf"because GPU {_BUS} is the primary GPU", "reset_refused_primary"),
        (rf"GPU {_BUS}:? .*(?:peer|must be reset together)", "reset_refused_peers"),
        (rf"(?:reset|resetting) .*GPU {_BUS} is not supported", "reset_not_supported"),
        (rf"pending (?:dis|en)able state for GPU {_BUS}", "mig_change_pending"),
        (r"unable to (?:destroy|create) .*?(?:from|on) GPU\s+(\d+): In use",
         "mig_destroy_refused_in_use"),
    )
)  # fmt: skip
_NOT_RESET = re.compile(rf"^[ \t]*GPU {_BUS}: (?!In use)([^\n]+)", re.IGNORECASE | re.MULTILINE)
_INFOROM = re.compile(rf"inforom is corrupted at gpu {_BUS}", re.IGNORECASE)
_SENTENCES: tuple[tuple[str, str, FindingKind], ...] = (
    ("driver/library version mismatch", "driver_mismatch", FindingKind.CONFIGURATION),
    ("nvmlerror_libraryversionmismatch", "driver_mismatch", FindingKind.CONFIGURATION),
    ("couldn't communicate with the nvidia driver", "driver_unreachable", FindingKind.TOOL),
    ("driver not loaded", "driver_unreachable", FindingKind.TOOL),
    ("insufficient permissions", "no_permission", FindingKind.TOOL),
    ("no devices were found", "no_devices", FindingKind.TOOL),
    ("failed to initialize nvml", "nvml_unavailable", FindingKind.TOOL),
    ("nvml shared library", "nvml_unavailable", FindingKind.TOOL),
    ("nvmlerror_uninitialized", "nvml_unavailable", FindingKind.TOOL),
)
# NVML's words about a GPU that the text does not name.
_UNNAMED_LOST = ("gpu is lost", "gpuislost", "gpu_is_lost")
_UNNAMED_RESET = ("gpu requires reset", "gpu requires a reset", "resetrequired", "reset_required")
# Exit statuses are NVML's return codes; told when the text tells nothing.
_EXIT_LOST, _EXIT_NEEDS_RESET, _EXIT_POWER, _EXIT_INFOROM = 15, 16, 8, 14
_EXITS = {
    3: "not_supported",
    4: "no_permission",
    6: "no_devices",
    9: "driver_unreachable",
    12: "nvml_unavailable",
    13: "nvml_unavailable",
    18: "driver_mismatch",
}
_LONGEST_LINE = 2_000
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
    # No sentence is that long; the rest of a line without an end is not searched.
    text = "\n".join(line[:_LONGEST_LINE] for line in text.splitlines())
    found = [_handle(bus_id(m[1]), m[2], m[0].strip()) for m in _HANDLE.finditer(text)]
    for pattern, reason in _REFUSALS:
        found += [tool_finding(reason, m[0], bus_id(m[1]) or m[1]) for m in pattern.finditer(text)]
    if "could not be reset" in text:
        failed = _NOT_RESET.finditer(text)
        found += [tool_finding("reset_failed", m[2], bus_id(m[1])) for m in failed]
    found += [
        _fault("corrupt_inforom", Severity.WARNING, None, m[0], bus_id(m[1]))
        for m in _INFOROM.finditer(text)
    ]
    if not found:
        found += _unnamed(text)
    lowered = text.lower()
    # A handle that was refused says already why.
    said = [(reason, kind) for sign, reason, kind in _SENTENCES if sign in lowered][:1]
    if not any(f.reason == reason for f in found for reason, _ in said):
        found += [_unavailable(reason, kind, first_line(text)) for reason, kind in said]
    return found


def _handle(part: str | None, why: str, detail: str) -> Finding:
    """A GPU the driver knows and gives no handle for."""
    said = why.lower()
    if "reset" in said and "lost" not in said:
        return _fault("gpu_requires_reset", Severity.MAJOR, Treatment.RESET, detail, part)
    if "permission" in said:
        return tool_finding("no_permission", detail, part)
    return lost_finding(part, detail)


def _unnamed(text: str) -> list[Finding]:
    """What NVML says of a GPU without naming it."""
    for line in text.splitlines():
        said = line.lower()
        if "nvml" not in said:
            continue
        if any(words in said for words in _UNNAMED_LOST):
            return [lost_finding(None, line.strip())]
        if any(words in said for words in _UNNAMED_RESET):
            detail = line.strip()
            return [_fault("gpu_requires_reset", Severity.MAJOR, Treatment.RESET, detail, None)]
    return []


def _fault(
    reason: str, severity: Severity, treatment: Treatment | None, detail: str, part: str | None
) -> Finding:
    kind, category = FindingKind.HARDWARE, Category.COMPUTE
    return Finding(part, reason, severity, kind, treatment, category, detail[:300])


def _unavailable(reason: str, kind: FindingKind, detail: str) -> Finding:
    """Something of the software that keeps every GPU unknown."""
    return Finding(None, reason, Severity.WARNING, kind, category=Category.SOFTWARE, detail=detail)


def _of_exit(exit_code: int | None, text: str) -> list[Finding]:
    """What an exit status says when the text says nothing."""
    if exit_code in {0, None}:
        return []
    detail = f"exit status {exit_code}: {first_line(text)}"
    if exit_code == _EXIT_LOST:
        return [lost_finding(None, detail)]
    if exit_code == _EXIT_NEEDS_RESET:
        return [_fault("gpu_requires_reset", Severity.MAJOR, Treatment.RESET, detail, None)]
    if exit_code == _EXIT_POWER:
        return [_fault("power_cable_missing", Severity.CRITICAL, None, detail, None)]
    if exit_code == _EXIT_INFOROM:
        return [_fault("corrupt_inforom", Severity.WARNING, None, detail, None)]
    reason = _EXITS.get(exit_code or 0, "tool_error")
    if reason == "driver_mismatch":
        return [_unavailable(reason, FindingKind.CONFIGURATION, detail)]
    return [tool_finding(reason, detail)]


def read_answer(
    text: str,
    *,
    exit_code: int | None,
    expected: Sequence[Part] = (),
    gpus: int | None = None,
) -> Reading:
    """What an answer in sentences, or the list of `-L`, means.

    Args:
        text: what was printed.
        exit_code: the exit status, None when it is not known.
        expected: the parts on record; a GPU of them that a whole list does not name is lost.
        gpus: GPUs the node class has, None when nobody says.
    """
    findings = of_text(text)
    listed = {m[2].lower(): int(m[1]) for m in _LISTED.finditer(text)}
    lost = any(f.reason == "gpu_lost" for f in findings)
    if listed and not lost and exit_code in {0, None}:
        missing = _missing(set(listed), expected)
        findings += missing or _holes(listed, gpus)
    done = _RESET_DONE.search(text)
    if done:
        # It says that the act was done, nothing of the GPU's health.
        findings.append(tool_finding("reset_done", done[0], bus_id(done[1])))
    if not findings:
        findings += _of_exit(exit_code, text)
    passed = f"{len(listed)} GPUs answer" if listed else None
    if not findings and passed is None:
        findings.append(tool_finding("tool_error", first_line(text)))
    return conclude(TOOL, text, findings, passed=passed)


def read_listed(text: str) -> tuple[str, ...]:
    """The UUIDs that a list of `-L` names, in its order: the GPUs that still answer."""
    return tuple(m[2] for m in _LISTED.finditer(text))


def lost_gpus(text: str) -> tuple[str, ...]:
    """The bus ids of the GPUs that a text says are lost: others may well answer when asked."""
    return tuple(f.part for f in of_text(text) if f.reason == "gpu_lost" and f.part)


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


def _holes(listed: Mapping[str, int], gpus: int | None) -> list[Finding]:
    """A list that does not name every GPU: by the class's count, or by a number left out."""
    count = len(listed)
    if gpus is not None and count > gpus:
        return [tool_finding("class_mismatch", f"{count} GPUs, the class has {gpus}")]
    if gpus is not None and count < gpus:
        detail = f"{count} of {gpus} GPUs are listed"
        return [_fault("gpu_missing", Severity.CRITICAL, Treatment.REBOOT, detail, None)]
    if set(listed.values()) != set(range(count)):
        return [tool_finding("gpus_not_listed", f"numbers up to {max(listed.values())}, {count}")]
    return []


def _missing(listed: set[str], expected: Sequence[Part]) -> list[Finding]:
    return [
        lost_finding(bus_id(p.bus_id) or p.uuid, f"the GPU of {p.slot} is not listed")
        for p in expected
        if p.kind is PartKind.GPU and p.uuid.lower() not in listed
    ]
