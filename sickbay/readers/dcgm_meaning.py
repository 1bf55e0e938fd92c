"""What one warning of DCGM means: whose fault, how bad, which category, the first treatment.

DCGM's own table of error ids decides; a warning without an id is recognised by its sentence. What
DCGM calls configuration never counts as hardware, and a test that could not run says nothing.
"""

import re

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers.dcgm_errors import DCGM_ERRORS
from sickbay.scoring.xid import XidGate, meaning_of

SOFTWARE_TEST = "software"
SEVERITIES = {0: "none", 1: "monitor", 2: "isolate", 3: "unknown", 4: "triage", 5: "config",
              6: "reset"}  # fmt: skip
"""`error_severity` of DCGM 4; the numbers of older layouts mean other things."""

_DETAIL_CHARS = 500
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
# DCGM files these under software although they say that a part is broken.
_HARDWARE_IDS = {
    81: Category.MEMORY,
    95: Category.COMPUTE,
    109: Category.FABRIC,
    131: Category.MEMORY,
    # A narrow PCIe link is called configuration, but is mostly a matter of seating.
    46: Category.INTERCONNECT,
}
# Aborted, disabled, skipped, retest wanted, graphics processes in the way: no verdict was reached.
# IMEX (122) is unhealthy on every node that is no member of a multi-node NVLink domain.
_TOOL_IDS = frozenset({25, 47, 48, 56, 73, 112, 117, 122, 130})
_XID_ERROR = 101
_IDS = {name: number for number, (name, _, _) in DCGM_ERRORS.items()}

# DCGM's names where sickbay has a word of its own for the same thing.
_REASON = {
    "pending_row_remap": "row_remap_pending",
    "uncorrectable_row_remap": "row_remap_pending",
    "fallen_off_bus": "gpu_lost",
    "volatile_dbe_detected": "ecc_uncorrectable",
    "dbe_violation": "ecc_uncorrectable",
    "dbe_threshold_violation": "ecc_uncorrectable",
    "cuda_dbe": "ecc_uncorrectable",
    "gpu_recovery_reset": "recovery_action_reset",
    "gpu_recovery_reboot": "recovery_action_reboot",
    "gpu_recovery_drain_p2p": "recovery_action_drain_p2p",
    "gpu_recovery_drain_reset": "recovery_action_drain_and_reset",
    "persistence_mode": "persistence_mode_off",
    "stress_level": "stress_level_low",
    "clocks_event_thermal": "thermal_slowdown",
    "low_bandwidth": "bandwidth_low",
    "target_power": "power_low",
    "gflops_threshold_violation": "gflops_low",
    "memory_bandwidth": "memory_bandwidth_low",
    "pcie_width": "pcie_width_low",
    "pcie_generation": "pcie_generation_low",
}
_SWAP_IDS = frozenset({7, 8, 79, 80, 95, 118, 132})
_REBOOT_IDS = frozenset({120, 126})
# NVLink errors and tests that failed to reach their level: a new link training or a clean driver
# state is the cheapest thing that may help.
_RESET_IDS = frozenset({14, 88, 99, 129})

# Sentences that say that a test could not run, whatever the status beside them.
_NOT_RUN: tuple[tuple[str, str], ...] = (
    (r"busy or (is|are )?/?\s*unavailable|busy or unavailable", "cuda_context_busy"),
    (r"mig (configuration|mode)|mig is enabled", "mig_enabled"),
    (r"memory copy utilization for the gpu", "nvbandwidth_interference"),
    (r"out of memory|(could|can) ?not allocate|unable to allocate|memory allocation",
     "memory_allocation"),
    (r"totall?ing 0\.0 seconds", "nothing_measured"),
)  # fmt: skip
# The error id behind a sentence, for layouts that print none.
_SENTENCES: tuple[tuple[str, int], ...] = (
    (r"persistence mode", 29),
    (r"row remapping (has )?failed|remapping failure", 80),
    (r"remappings? (is|are) pending|pending row remap", 85),
    (r"pending page retirement|page retirements? (is|are) pending", 6),
    (r"fallen off the bus", 120),
    (r"double[- ]bit|\bdbe\b", 4),
    (r"link \d+ is (currently )?down", 14),
    (r"stress level of .* did not", 50),
    (r"faulty memory", 52),
    (r"ecc memory on gpu \d+ is not", 55),
    (r"pci link width", 46),
    (r"pci link generation", 45),
    (r"requires? a reset", 125),
    (r"requires? a (node )?reboot", 126),
    (r"gflops", 110),
    (r"power .* did not reach", 63),
    (r"bandwidth .*(did not exceed|below)", 30),
    (r"thermal (slowdown|violation)", 10),
    (r"\bxid\b", _XID_ERROR),
)
_NOT_RUN_PATTERNS = tuple((re.compile(p, re.IGNORECASE), reason) for p, reason in _NOT_RUN)
_SENTENCE_PATTERNS = tuple((re.compile(p, re.IGNORECASE), number) for p, number in _SENTENCES)
NOT_RUN_REASONS = frozenset(
    {reason for _, reason in _NOT_RUN}
    | {"memory_alloc", "memory_alloc_host", "aborted", "test_disabled", "test_skipped"}
)
"""Reasons that say that a test did not do its work, whatever verdict stands beside them."""

_XID = re.compile(r"\bxid\D{0,12}(\d+)", re.IGNORECASE)
_FROM_SEVERITY = {
    "isolate": Severity.CRITICAL,
    "reset": Severity.MAJOR,
    "triage": Severity.MAJOR,
    "monitor": Severity.WARNING,
}


def could_not_run(text: str) -> str | None:
    """The reason when a sentence says that a test could not run, else None."""
    return next((reason for p, reason in _NOT_RUN_PATTERNS if p.search(text)), None)


def error_id_named(name: str) -> int | None:
    """The id of an error by its name in DCGM's headers, e.g. DCGM_FR_IMEX_UNHEALTHY."""
    return _IDS.get(name.strip().upper().removeprefix("DCGM_FR_").lower())


def error_id_of(text: str) -> int | None:
    """DCGM's error id behind a sentence, None when no sentence of ours matches."""
    return next((number for p, number in _SENTENCE_PATTERNS if p.search(text)), None)


def finding_of(
    text: str,
    *,
    test: str,
    part: str | None,
    error_id: int | None = None,
    severity: str | None = None,
) -> Finding:
    """What one warning means.

    Args:
        text: the sentence.
        test: DCGM 4's name of the test it was printed by.
        part: the GPU the tool names.
        error_id: DCGM's id, when the layout prints one.
        severity: DCGM's word, when the layout's own number is to be believed.
    """
    detail = f"{test}: {' '.join(text.split())}"[:_DETAIL_CHARS]
    not_run = could_not_run(text)
    if not_run is not None:
        return Finding(part, not_run, Severity.WARNING, FindingKind.TOOL, detail=detail)
    number = error_id if error_id in DCGM_ERRORS else error_id_of(text)
    if number is None:
        return _unnamed(test, part, severity, detail)
    if number == _XID_ERROR:
        return _xid(text, part, detail)
    name, own_severity, family = DCGM_ERRORS[number]
    word = severity or own_severity
    reason = _REASON.get(name, name)
    kind = _kind(number, word, family)
    if kind is not FindingKind.HARDWARE:
        level = Severity.INFO if kind is FindingKind.CONFIGURATION else Severity.WARNING
        return Finding(part, reason, level, kind, detail=detail)
    treatment = _treatment(number, word)
    if treatment in {Treatment.SWAP, Treatment.REBOOT}:
        level = Severity.CRITICAL
    else:
        level = _FROM_SEVERITY.get(word, Severity.MAJOR)
    category = _HARDWARE_IDS.get(number) or _CATEGORY.get(family, Category.COMPUTE)
    return Finding(part, reason, level, kind, treatment, category, detail)


def _kind(number: int, severity: str, family: str) -> FindingKind:
    if number in _HARDWARE_IDS:
        return FindingKind.HARDWARE
    if number in _TOOL_IDS:
        return FindingKind.TOOL
    if severity == "config":
        return FindingKind.CONFIGURATION
    return FindingKind.HARDWARE if family in _CATEGORY else FindingKind.TOOL


def _treatment(number: int, severity: str) -> Treatment | None:
    if number in _SWAP_IDS:
        return Treatment.SWAP
    if number in _REBOOT_IDS:
        return Treatment.REBOOT
    if number in _RESET_IDS or severity in {"reset", "isolate"}:
        return Treatment.RESET
    return None


def _unnamed(test: str, part: str | None, severity: str | None, detail: str) -> Finding:
    """A sentence nobody described: a failing hardware test fails, the rest says nothing."""
    if severity not in {"isolate", "reset"} and (test == SOFTWARE_TEST or severity == "config"):
        return Finding(part, "tool_error", Severity.WARNING, FindingKind.TOOL, detail=detail)
    return Finding(
        part, "diag_failed", Severity.MAJOR, FindingKind.HARDWARE, None, Category.COMPUTE, detail
    )


def _xid(text: str, part: str | None, detail: str) -> Finding:
    """An Xid seen while a test ran, judged by the Xid itself."""
    found = _XID.search(text)
    code = int(found[1]) if found else 0
    known = meaning_of(code)
    reason = f"xid_{code}" if found else "xid_error"
    if known.gate is not XidGate.FATAL:
        return Finding(part, reason, Severity.WARNING, FindingKind.TOOL, detail=detail)
    return Finding(
        part,
        reason,
        known.severity,
        FindingKind.HARDWARE,
        known.treatment,
        known.category,
        detail,
    )
