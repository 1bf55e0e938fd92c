"""`nvidia-smi`: the XML of `-q -x`, `nvlink -s`, and the answer of `--gpu-reset`.

Error text goes to standard output, most queries end when one GPU is lost, and many fields can say
that they are no value.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence

from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.node import Category, Part, PartKind, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading, Verdict
from sickbay.readers.documents import digest
from sickbay.readers.parts import bus_id

TOOL = "nvidia-smi"

_NO_VALUE = {"", "n/a", "[n/a]", "not supported", "[not supported]", "unknown error",
             "[unknown error]", "err!", "[gpu requires reset]",
             "requested functionality has been deprecated"}  # fmt: skip
_LOST = re.compile(r"unable to determine the device handle for gpu\s*([0-9a-f:.]+)", re.IGNORECASE)
_RECOVERY = {
    "none": None,
    "reset": Treatment.RESET,
    "gpu reset": Treatment.RESET,
    "drain and reset": Treatment.RESET,
    "drain p2p": Treatment.RESET,
    "bus reset": Treatment.REBOOT,
    "reboot": Treatment.REBOOT,
    "node reboot": Treatment.REBOOT,
    "os reboot": Treatment.REBOOT,
    "system reboot": Treatment.REBOOT,
}


def read_state(
    text: str, *, exit_code: int | None, expected: Sequence[Part] | None = None
) -> Reading:
    """What `nvidia-smi -q -x` says of the GPUs' standing state.

    With `expected` parts, a GPU that should be there and is not is lost.
    """
    lost = _lost_findings(text)
    root = _document(text)
    if root is None:
        return _no_document(text, lost, exit_code)
    gpus = root.findall("gpu")
    if not gpus:
        return _reading(Verdict.INCONCLUSIVE, "the document names no GPU", text)
    findings = [*lost, *(f for gpu in gpus for f in _state_of(gpu))]
    findings += _absent(gpus, expected or ())
    unread = [f for f in findings if f.kind is FindingKind.TOOL]
    hardware = [f for f in findings if f.kind is FindingKind.HARDWARE]
    if hardware:
        worst = max(hardware, key=lambda f: f.severity.rank)
        why = f"{worst.reason} on {worst.part}: {worst.detail}"
        return _reading(Verdict.FAIL, why, text, category=worst.category, findings=findings)
    if exit_code not in {0, None}:
        why = f"the exit status is {exit_code}"
        return _reading(Verdict.INCONCLUSIVE, why, text, findings=findings)
    if unread:
        why = f"{unread[0].reason} on {unread[0].part}: {unread[0].detail}"
        return _reading(Verdict.INCONCLUSIVE, why, text, findings=findings)
    return _reading(Verdict.PASS, f"{len(gpus)} GPUs without a standing fault", text)


def read_parts(text: str) -> tuple[Part, ...]:
    """The GPUs a `-q -x` document shows; a slot is not known to the tool and stays empty."""
    root = _document(text)
    if root is None:
        return ()
    return tuple(
        Part(
            slot="",
            kind=PartKind.GPU,
            uuid=_text(gpu, "uuid") or "",
            serial=_text(gpu, "serial") or "",
            bus_id=_bus(gpu) or "",
        )
        for gpu in root.findall("gpu")
    )


def read_reset(text: str, *, exit_code: int | None) -> Effect:
    """Whether a GPU reset took effect; refused is permanent, silence ambiguous."""
    lowered = text.lower()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
    if "successfully reset" in lowered and exit_code == 0:
        return Effect(Outcome.SUCCEEDED, "reset")
    if "in use by another client" in lowered:
        return Effect(Outcome.PERMANENT, "refused: the GPU is in use by another client")
    if exit_code is None:
        return Effect(Outcome.AMBIGUOUS, "the reset gave no answer")
    return Effect(Outcome.PERMANENT, f"refused ({exit_code}): {first[:300]}")


def read_nvlink(text: str, *, exit_code: int | None, links_per_gpu: int | None = None) -> Reading:
    """What `nvidia-smi nvlink -s` says: links that are down on GPUs that have links."""
    lost = _lost_findings(text)
    links: dict[str, list[bool]] = {}
    gpu = ""
    for line in text.splitlines():
        head = re.match(r"\s*GPU (\d+):", line)
        link = re.match(r"\s*Link (\d+):\s*(.+?)\s*$", line)
        if head:
            gpu = head[1]
            links[gpu] = []
        elif link and gpu:
            links[gpu].append("inactive" not in link[2].lower())
    if lost:
        return _reading(Verdict.FAIL, lost[0].detail, text, category=Category.HOST, findings=lost)
    if not any(links.values()) or exit_code not in {0, None}:
        return _reading(Verdict.INCONCLUSIVE, "no link state was printed", text)
    down = {g: up.count(False) for g, up in links.items() if False in up}
    if down and any(True in up for up in links.values()):
        findings = [_link_down(g, count) for g, count in down.items()]
        why = f"nvlink_down on GPU {', '.join(down)}"
        return _reading(Verdict.FAIL, why, text, category=Category.INTERCONNECT, findings=findings)
    if down:
        return _reading(Verdict.INCONCLUSIVE, "every link of every GPU is inactive", text)
    short = [g for g, up in links.items() if links_per_gpu and len(up) < links_per_gpu]
    if short:
        return _reading(Verdict.INCONCLUSIVE, f"GPU {short[0]} shows too few links", text)
    return _reading(Verdict.PASS, "all links are up", text)


def _link_down(gpu: str, count: int) -> Finding:
    return Finding(
        gpu,
        "nvlink_down",
        Severity.CRITICAL,
        FindingKind.HARDWARE,
        Treatment.RESET,
        Category.INTERCONNECT,
        detail=f"{count} links are inactive",
    )


def _document(text: str) -> ET.Element | None:
    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < 0:
        return None
    try:
        return ET.fromstring(text[start : end + len("</nvidia_smi_log>")])  # noqa: S314
    except ET.ParseError:
        return None


def _no_document(text: str, lost: list[Finding], exit_code: int | None) -> Reading:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
    if lost:
        return _reading(Verdict.FAIL, first, text, category=Category.HOST, findings=lost)
    mismatch = "driver/library version mismatch" in text.lower()
    reason = "driver_library_mismatch" if mismatch else "tool_error"
    finding = Finding(None, reason, Severity.WARNING, FindingKind.TOOL, detail=first[:300])
    why = f"{first[:200]} (exit status {exit_code})"
    return _reading(Verdict.INCONCLUSIVE, why, text, findings=[finding])


def _lost_findings(text: str) -> list[Finding]:
    return [_gpu_lost(bus_id(m[1].rstrip(":.")) or m[1], m[0]) for m in _LOST.finditer(text)]


def _gpu_lost(part: str, detail: str) -> Finding:
    return Finding(
        part,
        "gpu_lost",
        Severity.CRITICAL,
        FindingKind.HARDWARE,
        Treatment.REBOOT,
        Category.HOST,
        detail=detail[:300],
    )


def _absent(gpus: Sequence[ET.Element], expected: Sequence[Part]) -> list[Finding]:
    """Expected GPUs that are not shown; one in the same place with another UUID is a new part."""
    uuids = {_text(gpu, "uuid") for gpu in gpus}
    places = {_bus(gpu) for gpu in gpus}
    missing = [
        p
        for p in expected
        if p.kind is PartKind.GPU and p.uuid not in uuids and bus_id(p.bus_id) not in places
    ]
    return [_gpu_lost(bus_id(p.bus_id) or p.uuid, f"GPU of {p.slot} is not shown") for p in missing]


def _state_of(gpu: ET.Element) -> Iterator[Finding]:
    part = _bus(gpu)
    yield from _recovery(gpu, part)
    yield from _remap(gpu, part)
    yield from _ecc(gpu, part)


def _recovery(gpu: ET.Element, part: str | None) -> Iterator[Finding]:
    value = _text(gpu, "gpu_recovery_action")
    if value is None:
        return
    lowered = value.lower()
    if lowered in _NO_VALUE:
        yield _unread(part, "recovery_action", value)
    elif lowered in _RECOVERY:
        treatment = _RECOVERY[lowered]
        if treatment is not None:
            reason = f"recovery_action_{lowered.replace(' ', '_')}"
            detail = f"the driver asks for: {value}"
            yield _hardware(part, reason, Category.COMPUTE, treatment, detail=detail)
    else:
        detail = f"the driver asks for: {value}"
        yield _hardware(part, "recovery_action_other", Category.COMPUTE, None, detail=detail)


def _remap(gpu: ET.Element, part: str | None) -> Iterator[Finding]:
    failure = _text(gpu, "remapped_rows/remapped_row_failure")
    pending = _text(gpu, "remapped_rows/remapped_row_pending")
    if failure and failure.lower() == "yes":
        detail = "no spare row was left"
        yield _hardware(part, "row_remap_failure", Category.MEMORY, Treatment.SWAP, detail=detail)
    if pending and pending.lower() == "yes":
        detail = "a reset takes the row out of use"
        yield _hardware(part, "row_remap_pending", Category.MEMORY, Treatment.RESET, detail=detail)


def _ecc(gpu: ET.Element, part: str | None) -> Iterator[Finding]:
    volatile = gpu.find("ecc_errors/volatile")
    fields = [] if volatile is None else [e for e in volatile if "uncorrectable" in e.tag]
    for field in fields:
        value = (field.text or "").strip()
        if value.isdigit() and int(value) > 0:
            detail = f"{value} {field.tag} since the driver was loaded"
            yield _hardware(
                part, "ecc_uncorrectable", Category.MEMORY, Treatment.RESET, detail=detail
            )
        elif value.lower() == "unknown error":
            yield _unread(part, field.tag, value)
    exceeded = _text(gpu, "ecc_errors/aggregate/sram_threshold_exceeded")
    if exceeded and exceeded.lower() == "yes":
        detail = "too many SRAM errors"
        yield _hardware(part, "sram_threshold", Category.MEMORY, Treatment.SWAP, detail=detail)


def _hardware(
    part: str | None,
    reason: str,
    category: Category,
    treatment: Treatment | None,
    *,
    detail: str,
) -> Finding:
    pending = reason == "row_remap_pending"
    severity = Severity.MAJOR if pending else Severity.CRITICAL
    return Finding(part, reason, severity, FindingKind.HARDWARE, treatment, category, detail)


def _unread(part: str | None, name: str, value: str) -> Finding:
    return Finding(
        part, "unreadable", Severity.WARNING, FindingKind.TOOL, detail=f"{name} reads {value!r}"
    )


def _text(gpu: ET.Element, path: str) -> str | None:
    found = gpu.find(path)
    return None if found is None or found.text is None else found.text.strip()


def _bus(gpu: ET.Element) -> str | None:
    return bus_id(gpu.get("id") or _text(gpu, "pci/pci_bus_id") or "")


def _reading(
    verdict: Verdict,
    why: str,
    raw: str,
    *,
    category: Category | None = None,
    findings: Sequence[Finding] = (),
) -> Reading:
    return Reading(
        TOOL, verdict, why=why, category=category, findings=tuple(findings), digest=digest(raw)
    )
