"""The rules for one GPU's fields, however they were printed: what stands against it now.

Counters of a lifetime are kept as numbers and never judged; what counts is what stands since the
driver was loaded. A field that could not be read is no zero, and a block that was begun and not
finished is no clean one.
"""

import re
from collections.abc import Iterator

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Measurement
from sickbay.readers.conclusion import tool_finding
from sickbay.readers.nvidia_smi_answers import lost_finding
from sickbay.readers.nvidia_smi_tree import GpuFields, is_absent, is_unreadable

_ASKED: dict[str, tuple[str, Treatment | None]] = {
    "reset": ("reset", Treatment.RESET),
    "gpu reset": ("reset", Treatment.RESET),
    "gpu reset required": ("reset", Treatment.RESET),
    "pf flr": ("reset", Treatment.RESET),
    "drain and reset": ("drain_and_reset", Treatment.RESET),
    "drain reset": ("drain_and_reset", Treatment.RESET),
    "drain p2p": ("drain_p2p", Treatment.RESET),
    "bus reset": ("bus_reset", Treatment.REBOOT),
    "reboot": ("reboot", Treatment.REBOOT),
    "node reboot": ("reboot", Treatment.REBOOT),
    "node reboot required": ("reboot", Treatment.REBOOT),
    "os reboot": ("reboot", Treatment.REBOOT),
    "system reboot": ("reboot", Treatment.REBOOT),
    "recover imex domain": ("imex_domain", None),
}
# CSV says it in numbers.
_YES, _NO = frozenset({"yes", "1"}), frozenset({"no", "0"})
_FABRIC_BUSY = {"in progress", "not started"}
_PENDING = ("remapped_rows/remapped_row_pending", "remapped_rows/pending")
_FAILURE = ("remapped_rows/remapped_row_failure", "remapped_rows/remapping_failure_occurred")
_VOLATILE = ("ecc_errors/volatile/", "ecc_errors/volatile_")
_RETIRED = (
    "retired_pages/pending_page_blacklist",
    "retired_pages/pending_blacklist",
    "retired_pages/pending_retirement",
)
JUDGED = ("gpu_recovery_action", "remapped_rows/", "retired_pages/", "ecc_errors/", "fabric/")
_READINGS = ("power_draw", "temperature/gpu_temp", "temperature/gpu_current_temp")
_MEASURES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("temp_c", "C", ("temperature/gpu_temp", "temperature/gpu_current_temp")),
    ("power_w", "W",
     ("power_draw", "gpu_power_readings/power_draw", "gpu_power_readings/instant_power_draw",
      "power_readings/power_draw")),
    ("remapped_rows_correctable", "rows",
     ("remapped_rows/remapped_row_corr", "remapped_rows/correctable_error")),
    ("remapped_rows_uncorrectable", "rows",
     ("remapped_rows/remapped_row_unc", "remapped_rows/uncorrectable_error")),
    ("retired_pages_sbe", "pages",
     ("retired_pages/single_bit_ecc",
      "retired_pages/multiple_single_bit_retirement/retired_count")),
    ("retired_pages_dbe", "pages",
     ("retired_pages/double_bit_ecc", "retired_pages/double_bit_retirement/retired_count")),
)  # fmt: skip


def state_of(gpu: GpuFields) -> Iterator[Finding]:
    """What stands against one GPU, what could not be read of it, and how it is set up."""
    yield from _recovery(gpu)
    yield from _remap(gpu)
    yield from _ecc(gpu)
    yield from _fabric(gpu)
    yield from _thermal(gpu)
    yield from _stale(gpu)
    yield from _unfinished(gpu)
    yield from _configuration(gpu)


def spelt(action: str) -> str:
    """A recovery action as the table spells it: releases differ in case and underscores."""
    return " ".join(action.lower().replace("_", " ").split())


def is_action(text: str) -> bool:
    """Whether a text is the name of a recovery action, none included."""
    return spelt(text) in _ASKED or spelt(text) == "none"


def _recovery(gpu: GpuFields) -> Iterator[Finding]:
    value = (gpu.first("gpu_recovery_action") or "N/A").strip()
    lowered = spelt(value)
    if is_unreadable(value):
        yield _unread(gpu, "gpu_recovery_action", value)
    elif lowered in _ASKED:
        name, treatment = _ASKED[lowered]
        detail = f"the driver asks for: {value}"
        yield _hardware(gpu, f"recovery_action_{name}", Category.COMPUTE, treatment, detail)
    elif lowered != "none" and not is_absent(value):
        detail = f"no release is known to say {value!r}"
        yield tool_finding("recovery_action_unknown", detail, gpu.part)
    if _yes(gpu.first("gpu_reset_status/drain_and_reset_recommended")) and lowered not in _ASKED:
        detail = "the driver recommends to drain and reset"
        reason = "recovery_action_drain_and_reset"
        yield _hardware(gpu, reason, Category.COMPUTE, Treatment.RESET, detail)
    if _yes(gpu.first("gpu_reset_status/reset_required")):
        yield _needs_reset(gpu, "the driver says that a reset is required")


def _remap(gpu: GpuFields) -> Iterator[Finding]:
    if _yes(gpu.first(*_FAILURE)):
        detail = "an uncorrectable error could not be remapped"
        yield _hardware(gpu, "row_remap_failure", Category.MEMORY, Treatment.SWAP, detail)
    if _yes(gpu.first(*_PENDING)):
        detail = "a reset takes the row out of use"
        yield _hardware(gpu, "row_remap_pending", Category.MEMORY, Treatment.RESET, detail)
    if _yes(gpu.first(*_RETIRED)):
        detail = "a reset takes the page out of use"
        yield _hardware(gpu, "page_retirement_pending", Category.MEMORY, Treatment.RESET, detail)
    for path in (*_PENDING, *_FAILURE, *_RETIRED):
        value = gpu.fields.get(path, "")
        if not (is_absent(value) or value.strip().lower() in _YES | _NO):
            yield _unread(gpu, path, value)


def _ecc(gpu: GpuFields) -> Iterator[Finding]:
    for memory, reason in (("dram", "ecc_uncorrectable"), ("sram", "sram_uncorrectable")):
        count = _uncorrectable(gpu, _VOLATILE, memory)
        if count:
            detail = f"{count:.0f} uncorrectable {memory.upper()} errors since the driver loaded"
            yield _hardware(gpu, reason, Category.MEMORY, Treatment.RESET, detail)
    if _yes(gpu.first("ecc_errors/aggregate/sram_threshold_exceeded")):
        detail = "more SRAM errors than the threshold"
        yield _hardware(gpu, "sram_threshold", Category.MEMORY, Treatment.SWAP, detail)
    current = gpu.first("ecc_mode/current_ecc", "ecc_mode/current") or ""
    if is_unreadable(current):
        yield _unread(gpu, "ecc_mode", current)
    for path, value in gpu.under(*_VOLATILE).items():
        if "uncorrectable" in path and is_unreadable(value):
            yield _unread(gpu, path, value)


def _uncorrectable(gpu: GpuFields, prefixes: tuple[str, ...], memory: str) -> float | None:
    """Uncorrectable errors of one kind of memory, None when no field says a number."""
    found = []
    for path, value in gpu.under(*prefixes).items():
        new_form = f"{memory}_uncorrectable" in path
        old_form = memory == "dram" and "double_bit" in path and path.endswith("total")
        count = None
        if (new_form or old_form) and value.strip().isdigit():
            count = float(value)
        if count is not None:
            found.append(count)
    return sum(found) if found else None


def _fabric(gpu: GpuFields) -> Iterator[Finding]:
    state = (gpu.first("fabric/state") or "").strip().lower()
    status = (gpu.first("fabric/status") or "").strip()
    if state in _FABRIC_BUSY:
        yield tool_finding("fabric_not_ready", f"the fabric is {state}", gpu.part)
    elif state == "completed" and not is_absent(status) and status.lower() != "success":
        reason = "fabric_status_" + "_".join(re.findall(r"[a-z0-9]+", status.lower()))
        detail = f"the fabric says: {status}"
        yield _hardware(gpu, reason, Category.INTERCONNECT, None, detail)

    sick = [
        path.rsplit("/", 1)[-1]
        for path, value in gpu.under("fabric/health").items()
        if value.strip().lower() == "unhealthy"
        or ("degraded" in path and value.strip().lower() in {"true", "yes"})
    ]
    if sick:
        detail = f"the fabric reports: {', '.join(sick)}"
        yield _hardware(gpu, "fabric_unhealthy", Category.INTERCONNECT, None, detail)


def _thermal(gpu: GpuFields) -> Iterator[Finding]:
    """The GPU slows itself down because it is hot, at this moment."""
    active = [
        path.rsplit("/", 1)[-1]
        for path, value in gpu.fields.items()
        if path.endswith(("hw_thermal_slowdown", "sw_thermal_slowdown")) and value == "Active"
    ]
    if active:
        detail = f"active: {', '.join(active)}"
        yield _hardware(gpu, "thermal_slowdown", Category.THERMAL, None, detail)


def _stale(gpu: GpuFields) -> Iterator[Finding]:
    """Fields that print why they have no value any more."""
    values = {v.strip().strip("[]").lower() for v in gpu.fields.values()}
    if "gpu requires reset" in values:
        yield _needs_reset(gpu, "the GPU gives no values before a reset")
    readings = [v for p, v in gpu.fields.items() if p.startswith(_READINGS)]
    if any(is_unreadable(v) for v in readings):
        yield tool_finding("unreadable", "a reading of power or temperature", gpu.part)
    if "gpu is lost" in values:
        yield lost_finding(gpu.part, "the GPU gives no values: it is lost")


def _unfinished(gpu: GpuFields) -> Iterator[Finding]:
    """Blocks whose decisive fields are not there: the text was cut, or a release left them out."""
    volatile = gpu.under(*_VOLATILE)
    begun = (
        ("remapped_rows", gpu.under("remapped_rows/"), (_PENDING, _FAILURE)),
        ("retired_pages", gpu.under("retired_pages/"), (_RETIRED,)),
        ("fabric", gpu.under("fabric/state"), (("fabric/status",),)),
    )
    missing = [
        name
        for name, block, decisive in begun
        if block and any(gpu.first(*paths) is None for paths in decisive)
    ]
    if volatile and not any("uncorr" in p or "double_bit" in p for p in volatile):
        missing.append("ecc_errors")
    for name in missing:
        yield tool_finding("incomplete", f"the block {name} has no end", gpu.part)


def _configuration(gpu: GpuFields) -> Iterator[Finding]:
    said = (
        ("persistence_mode_off", gpu.first("persistence_mode"), "disabled"),
        ("ecc_disabled", gpu.first("ecc_mode/current_ecc", "ecc_mode/current"), "disabled"),
        ("mig_enabled", gpu.first("mig_mode/current_mig", "mig_mode/current"), "enabled"),
    )
    for reason, value, sign in said:
        if (value or "").strip().lower() == sign:
            kind = FindingKind.CONFIGURATION
            yield Finding(gpu.part, reason, Severity.INFO, kind, detail=f"it is {sign}")


def measurements_of(gpu: GpuFields) -> Iterator[Measurement]:
    """The numbers of one GPU that were read as numbers."""
    for name, unit, paths in _MEASURES:
        value = gpu.number(*paths)
        if value is not None:
            yield Measurement(name, gpu.lead or gpu.part, value, unit)
    for word, prefix in (("volatile", _VOLATILE), ("aggregate", ("ecc_errors/aggregate/",))):
        for memory in ("dram", "sram"):
            count = _uncorrectable(gpu, prefix, memory)
            if count is not None:
                name = f"{memory}_uncorrectable_{word}"
                yield Measurement(name, gpu.lead or gpu.part, count, "errors")


def _hardware(
    gpu: GpuFields, reason: str, category: Category, treatment: Treatment | None, detail: str
) -> Finding:
    grave = treatment in {Treatment.SWAP, Treatment.REBOOT} or reason.endswith("_uncorrectable")
    severity = Severity.CRITICAL if grave else Severity.MAJOR
    return Finding(gpu.part, reason, severity, FindingKind.HARDWARE, treatment, category, detail)


def _needs_reset(gpu: GpuFields, detail: str) -> Finding:
    return _hardware(gpu, "gpu_requires_reset", Category.COMPUTE, Treatment.RESET, detail)


def _unread(gpu: GpuFields, name: str, value: str) -> Finding:
    return tool_finding("unreadable", f"{name} reads {value!r}", gpu.part)


def _yes(value: str | None) -> bool:
    return (value or "").strip().lower() in _YES
