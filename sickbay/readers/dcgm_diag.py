"""`dcgmi diag`: the 3.x and 4.x JSON layouts, NVVS's upper case, and text that is no verdict.

Pass needs at least one test beyond skips that passed, no failing test, and an exit code that does
not contradict. What the severity calls configuration never fails the hardware.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading, Verdict
from sickbay.readers.dcgm_errors import DCGM_ERRORS
from sickbay.readers.documents import digest, json_documents

TOOL = "dcgmi-diag"

# Exit statuses of dcgmi (dcgmReturn_t & 0xff) that mean the diagnostic judged something.
_JUDGED_EXITS = {0, 205, 226}
_ENGINE_EXITS = {235: "hostengine_unreachable", 217: "diag_already_running", 222: "gpu_in_use"}
_SEVERITY = {0: "none", 1: "monitor", 2: "isolate", 3: "unknown", 4: "triage", 5: "config",
             6: "reset"}  # fmt: skip
_HARDWARE = {"isolate", "triage", "reset"}
# DCGM's names where our vocabulary has another word for the same thing.
_REASON = {
    "pending_row_remap": "row_remap_pending",
    "fallen_off_bus": "gpu_lost",
    "volatile_dbe_detected": "ecc_uncorrectable",
    "gpu_recovery_reset": "recovery_action_reset",
    "gpu_recovery_reboot": "recovery_action_reboot",
}
_NOTHING_MEASURED = "0.0 seconds"
_CATEGORY = {
    "hardware_memory": Category.MEMORY,
    "hardware_thermal": Category.THERMAL,
    "hardware_nvlink": Category.INTERCONNECT,
    "hardware_nvswitch": Category.FABRIC,
    "hardware_pcie": Category.INTERCONNECT,
    "hardware_power": Category.PERFORMANCE,
    "hardware_other": Category.COMPUTE,
    "perf_threshold": Category.PERFORMANCE,
    "perf_violation": Category.PERFORMANCE,
}
_TREATMENT = {
    "row_remap_failure": Treatment.SWAP,
    "sram_threshold": Treatment.SWAP,
    "fallen_off_bus": Treatment.REBOOT,
    "gpu_recovery_reboot": Treatment.REBOOT,
}
# A PCIe width below the class is called configuration by DCGM but is often seating: hardware.
_REALLY_HARDWARE = {46}
# The test could not run: busy GPUs, no memory left, MIG. No verdict about the hardware.
_DID_NOT_RUN = (
    "busy or unavailable",
    "mig configuration is incompatible",
    "out of memory",
    "memory allocation",
)
# IMEX not ready is no hardware fault unless multi-node NVLink is expected.
_FALSE_POSITIVE = {122}


@dataclass(frozen=True)
class _Row:
    """One entity's result of one test."""

    test: str
    part: str | None
    status: str
    warnings: tuple[dict[str, Any], ...]


def read(text: str, *, exit_code: int | None) -> Reading:
    """What the output of `dcgmi diag` means."""
    documents, truncated = json_documents(text)
    roots = [r for r in map(_root, documents) if r is not None]
    if not roots or truncated:
        return _no_document(text, exit_code, truncated=truncated and bool(roots or documents))
    rows = [row for root in roots for row in _rows(root)]
    errors = [str(r["runtime_error"]) for r in roots if r.get("runtime_error")]
    findings = tuple(f for row in rows for f in _findings(row))
    return _judge(rows, findings, errors, exit_code=exit_code, raw=text)


def _judge(
    rows: list[_Row],
    findings: tuple[Finding, ...],
    errors: list[str],
    *,
    exit_code: int | None,
    raw: str,
) -> Reading:
    hardware = [f for f in findings if f.kind is FindingKind.HARDWARE]
    passed = [r for r in rows if r.status == "pass"]
    unclear = [r for r in rows if r.status == "fail" and not r.warnings]
    did_not_run = [f for f in findings if f.kind is FindingKind.TOOL]
    if hardware:
        worst = max(hardware, key=lambda f: f.severity.rank)
        why = f"{worst.reason} on {worst.part or 'the node'}: {worst.detail}"
        return _reading(Verdict.FAIL, why, raw, category=worst.category, findings=findings)
    if errors:
        return _reading(Verdict.INCONCLUSIVE, f"runtime error: {errors[0]}", raw, findings=findings)
    if did_not_run:
        why = f"a test did not run: {did_not_run[0].detail}"
        return _reading(Verdict.INCONCLUSIVE, why, raw, findings=findings)
    if unclear:
        why = f"{unclear[0].test} failed without saying why"
        return _reading(Verdict.INCONCLUSIVE, why, raw, findings=findings)
    if not passed:
        return _reading(Verdict.INCONCLUSIVE, "no test ran to an end", raw, findings=findings)
    if findings:
        why = f"configuration only: {findings[0].reason}"
        return _reading(Verdict.INCONCLUSIVE, why, raw, findings=findings)
    if exit_code not in {0, None}:
        why = f"every test passed, but the exit status is {exit_code}"
        return _reading(Verdict.INCONCLUSIVE, why, raw)
    tests = dict.fromkeys(r.test for r in passed)
    return _reading(Verdict.PASS, f"passed: {', '.join(tests)}", raw)


def _no_document(text: str, exit_code: int | None, *, truncated: bool) -> Reading:
    lowered = text.lower()
    reason = _ENGINE_EXITS.get(exit_code if exit_code is not None else -1, "tool_error")
    if "unable to establish a connection" in lowered or "host engine" in lowered:
        reason = "hostengine_unreachable"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
    why = "the document is cut off" if truncated else first
    finding = Finding(None, reason, Severity.WARNING, FindingKind.TOOL, detail=first[:300])
    return _reading(Verdict.INCONCLUSIVE, why, text, findings=(finding,))


def _reading(
    verdict: Verdict,
    why: str,
    raw: str,
    *,
    category: Category | None = None,
    findings: tuple[Finding, ...] = (),
) -> Reading:
    return Reading(TOOL, verdict, why=why, category=category, findings=findings, digest=digest(raw))


def _root(document: dict[str, Any]) -> dict[str, Any] | None:
    for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic"):
        root = document.get(key)
        if isinstance(root, dict) and isinstance(root.get("test_categories"), list):
            return root
    return None


def _rows(root: dict[str, Any]) -> Iterator[_Row]:
    for category in _dicts(root.get("test_categories")):
        for test in _dicts(category.get("tests")):
            name = str(test.get("name", "unnamed"))
            for result in _dicts(test.get("results")):
                for part in _parts(result):
                    status = str(result.get("status", "")).strip().lower()
                    yield _Row(name, part, status, tuple(_warnings(result)))


def _parts(result: dict[str, Any]) -> list[str | None]:
    """The entities a result is about: 4.x one id, 3.x one or a comma list, or the whole node."""
    if "entity_id" in result:
        gpu = str(result.get("entity_group", "GPU")).upper() == "GPU"
        return [str(result["entity_id"]) if gpu else None]
    listed = result.get("gpu_ids", result.get("gpu_id"))
    if listed is None:
        return [None]
    return [part.strip() for part in str(listed).split(",") if part.strip()]


def _warnings(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = result.get("warnings")
    items = found if isinstance(found, list) else [found] if found else []
    for item in items:
        yield item if isinstance(item, dict) else {"warning": str(item)}


def _findings(row: _Row) -> Iterator[Finding]:
    if row.status not in {"fail", "warn"}:
        return
    for warning in row.warnings:
        yield _finding(row, warning)


def _finding(row: _Row, warning: dict[str, Any]) -> Finding:
    text = str(warning.get("warning", "")).strip()
    number = warning.get("error_id")
    known = DCGM_ERRORS.get(number) if isinstance(number, int) else None
    name, table_severity, category = known or (_reason_of(text), "triage", "")
    severity = _SEVERITY.get(warning.get("error_severity", -1), table_severity)
    lowered = text.lower()
    kind = _kind(number, severity, category, lowered)
    return Finding(
        part=row.part,
        reason="persistence_mode_off" if _persistence(lowered) else _REASON.get(name, name),
        severity=_severity_of(kind, severity),
        kind=kind,
        treatment=_treatment(kind, name, severity),
        category=_CATEGORY.get(category, Category.COMPUTE)
        if kind is FindingKind.HARDWARE
        else None,
        detail=f"{row.test}: {text}"[:500],
    )


def _kind(number: object, severity: str, category: str, lowered: str) -> FindingKind:
    """Whose fault a warning is."""
    if any(sign in lowered for sign in _DID_NOT_RUN):
        return FindingKind.TOOL
    if number in _FALSE_POSITIVE or _persistence(lowered):
        return FindingKind.CONFIGURATION
    if number in _REALLY_HARDWARE or severity in _HARDWARE:
        return FindingKind.HARDWARE
    measured = severity == "monitor" and category in _CATEGORY
    if measured and _NOTHING_MEASURED not in lowered:
        return FindingKind.HARDWARE
    return FindingKind.CONFIGURATION


def _persistence(lowered: str) -> bool:
    return "persistence mode" in lowered


def _reason_of(text: str) -> str:
    lowered = text.lower()
    for sign, reason in (
        ("row remapping failed", "row_remap_failure"),
        ("remapping failure", "row_remap_failure"),
        ("remappings are pending", "pending_row_remap"),
        ("fallen off the bus", "fallen_off_bus"),
        ("double-bit", "volatile_dbe_detected"),
        ("thermal", "temp_violation"),
        ("nvlink", "nvlink_error"),
    ):
        if sign in lowered:
            return reason
    return "diag_failed"


def _severity_of(kind: FindingKind, severity: str) -> Severity:
    if kind is not FindingKind.HARDWARE:
        return Severity.WARNING
    return Severity.CRITICAL if severity in {"isolate", "reset"} else Severity.MAJOR


def _treatment(kind: FindingKind, name: str, severity: str) -> Treatment | None:
    if kind is not FindingKind.HARDWARE:
        return None
    if name in _TREATMENT:
        return _TREATMENT[name]
    return Treatment.RESET if severity in {"reset", "isolate"} else None


def _dicts(value: object) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
