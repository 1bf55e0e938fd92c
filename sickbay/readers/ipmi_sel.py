"""The event log of a board: `ipmitool sel list` and `elist`, and FreeIPMI's `ipmi-sel`.

An event that was deasserted later is over. A warning stands beside a pass, unless it is the newest
entry: then what it led to is not written yet. What nobody knows is told and is no verdict; the log
keeps events until somebody clears it, so a fault here can be old.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers.conclusion import conclude, contradiction, first_line, tool_finding

TOOL = "ipmi-sel"
_EMPTY = re.compile(r"SEL has no entries", re.IGNORECASE)
_ID = re.compile(r"^[0-9a-f]{1,8}$", re.IGNORECASE)
_NUMBER = re.compile(r"\s*#0x[0-9a-f]+\s*$", re.IGNORECASE)
_ERROR = re.compile(
    r"^(?:Error:.*|Get SEL Info.*failed.*|Could not open device.*|.*Unable to establish.*)$",
    re.MULTILINE,
)
_FIELDS = 5
_DIRECTION = re.compile(r"\s*;?\s*(?:de)?assert\w*(?: event)?\s*$", re.IGNORECASE)
_FREEIPMI = {"id", "name", "type", "event"}
_HARD, _SOFT, _NOTE = "hard", "soft", "note"


@dataclass(frozen=True)
class _Meaning:
    """What an event of a sensor means. `weight`: fails, is worth a look, or is only a note."""

    sensor: str
    event: str
    reason: str
    weight: str
    category: Category = Category.HOST
    severity: Severity = Severity.MAJOR

    def fits(self, sensor: str, event: str) -> bool:
        return bool(
            re.search(self.sensor, sensor, re.IGNORECASE)
            and re.search(self.event, event, re.IGNORECASE)
        )


_WORST = Severity.CRITICAL
# Sensor types and offsets are those of the IPMI 2.0 specification, in ipmitool's words.
_MEANINGS: tuple[_Meaning, ...] = (
    _Meaning(r"", r"bus fatal error", "bus_fatal_error", _HARD, severity=_WORST),
    _Meaning(r"", r"bus uncorrectable error", "bus_uncorrectable_error", _HARD, severity=_WORST),
    _Meaning(r"", r"\bpci (?:perr|serr)|fatal nmi|channel check nmi", "bus_fatal_error", _HARD,
             severity=_WORST),
    _Meaning(r"", r"bus correctable error", "bus_correctable_error", _SOFT),
    _Meaning(r"", r"bus degraded", "bus_degraded", _HARD),
    _Meaning(r"", r"uncorrectable (?:ecc|memory|error)", "memory_uncorrected", _HARD,
             severity=_WORST),
    _Meaning(r"", r"(?<!un)correctable ecc logging limit", "memory_corrected_limit", _HARD),
    _Meaning(r"", r"(?<!un)correctable (?:ecc|memory)", "memory_corrected", _SOFT),
    _Meaning(r"", r"(?<!un)correctable machine check", "mce_corrected", _SOFT),
    _Meaning(r"memory|dimm", r"parity|memory device disabled", "memory_uncorrected", _HARD),
    _Meaning(r"", r"thermal trip|over-?temperature", "thermal_trip", _HARD, Category.THERMAL,
             _WORST),
    _Meaning(r"", r"\bierr\b|caterr|\bmcerr\b|machine check|frb\d", "processor_error", _HARD,
             severity=_WORST),
    _Meaning(r"power supply|\bpsu?\d|\bps \d", r"failure detected|\bfault\b", "power_supply_failed",
             _HARD),
    _Meaning(r"", r"power supply ac lost|ac lost|input lost", "power_supply_input_lost", _HARD),
    _Meaning(r"", r"predictive failure", "predictive_failure", _SOFT),
    _Meaning(r"", r"redundancy lost|non-redundant|redundancy degraded", "redundancy_lost", _SOFT),
    _Meaning(r"", r"drive fault|in (?:critical|failed) array", "drive_fault", _HARD,
             Category.STORAGE),
    _Meaning(r"liquid|leak|coolant", r"\bleak|state asserted|critical", "coolant_leak", _HARD,
             Category.THERMAL, _WORST),
    _Meaning(r"temp|thermal|inlet|outlet|fan|cooling", r"(?<!non-)critical|non-recoverable",
             "thermal_critical", _HARD, Category.THERMAL),
    _Meaning(r"", r"(?:upper|lower) (?:critical|non-recoverable)", "sensor_critical", _HARD),
    _Meaning(r"", r"non-critical", "sensor_non_critical", _SOFT),
    _Meaning(r"watchdog", r"hard reset|power (?:down|cycle)|timer expired|timer interrupt",
             "watchdog_fired", _SOFT),
    _Meaning(r"firmware progress|boot progress", r"", "sel_event", _NOTE),
    _Meaning(r"", r"run-time critical stop|os (?:critical|graceful) stop|graceful (?:stop|shut)",
             "os_stopped", _NOTE),
    _Meaning(r"", r"presence detected|drive present|device present|fully redundant|log area|"
             r"\b(?:clear(?:ed)?|initiated by|timestamp clock|s0/g0|s4/s5|power o(?:n|ff)|restart)"
             r"|boot completed|transition to (?:running|ok|on|power)|state deasserted|event logging"
             r"|oem record|lan |slot .*inserted|chassis intrusion|enabled|performance met"
             r"|sel .*(?:full|cleared)|identify|ok$", "sel_event", _NOTE),
)  # fmt: skip


@dataclass(frozen=True)
class _Event:
    sensor: str
    event: str
    asserted: bool
    line: str


def recognises(text: str) -> bool:
    """Whether a text looks like a list of events."""
    row = (
        r"^\s*[0-9a-f]{1,8} ?[|,] *(?:\d\d/\d\d/\d{2,4}|Pre-Init)|^ID\s*\| Date\s*\| Time\s*\| Name"
    )
    return bool(re.search(row, text, re.MULTILINE | re.IGNORECASE) or _EMPTY.search(text))


def read(text: str, *, exit_code: int | None) -> Reading:
    """What the list of events means.

    Args:
        text: what was printed.
        exit_code: the exit status, None when it is not known.
    """
    events, cut = _events(text)
    found = [f for event in _standing(events) for f in _of_event(event)]
    findings = list({(f.part, f.reason): f for f in reversed(found)}.values())[::-1]
    remarks = [f for f in findings if _is_remark(f)]
    findings = [f for f in findings if not _is_remark(f)]
    if cut:
        findings.append(tool_finding("incomplete", f"a row is cut: {cut}"))
    if events and events[-1].asserted:
        findings += [
            tool_finding("newest_is_warning", "read the log again later", f.part)
            for f in _of_event(events[-1])
            if f.kind is FindingKind.HARDWARE and f.severity is Severity.WARNING
        ]
    error = _ERROR.search(text)
    if error:
        findings.append(tool_finding("bmc_unreachable", error[0]))
    empty = bool(_EMPTY.search(text))
    if not events and not empty and not findings:
        findings.append(tool_finding("did_not_run", first_line(text)))
    findings += contradiction(exit_code, findings)
    return conclude(
        TOOL,
        text,
        findings,
        passed=_said(remarks) if events or empty else None,
        remarks=remarks,
    )


def _is_remark(finding: Finding) -> bool:
    """Whether a finding is a note, or a warning of a sensor that is no fault yet."""
    warns = finding.kind is FindingKind.HARDWARE and finding.severity is Severity.WARNING
    return warns or finding.severity is Severity.INFO


def _said(remarks: Sequence[Finding]) -> str:
    warnings = sum(f.severity is Severity.WARNING for f in remarks)
    return "no fault is recorded" + (f", warnings stand: {warnings}" if warnings else "")


def _events(text: str) -> tuple[list[_Event], str | None]:
    """The rows, and a row that is cut."""
    found: list[_Event] = []
    cut = None
    columns: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|" if "|" in line else ",")]
        if {cell.lower() for cell in cells} >= _FREEIPMI:
            columns = [cell.lower() for cell in cells]
        if len(cells) < 2 or not _ID.match(cells[0]):  # noqa: PLR2004 - no row at all
            continue
        if cells[1].lower().startswith("oem record"):
            found.append(_Event("OEM", "OEM record", asserted=True, line=line.strip()))
            continue
        event = _typed(cells, columns, line) if columns else _event(cells, line)
        if event is None:
            cut = line.strip()[:100]
        else:
            found.append(event)
    return found, cut


def _event(cells: list[str], line: str) -> _Event | None:
    """A row of ipmitool: sensor, event, and whether it was asserted, in words of their own."""
    said = [cell.lower() for cell in cells[_FIELDS:]]
    if len(cells) < _FIELDS or _is_cut(said):
        return None
    return _Event(cells[3], cells[4], "deasserted" not in said, line.strip())


def _is_cut(said: list[str]) -> bool:
    """Whether the word of direction was begun and not ended."""
    whole = {"asserted", "deasserted"}
    return any(cell and cell not in whole and "deasserted".startswith(cell) for cell in said)


def _typed(cells: list[str], columns: list[str], line: str) -> _Event | None:
    """A row of FreeIPMI: name, type of the sensor, and the event with its direction, if any."""
    if len(cells) != len(columns):
        return None
    row = dict(zip(columns, cells, strict=True))
    over = "deassert" in row["event"].lower()
    event = _DIRECTION.sub("", row["event"])
    return _Event(f"{row['name']} ({row['type']})", event, not over, line.strip())


def _standing(events: Sequence[_Event]) -> list[_Event]:
    """The events that were not deasserted later."""
    last = {(event.sensor, event.event): event for event in events}
    return [event for event in last.values() if event.asserted]


def _of_event(event: _Event) -> Iterator[Finding]:
    meaning = next((m for m in _MEANINGS if m.fits(event.sensor, event.event)), None)
    part = _NUMBER.sub("", event.sensor) or None
    if meaning is None:
        yield tool_finding("sel_event_unknown", event.line, part)
    elif meaning.weight in {_HARD, _SOFT}:
        yield Finding(
            part,
            meaning.reason,
            meaning.severity if meaning.weight == _HARD else Severity.WARNING,
            FindingKind.HARDWARE,
            category=meaning.category,
            detail=event.line[:300],
        )
    else:
        yield Finding(
            part, meaning.reason, Severity.INFO, FindingKind.TOOL, detail=event.line[:300]
        )
