"""A page of dcgm-exporter, read once: states that stand, and numbers.

One page holds totals and states, no rates. A state that says a part is broken fails; the last Xid
is an event without a time, and never more than a doubt. A blank is an absence, and a metric that
is not exported says nothing.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers.conclusion import conclude, first_line, tool_finding
from sickbay.readers.exposition import number
from sickbay.readers.parts import bus_id
from sickbay.scoring.xid import XidGate, meaning_of

TOOL = "dcgm-exporter"

_LINE = re.compile(r"(DCGM_[A-Z0-9_]+|dcgm_[a-z0-9_]+)\{([^}]*)\}(.*)")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_LONGEST_LINE = 20_000
_NO_ADDRESS = "ffff:ff:ff"

# Metric without its prefix: name and unit of the measurement.
_NUMBERS = {
    "SM_CLOCK": ("sm_clock_mhz", "MHz"),
    "MEM_CLOCK": ("mem_clock_mhz", "MHz"),
    "GPU_TEMP": ("temp_c", "C"),
    "MEMORY_TEMP": ("memory_temp_c", "C"),
    "POWER_USAGE": ("power_w", "W"),
    "TOTAL_ENERGY_CONSUMPTION": ("energy_mj", "mJ"),
    "PCIE_REPLAY_COUNTER": ("pcie_replays", "replays"),
    "PCIE_LINK_GEN": ("pcie_link_generation", ""),
    "PCIE_LINK_WIDTH": ("pcie_link_width", "lanes"),
    "GPU_UTIL": ("utilisation_percent", "%"),
    "FB_USED": ("memory_used_mib", "MiB"),
    "FB_FREE": ("memory_free_mib", "MiB"),
    "ECC_SBE_VOL_TOTAL": ("ecc_corrected_volatile", "errors"),
    "ECC_DBE_VOL_TOTAL": ("ecc_uncorrectable_volatile", "errors"),
    "ECC_SBE_AGG_TOTAL": ("ecc_corrected_aggregate", "errors"),
    "ECC_DBE_AGG_TOTAL": ("ecc_uncorrectable_aggregate", "errors"),
    "CORRECTABLE_REMAPPED_ROWS": ("remapped_rows_correctable", "rows"),
    "UNCORRECTABLE_REMAPPED_ROWS": ("remapped_rows_uncorrectable", "rows"),
    "RETIRED_SBE": ("retired_pages_sbe", "pages"),
    "RETIRED_DBE": ("retired_pages_dbe", "pages"),
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("nvlink_crc_flit_errors", "errors"),
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("nvlink_crc_data_errors", "errors"),
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("nvlink_replay_errors", "errors"),
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("nvlink_recovery_errors", "errors"),
}
_ALIASES = {
    "XID_ERROR": "XID_ERRORS",
    "ROW_REMAP_FAILED": "ROW_REMAP_FAILURE",
    "PCIE_REPLAY_TOTAL": "PCIE_REPLAY_COUNTER",
    "BOARD_POWER_WATTS": "POWER_USAGE",
}
# The recovery action of NVML, by its number.
_ACTIONS: dict[int, tuple[str, Treatment | None]] = {
    1: ("reset", Treatment.RESET),
    2: ("reboot", Treatment.REBOOT),
    3: ("drain_p2p", Treatment.RESET),
    4: ("drain_and_reset", Treatment.RESET),
    5: ("imex_domain", None),
    6: ("bus_reset", Treatment.REBOOT),
    7: ("reboot", Treatment.REBOOT),
}


@dataclass(frozen=True)
class _State:
    """A metric that says by its value that a part is broken."""

    reason: str
    severity: Severity
    treatment: Treatment | None
    category: Category


_STATES = {
    "ROW_REMAP_FAILURE": _State(
        "row_remap_failure", Severity.CRITICAL, Treatment.SWAP, Category.MEMORY
    ),
    "ROW_REMAP_PENDING": _State(
        "row_remap_pending", Severity.MAJOR, Treatment.RESET, Category.MEMORY
    ),
    "RETIRED_PENDING": _State(
        "page_retirement_pending", Severity.MAJOR, Treatment.RESET, Category.MEMORY
    ),
    "ECC_DBE_VOL_TOTAL": _State(
        "ecc_uncorrectable", Severity.CRITICAL, Treatment.RESET, Category.MEMORY
    ),
    "THRESHOLD_SRM": _State("sram_threshold", Severity.CRITICAL, Treatment.SWAP, Category.MEMORY),
}
_JUDGED = {*_STATES, "GPU_RECOVERY_ACTION", "XID_ERRORS"}


@dataclass(frozen=True)
class _Sample:
    metric: str
    part: str | None
    value: float


def read(text: str, *, exit_code: int | None) -> Reading:
    """What one page means."""
    samples = list(_samples(text))
    findings = [f for sample in samples for f in _findings(sample)]
    if exit_code not in {0, None}:
        findings.append(tool_finding("tool_error", f"exit status {exit_code}"))
    judged = {s.metric for s in samples} & _JUDGED
    if not samples and not findings:
        findings.append(tool_finding("no_document", first_line(text)))
    elif not judged and not findings:
        detail = "no metric of the page tells a state that could be broken"
        findings.append(tool_finding("state_not_shown", detail))
    return conclude(
        TOOL,
        text,
        findings,
        passed=f"no standing fault in {', '.join(sorted(judged))}",
        measurements=list(_measurements(samples)),
    )


def recognises(text: str) -> bool:
    """Whether a text is a page of dcgm-exporter."""
    head: Callable[[str], re.Match[str] | None] = _LINE.match
    return any(head(line) or line.startswith("# HELP DCGM_FI_") for line in text.splitlines()[:400])


def _samples(text: str) -> Iterator[_Sample]:
    for line in text.splitlines():
        match = _LINE.match(line[:_LONGEST_LINE])
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        value = number(match[3])
        # A slice of a MIG-split GPU is not the GPU.
        if not isinstance(value, float) or labels.get("GPU_I_ID"):
            continue
        printed = re.sub(r"^DCGM_(?:FI_(?:DEV_)?|EXP_)", "", match[1].upper())
        yield _Sample(_ALIASES.get(printed, printed), _part(labels), value)


def _part(labels: dict[str, str]) -> str | None:
    place = bus_id(labels.get("pci_bus_id", ""))
    if place and not place.endswith(_NO_ADDRESS):
        return place
    return labels.get("gpu") or labels.get("UUID") or labels.get("uuid") or None


def _findings(sample: _Sample) -> Iterator[Finding]:
    state = _STATES.get(sample.metric)
    detail = f"{sample.metric} is {sample.value:g}"
    kind = FindingKind.HARDWARE
    if state is not None and sample.value >= 1:
        yield Finding(
            sample.part, state.reason, state.severity, kind, state.treatment, state.category, detail
        )
    elif sample.metric == "GPU_RECOVERY_ACTION" and sample.value >= 1:
        name, treatment = _ACTIONS.get(int(sample.value), ("unknown", None))
        if name == "unknown":
            yield tool_finding("recovery_action_unknown", detail, sample.part)
            return
        grave = Severity.CRITICAL if treatment is Treatment.REBOOT else Severity.MAJOR
        reason, category = f"recovery_action_{name}", Category.COMPUTE
        yield Finding(sample.part, reason, grave, kind, treatment, category, detail)
    elif sample.metric == "XID_ERRORS" and sample.value >= 1:
        yield _last_event(sample, detail)


def _last_event(sample: _Sample, detail: str) -> Finding:
    """The last Xid since the exporter started: it may be of last month."""
    gate = meaning_of(int(sample.value)).gate
    reason = f"xid_{int(sample.value)}"
    if gate is XidGate.APPLICATION:
        kind = FindingKind.APPLICATION
        return Finding(sample.part, reason, Severity.INFO, kind, detail=detail)
    return tool_finding(reason, f"{detail}: an event without a time", sample.part)


def _measurements(samples: list[_Sample]) -> Iterator[Measurement]:
    for sample in samples:
        named = _NUMBERS.get(sample.metric)
        if named is not None:
            yield Measurement(named[0], sample.part, sample.value, named[1])
