"""`nvidia-smi -q`, XML or text: the standing state of the GPUs, and which parts there are.

Counters of a lifetime are kept as numbers and never judged; what counts is what stands since the
driver was loaded. A field that could not be read is no zero.
"""

import re
from collections.abc import Iterator, Sequence

from sickbay.domain.node import Category, Part, PartKind, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers.conclusion import conclude, tool_finding
from sickbay.readers.nvidia_smi_answers import TOOL, lost_finding, of_text, read_answer, read_reset
from sickbay.readers.nvidia_smi_links import is_nvlink, read_nvlink
from sickbay.readers.nvidia_smi_tree import GpuFields, StateLog, is_absent, is_unreadable, parse
from sickbay.readers.parts import bus_id

__all__ = ["TOOL", "read", "read_answer", "read_nvlink", "read_parts", "read_reset", "read_state"]

_RECOVERY: dict[str, tuple[str, Treatment | None]] = {
    "reset": ("reset", Treatment.RESET),
    "gpu reset": ("reset", Treatment.RESET),
    "gpu reset required": ("reset", Treatment.RESET),
    "pf flr": ("reset", Treatment.RESET),
    "drain and reset": ("drain_and_reset", Treatment.RESET),
    "drain p2p": ("drain_p2p", Treatment.RESET),
    "bus reset": ("bus_reset", Treatment.REBOOT),
    "reboot": ("reboot", Treatment.REBOOT),
    "node reboot": ("reboot", Treatment.REBOOT),
    "node reboot required": ("reboot", Treatment.REBOOT),
    "os reboot": ("reboot", Treatment.REBOOT),
    "system reboot": ("reboot", Treatment.REBOOT),
}
_SIGNS = re.compile(
    r"<nvidia_smi_log|NVSMI LOG|NVIDIA-SMI \S|^GPU \d+: .*\(UUID: GPU-|Failed to initialize NVML"
    r"|Unable to determine the device handle|NVIDIA-SMI has failed|was successfully reset"
    r"|In use by another client|in use by another process",
    re.IGNORECASE | re.MULTILINE,
)
_FABRIC_BUSY = {"in progress", "not started"}
_PENDING = ("remapped_rows/remapped_row_pending", "remapped_rows/pending")
_FAILURE = ("remapped_rows/remapped_row_failure", "remapped_rows/remapping_failure_occurred")
_VOLATILE = ("ecc_errors/volatile/", "ecc_errors/volatile_")
_RETIRED = (
    "retired_pages/pending_page_blacklist",
    "retired_pages/pending_blacklist",
    "retired_pages/pending_retirement",
)
_JUDGED = ("gpu_recovery_action", "remapped_rows/", "retired_pages/", "ecc_errors/", "fabric/")
_MEASURES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("temp_c", "C", ("temperature/gpu_temp", "temperature/gpu_current_temp")),
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


def read(text: str, *, exit_code: int | None, links_per_gpu: int | None = None) -> Reading:
    """What any output of `nvidia-smi` means; which command printed it is seen from the text."""
    if is_nvlink(text):
        return read_nvlink(text, exit_code=exit_code, links_per_gpu=links_per_gpu)
    log = parse(text)
    if log is not None:
        return read_state(text, exit_code=exit_code)
    return read_answer(text, exit_code=exit_code)


def recognises(text: str) -> bool:
    """Whether a text is any output of `nvidia-smi`, its errors included."""
    return bool(_SIGNS.search(text)) or is_nvlink(text)


def read_state(text: str, *, exit_code: int | None, expected: Sequence[Part] = ()) -> Reading:
    """What `nvidia-smi -q` says of the GPUs' standing state.

    Args:
        text: the XML of `-q -x`, or the text of `-q`.
        exit_code: the exit status, None when it is not known.
        expected: the parts on record; a GPU of them that is not shown is lost.
    """
    log = parse(text)
    if log is None:
        return read_answer(text, exit_code=exit_code, expected=expected)
    findings = of_text(_outside(text))
    if log.truncated:
        findings.append(tool_finding("truncated", "the document has no end"))
    findings += [f for gpu in log.gpus for f in _state_of(gpu)]
    # A list that was cut off names no missing part.
    findings += [] if log.truncated else _absent(log, expected)
    findings += _doubts(log, exit_code)
    return conclude(
        TOOL,
        text,
        findings,
        passed=f"{len(log.gpus)} GPUs without a standing fault" if log.gpus else None,
        measurements=[m for gpu in log.gpus for m in _measurements(gpu)],
    )


def read_parts(text: str) -> tuple[Part, ...]:
    """The GPUs a `-q -x` document shows; a slot is not known to the tool and stays empty."""
    log = parse(text)
    return tuple(
        Part(
            slot="",
            kind=PartKind.GPU,
            uuid=gpu.first("uuid", "gpu_uuid") or "",
            serial=gpu.first("serial", "serial_number") or "",
            bus_id=gpu.bus_id or "",
        )
        for gpu in (log.gpus if log else ())
    )


def _doubts(log: StateLog, exit_code: int | None) -> list[Finding]:
    """What keeps a log without a fault from passing."""
    found = []
    if exit_code not in {0, None}:
        found.append(tool_finding("exit_code_contradicts_document", f"exit status {exit_code}"))
    if log.attached is not None and log.attached > len(log.gpus):
        detail = f"{log.attached} GPUs are attached, {len(log.gpus)} are listed"
        found.append(tool_finding("gpus_not_listed", detail))
    silent = [g for g in log.gpus if not any(p.startswith(_JUDGED) for p in g.fields)]
    found += [tool_finding("state_not_shown", "no field of its state", g.bus_id) for g in silent]
    return found


def _absent(log: StateLog, expected: Sequence[Part]) -> list[Finding]:
    """Expected GPUs that are not shown; one in the same place with another UUID is a new part."""
    uuids = {gpu.first("uuid", "gpu_uuid") for gpu in log.gpus}
    places = {gpu.bus_id for gpu in log.gpus}
    return [
        lost_finding(bus_id(p.bus_id) or p.uuid, f"the GPU of {p.slot} is not shown")
        for p in expected
        if p.kind is PartKind.GPU and p.uuid not in uuids and bus_id(p.bus_id) not in places
    ]


def _state_of(gpu: GpuFields) -> Iterator[Finding]:
    yield from _recovery(gpu)
    yield from _remap(gpu)
    yield from _ecc(gpu)
    yield from _fabric(gpu)
    yield from _thermal(gpu)
    yield from _stale(gpu)
    yield from _configuration(gpu)


def _recovery(gpu: GpuFields) -> Iterator[Finding]:
    value = (gpu.first("gpu_recovery_action") or "N/A").strip()
    lowered = value.lower()
    if is_unreadable(value):
        yield _unread(gpu, "gpu_recovery_action", value)
    elif lowered != "none" and not is_absent(value):
        name, treatment = _RECOVERY.get(lowered, ("other", None))
        detail = f"the driver asks for: {value}"
        yield _hardware(gpu, f"recovery_action_{name}", Category.COMPUTE, treatment, detail)
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
    for path in (*_PENDING, *_FAILURE):
        value = gpu.fields.get(path, "")
        if is_unreadable(value):
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
        yield tool_finding("fabric_not_ready", f"the fabric is {state}", gpu.bus_id)
    elif state == "completed" and not is_absent(status) and status.lower() != "success":
        reason = "fabric_status_" + "_".join(status.lower().split())
        detail = f"the fabric says: {status}"
        yield _hardware(gpu, reason, Category.INTERCONNECT, None, detail)


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
    if "gpu is lost" in values:
        yield lost_finding(gpu.bus_id, "the GPU gives no values: it is lost")


def _configuration(gpu: GpuFields) -> Iterator[Finding]:
    said = (
        ("persistence_mode_off", gpu.first("persistence_mode"), "disabled"),
        ("ecc_disabled", gpu.first("ecc_mode/current_ecc", "ecc_mode/current"), "disabled"),
        ("mig_enabled", gpu.first("mig_mode/current_mig", "mig_mode/current"), "enabled"),
    )
    for reason, value, sign in said:
        if (value or "").strip().lower() == sign:
            kind = FindingKind.CONFIGURATION
            yield Finding(gpu.bus_id, reason, Severity.INFO, kind, detail=f"it is {sign}")


def _measurements(gpu: GpuFields) -> Iterator[Measurement]:
    for name, unit, paths in _MEASURES:
        value = gpu.number(*paths)
        if value is not None:
            yield Measurement(name, gpu.bus_id, value, unit)
    for word, prefix in (("volatile", _VOLATILE), ("aggregate", ("ecc_errors/aggregate/",))):
        for memory in ("dram", "sram"):
            count = _uncorrectable(gpu, prefix, memory)
            if count is not None:
                name = f"{memory}_uncorrectable_{word}"
                yield Measurement(name, gpu.bus_id, count, "errors")


def _hardware(
    gpu: GpuFields, reason: str, category: Category, treatment: Treatment | None, detail: str
) -> Finding:
    grave = treatment in {Treatment.SWAP, Treatment.REBOOT} or reason.endswith("_uncorrectable")
    severity = Severity.CRITICAL if grave else Severity.MAJOR
    return Finding(gpu.bus_id, reason, severity, FindingKind.HARDWARE, treatment, category, detail)


def _needs_reset(gpu: GpuFields, detail: str) -> Finding:
    return _hardware(gpu, "gpu_requires_reset", Category.COMPUTE, Treatment.RESET, detail)


def _unread(gpu: GpuFields, name: str, value: str) -> Finding:
    return tool_finding("unreadable", f"{name} reads {value!r}", gpu.bus_id)


def _yes(value: str | None) -> bool:
    return (value or "").strip().lower() == "yes"


def _outside(text: str) -> str:
    """What was printed around an XML document, all of it for a text form."""
    start = text.find("<?xml")
    return text[: start if start >= 0 else len(text)]
