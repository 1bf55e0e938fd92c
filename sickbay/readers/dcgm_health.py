"""`dcgmi health -c -j`: incidents in the samples the watch still holds, and nothing more.

`Healthy` says little; a document that is missing, or watches that are off, say nothing.
"""

import re
from collections.abc import Iterator
from typing import Any

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading, Verdict
from sickbay.readers.documents import digest, json_documents

TOOL = "dcgmi-health"

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
_XID = re.compile(r"\bxid\s+(\d+)", re.IGNORECASE)
_SIGNS: tuple[tuple[str, str, Treatment | None], ...] = (
    ("row remapping failure", "row_remap_failure", Treatment.SWAP),
    ("remapping failure", "row_remap_failure", Treatment.SWAP),
    ("pending row remap", "row_remap_pending", Treatment.RESET),
    ("fallen off the bus", "gpu_lost", Treatment.REBOOT),
    ("dbe has been detected", "ecc_uncorrectable", Treatment.RESET),
    ("high rate of volatile sbe", "ecc_corrected_rate", None),
    ("currently down", "nvlink_down", Treatment.RESET),
    ("thermal violation", "thermal_violation", None),
    ("imex", "imex_unhealthy", None),
)


def read(text: str, *, exit_code: int | None) -> Reading:
    """What the output of `dcgmi health -c -j` means."""
    documents, truncated = json_documents(text)
    bodies = [d["body"] for d in documents if isinstance(d.get("body"), dict)]
    overall = _overall(bodies[0]) if bodies else None
    if overall is None or truncated:
        return _silent(text)
    findings = tuple(_findings(bodies[0]))
    hardware = [f for f in findings if f.kind is FindingKind.HARDWARE]
    if hardware:
        worst = max(hardware, key=lambda f: f.severity.rank)
        why = f"{worst.reason} on {worst.part}: {worst.detail}"
        return Reading(TOOL, Verdict.FAIL, why, worst.category, findings, digest=digest(text))
    if overall != "healthy":
        why = f"{overall}, but no incident of a part is named"
        return Reading(TOOL, Verdict.INCONCLUSIVE, why, findings=findings, digest=digest(text))
    if exit_code not in {0, None}:
        why = f"Healthy, but the exit status is {exit_code}"
        return Reading(TOOL, Verdict.INCONCLUSIVE, why, digest=digest(text))
    return Reading(TOOL, Verdict.PASS, "no incident in the watch's samples", digest=digest(text))


def watches_are_off(text: str) -> bool:
    """Whether the watch has to be switched on first."""
    return "health watches not enabled" in text.lower()


def _silent(text: str) -> Reading:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
    engine = "host engine" in text.lower() or "unable to establish" in text.lower()
    reason = "hostengine_unreachable" if engine else "tool_error"
    finding = Finding(None, reason, Severity.WARNING, FindingKind.TOOL, detail=first[:300])
    return Reading(
        TOOL, Verdict.INCONCLUSIVE, first[:300], findings=(finding,), digest=digest(text)
    )


def _overall(body: dict[str, Any]) -> str | None:
    overall = body.get("Overall Health")
    value = overall.get("value") if isinstance(overall, dict) else None
    return str(value).strip().lower() if value else None


def _findings(body: dict[str, Any]) -> Iterator[Finding]:
    for group, entities in body.items():
        if group == "Overall Health" or not isinstance(entities, dict):
            continue
        for entity, found in _children(entities):
            part = entity if group.upper() == "GPU" else f"{group.lower()}{entity}"
            for _, errors in _children(found):
                for system, incident in _children(errors):
                    yield from _incidents(part, system, incident)


def _incidents(part: str, system: str, incident: dict[str, Any]) -> Iterator[Finding]:
    value = str(incident.get("value", "")).strip().lower()
    if value not in {"warning", "failure"}:
        return
    texts = incident.get("overflow") or incident.get("errors") or [system]
    listed = texts if isinstance(texts, list) else [texts]
    for text in map(str, listed):
        yield _finding(part, system, text, failure=value == "failure")


def _finding(part: str, system: str, text: str, *, failure: bool) -> Finding:
    reason, treatment = _named(text)
    category = _SYSTEMS.get(system.split(maxsplit=1)[0].lower() if system else "", Category.HOST)
    configuration = reason == "imex_unhealthy"
    return Finding(
        part=part,
        reason=reason,
        severity=Severity.CRITICAL if failure and not configuration else Severity.MAJOR,
        kind=FindingKind.CONFIGURATION if configuration else FindingKind.HARDWARE,
        treatment=None if configuration else treatment,
        category=category,
        detail=f"{system}: {text}"[:300],
    )


def _named(text: str) -> tuple[str, Treatment | None]:
    lowered = text.lower()
    xid = _XID.search(text)
    if xid:
        return f"xid_{xid[1]}", None
    for sign, reason, treatment in _SIGNS:
        if sign in lowered:
            return reason, treatment
    return "health_incident", None


def _children(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    children = value.get("children") if isinstance(value, dict) else None
    if isinstance(children, dict):
        for name, child in children.items():
            if isinstance(child, dict):
                yield str(name), child
