"""Counters of ports: numbers since some start, so one reading gives no rate and no fault.

The exception is a pattern: errors that leak past the correction, nearly all from one lane.
"""

import re
from collections.abc import Iterator, Mapping

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers.conclusion import tool_finding

MAXIMA: Mapping[str, int] = {
    "symbol_error": 2**16 - 1,
    "link_error_recovery": 2**8 - 1,
    "link_downed": 2**8 - 1,
    "port_rcv_errors": 2**16 - 1,
    "port_xmit_discards": 2**16 - 1,
    "local_link_integrity_errors": 2**4 - 1,
    "excessive_buffer_overrun_errors": 2**4 - 1,
}
"""Where the classic counters stop, by the widths in the InfiniBand specification."""

PERFQUERY_NAMES: Mapping[str, str] = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "PortRcvSwitchRelayErrors": "port_rcv_switch_relay_errors",
    "PortXmitData": "port_xmit_data",
    "PortRcvData": "port_rcv_data",
    "PortXmitPkts": "port_xmit_packets",
    "PortRcvPkts": "port_rcv_packets",
    "PortXmitWait": "port_xmit_wait",
}
"""The counters of `perfquery` as the kernel's files name them."""

_ERRORS = frozenset(MAXIMA) | {
    "rx_crc_errors_phy",
    "rx_symbol_err_phy",
    "rx_pcs_symbol_err_phy",
    "link_down_events_phy",
    "tx_errors_phy",
    "module_bus_stuck",
    "module_bad_shorted",
    "module_high_temp",
}
_LANE = re.compile(r"rx_err_lane_(\d{1,2})_phy")
# One lane with ten times what all others have together is one lane's fault (our choice).
_LANE_RATIO = 10


def saturated(part: str | None, counters: Mapping[str, int]) -> Iterator[Finding]:
    """The counters that stand at their end: what they would show is not known."""
    for name, most in MAXIMA.items():
        if counters.get(name) == most:
            yield Finding(
                part,
                "counter_saturated",
                Severity.INFO,
                FindingKind.TOOL,
                detail=f"{name} stands at its maximum of {most}",
            )


def bad_lane(part: str | None, counters: Mapping[str, int]) -> Finding | None:
    """One lane that makes nearly all errors of a link, some of which were not corrected."""
    lanes = {int(m[1]): n for name, n in counters.items() if (m := _LANE.fullmatch(name))}
    if len(lanes) < 2:  # noqa: PLR2004 - one lane has no others to compare with
        return None
    worst = max(lanes, key=lambda lane: lanes[lane])
    others = sum(lanes.values()) - lanes[worst]
    if lanes[worst] <= _LANE_RATIO * max(others, 1):
        return None
    detail = f"lane {worst}: {lanes[worst]} bit errors, all other lanes: {others}"
    leaked = counters.get("rx_crc_errors_phy", 0) + counters.get("rx_pcs_symbol_err_phy", 0)
    if not leaked:
        return Finding(
            part, "lane_errors_corrected", Severity.INFO, FindingKind.TOOL, detail=detail
        )
    return Finding(
        part,
        "bad_lane",
        Severity.MAJOR,
        FindingKind.HARDWARE,
        category=Category.FABRIC,
        detail=f"{detail}; {leaked} errors were not corrected",
    )


def counted(part: str | None, counters: Mapping[str, int]) -> Finding | None:
    """Errors that some counter holds, of which one reading cannot tell when they happened."""
    errors = {name: n for name, n in counters.items() if n and name in _ERRORS}
    if not errors:
        return None
    said = ", ".join(f"{name} {n}" for name, n in sorted(errors.items()))
    return tool_finding("errors_counted", f"{said}; two readings are needed", part)


def are_errors(counters: Mapping[str, int]) -> bool:
    """Whether any counter of errors is among them."""
    return any(name in _ERRORS for name in counters)
