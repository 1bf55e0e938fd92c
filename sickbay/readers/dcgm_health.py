"""`dcgmi health -c -j`: incidents in the samples the watch still holds, and nothing more.

`Healthy` says little and names no GPU; a document that is missing or cut off, or watches that are
off, say nothing. An Xid in it is a past event, judged by the Xid itself.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers import dcgm_answers
from sickbay.readers.conclusion import conclude, first_line, tool_finding
from sickbay.readers.dcgm_records import of_code_lines
from sickbay.readers.documents import json_documents, outside_documents
from sickbay.scoring.xid import XidGate, meaning_of

TOOL = "dcgmi-health"

_LEVELS = {"healthy", "warning", "failure"}
_SYSTEMS = {
    "memory": Category.MEMORY,
    "nvlink": Category.INTERCONNECT,
    "pcie": Category.INTERCONNECT,
    "thermal": Category.THERMAL,
    "power": Category.PERFORMANCE,
    "sm": Category.COMPUTE,
    "inforom": Category.HOST,
    "driver": Category.SOFTWARE,
    "nvswitch": Category.FABRIC,
}
_CODE = re.compile(r"\bErrorCode: ?DCGM_FR_")
_TABLE_ROW = re.compile(r"\|([^|]*)\|([^|]*)\|")
_ENTITY = re.compile(r"(?:GPU(?: ID)?:? ?)?(\d+)", re.IGNORECASE)
_XID = re.compile(r"\bxid\s+(\d+)", re.IGNORECASE)
_SIGNS: tuple[tuple[str, str, Treatment | None, Category | None], ...] = (
    (r"row remapping (has )?fail|remapping failure", "row_remap_failure", Treatment.SWAP, None),
    (r"pending row remap|remappings? (is|are) pending", "row_remap_pending", Treatment.RESET, None),
    (r"pending page retirement", "page_retirement_pending", Treatment.RESET, None),
    (r"fallen off the bus|gpu is lost", "gpu_lost", Treatment.REBOOT, Category.COMPUTE),
    (r"\bdbe\b|double[- ]bit", "ecc_uncorrectable", Treatment.RESET, None),
    (r"high rate of .*sbe|single[- ]bit", "ecc_corrected_rate", None, None),
    (r"link \d+ is (currently )?down", "nvlink_down", Treatment.RESET, None),
    (r"thermal violation|thermal slowdown", "thermal_slowdown", None, Category.THERMAL),
)
_SIGN_PATTERNS = tuple((re.compile(p, re.IGNORECASE), r, t, c) for p, r, t, c in _SIGNS)
# Unhealthy on every node that is no member of a multi-node NVLink domain.
_IMEX = re.compile(r"\bimex\b", re.IGNORECASE)


def read(text: str, *, exit_code: int | None) -> Reading:
    """What the output of `dcgmi health -c -j` means."""
    documents, truncated = json_documents(text)
    bodies = [d["body"] for d in documents if isinstance(d.get("body"), dict)]
    if not documents and not truncated:
        return _from_text(text, exit_code)
    around = dcgm_answers.of_text(outside_documents(text))
    if truncated:
        around.append(tool_finding("truncated", "the document has no end"))
    if len(bodies) != 1 or truncated:
        return conclude(TOOL, text, around or [_no_document(text, bodies)], passed=None)
    overall = _level(bodies[0].get("Overall Health"))
    findings = [*_findings(bodies[0]), *around]
    findings += _by_exit(exit_code)
    if overall not in _LEVELS:
        findings.append(tool_finding("no_document", "the overall health is missing"))
    elif overall != "healthy" and not findings:
        findings.append(tool_finding("incident_not_named", f"overall {overall}, no part is named"))
    return conclude(TOOL, text, findings, passed="no incident in the watch's samples")


def watches_are_off(text: str) -> bool:
    """Whether the watch has to be switched on first."""
    return "health watches not enabled" in text.lower()


def recognises(text: str) -> bool:
    """Whether a text is an answer of the health watch."""
    lowered = text.lower()
    return (
        "health monitor report" in lowered
        or "health watches not enabled" in lowered
        or bool(_CODE.search(text))
    )


def _from_text(text: str, exit_code: int | None) -> Reading:
    """The text table, or lines that name an error; a table without its end says nothing good."""
    findings = [*dcgm_answers.of_text(text), *of_code_lines(text), *_by_exit(exit_code)]
    overall, incidents = _table(text)
    for part, system, level, said in incidents:
        findings.append(_finding(part, system, said, failure=level == "failure"))
    whole = bool(overall) and text.rstrip().endswith("+")
    if overall and not whole:
        findings.append(tool_finding("truncated", "the table has no end"))
    if overall in {"warning", "failure"} and not findings:
        findings.append(tool_finding("incident_not_named", f"overall {overall}, no part is named"))
    if not findings and not whole:
        findings.append(tool_finding("no_document", first_line(text)))
    passed = "no incident in the watch's samples" if overall == "healthy" and whole else None
    return conclude(TOOL, text, findings, passed=passed)


def _table(text: str) -> tuple[str, list[tuple[str, str, str, str]]]:
    """The overall level, and (part, system, level, sentence) per incident of the text table."""
    overall, part, system, level = "", "", "", ""
    found: list[tuple[str, str, str, str]] = []
    for line in text.splitlines():
        row = _TABLE_ROW.fullmatch(line.strip())
        if row is None:
            continue
        name, value = row[1].strip(" ->"), row[2].strip()
        word = value.lower()
        if name.lower() == "overall health":
            overall = word if word in _LEVELS else ""
        elif (entity := _ENTITY.fullmatch(name)) and word in _LEVELS:
            part, system = entity[1], ""
        elif name and word in _LEVELS:
            system, level = name, word
        elif value and system and word not in _LEVELS:
            if name or not found or found[-1][1] != system or value[:1].isupper():
                found.append((part, system, level, value))
            else:
                found[-1] = (part, system, level, f"{found[-1][3]} {value}")
    return overall, found


def _no_document(text: str, bodies: list[Any]) -> Finding:
    if bodies:
        return tool_finding("two_documents", f"{len(bodies)} documents in one output")
    return tool_finding("no_document", first_line(text))


def _by_exit(exit_code: int | None) -> list[Finding]:
    if exit_code in {0, None}:
        return []
    own = dcgm_answers.of_exit(exit_code)
    return [own or tool_finding("exit_code_contradicts_document", f"exit status {exit_code}")]


def _findings(body: Mapping[str, Any]) -> Iterator[Finding]:
    for group, entities in body.items():
        if group == "Overall Health" or not isinstance(entities, dict):
            continue
        for entity, found in _children(entities):
            part = entity if group.upper() == "GPU" else f"{group.lower()}{entity}"
            for _, errors in _children(found):
                for system, incident in _children(errors):
                    level = _level(incident) or _level(found) or "warning"
                    yield from _incidents(part, system, incident, level=level)


def _incidents(
    part: str, system: str, incident: Mapping[str, Any], *, level: str
) -> Iterator[Finding]:
    if level == "healthy":
        return
    overflow = incident.get("overflow") or incident.get("errors") or []
    listed = overflow if isinstance(overflow, list) else [overflow]
    texts = [str(t) for t in (incident.get("value"), *listed) if t]
    told = [t for t in texts if t.strip().lower() not in _LEVELS]
    for text in told or [f"{system} says {level}"]:
        yield _finding(part, system, text, failure=level == "failure")


def _finding(part: str, system: str, text: str, *, failure: bool) -> Finding:
    detail = f"{system}: {' '.join(text.split())}"[:300]
    xid = _XID.search(text)
    if xid:
        return _event(part, int(xid[1]), detail)
    if _IMEX.search(text):
        return Finding(
            part, "imex_unhealthy", Severity.INFO, FindingKind.CONFIGURATION, detail=detail
        )
    family = _SYSTEMS.get(system.split(maxsplit=1)[0].lower() if system else "", Category.HOST)
    known = next(((r, t, c) for p, r, t, c in _SIGN_PATTERNS if p.search(text)), None)
    if known is None and not failure:
        return tool_finding("health_warning", detail, part)
    reason, treatment, category = known or ("health_incident", None, None)
    severity = Severity.CRITICAL if failure else Severity.MAJOR
    kind = FindingKind.HARDWARE
    return Finding(part, reason, severity, kind, treatment, category or family, detail)


def _event(part: str, code: int, detail: str) -> Finding:
    """An Xid among the samples: a cause blames the GPU, a job's own error does not."""
    known = meaning_of(code)
    reason = f"xid_{code}"
    if known.gate is XidGate.FATAL:
        kind = FindingKind.HARDWARE
        return Finding(part, reason, known.severity, kind, known.treatment, known.category, detail)
    application = known.gate is XidGate.APPLICATION
    kind = FindingKind.APPLICATION if application else FindingKind.TOOL
    return Finding(part, reason, Severity.INFO, kind, detail=detail)


def _level(value: object) -> str:
    """The level word of a node of the document, empty when there is none."""
    found = value.get("value") if isinstance(value, dict) else None
    word = str(found or "").strip().lower()
    return word if word in _LEVELS else ""


def _children(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    children = value.get("children") if isinstance(value, dict) else None
    if isinstance(children, dict):
        for name, child in children.items():
            if isinstance(child, dict):
                yield str(name), child
