"""perftest (`ib_write_bw`, `ib_read_bw`, `ib_send_bw` and their latency twins): one link's speed.

The tool counts in units of 2^20 bytes unless it was told to print bits; both become Gbit/s here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers.bandwidth import below_floor, finite
from sickbay.readers.conclusion import conclude, contradiction, first_line, tool_finding

TOOL = "perftest"
_TITLE = re.compile(
    r"^\s*(?:RDMA_|Raw )?(\w+?)(?:_| )?(Bidirectional )?(BW|Latency|Atomic \w+) Test"
)
_DEVICE = re.compile(r"\bDevice\s*:\s*([\w.\-]+)")
_HEADER = re.compile(r"^\s*#bytes\s+#iterations\s+(\S.*)$")
_ROW = re.compile(r"^\s*(\d{1,15})\s+(\d{1,15})\s+(\S.*)$")
_COLUMN = re.compile(r"([A-Za-z_%][\w %.]*?)\[([^\]]{1,20})\]")
_RULE = re.compile(r"^-{20,}\s*$")
_ERRORS: tuple[tuple[str, str], ...] = (
    (r"port number \d+ state is (?:down|init)|port .* is not active", "port_not_active"),
    (r"ib device \S+ not found|no ib devices found|did not detect devices", "device_not_found"),
    (r"completion with error|failed status \d+|syndrom", "ib_transfer_failed"),
    (r"couldn't connect|unable to connect|connection refused|no route to host", "peer_unreachable"),
    (r"failed to (?:connect|exchange)|couldn't listen|exchange data failed", "peer_unreachable"),
    (r"unable to (?:init|establish)", "peer_unreachable"),
    (r"couldn't (?:allocate|create|get|register|modify)|failed to (?:allocate|create|modify|set)",
     "tool_error"),
)  # fmt: skip
_PATTERNS = tuple((re.compile(p, re.IGNORECASE), reason) for p, reason in _ERRORS)
_GBIT_PER_MIB = 8 * 2**20 / 1e9
JUDGED_FROM_BYTES = 32 * 1024
"""Below this message size the rate of messages rules, not the link (our choice)."""


@dataclass
class _Run:
    verb: str = ""
    device: str | None = None
    columns: list[tuple[str, str]] = field(default_factory=list)
    rows: list[tuple[int, dict[str, float | None]]] = field(default_factory=list)
    closed: bool = False


def recognises(text: str) -> bool:
    """Whether a text looks like an output of perftest."""
    title = re.search(
        r"^\s*(?:RDMA_|Send|Raw )\S* ?(?:\w+ )?(?:BW|Latency) Test", text, re.MULTILINE
    )
    return bool(title) or bool(re.search(r"^\s*#bytes\s+#iterations\s", text, re.MULTILINE))


def read(text: str, *, exit_code: int | None, floors: Mapping[str, float] | None = None) -> Reading:
    """What one run between two ends means.

    Args:
        text: what one end printed.
        exit_code: the exit status, None when it is not known.
        floors: bandwidths of the class in Gbit/s by `ib_<verb>_bw_gbps` (verb: write, read, send)
            or `ib_bw_gbps` for all; absent ones are not judged.
    """
    run = _run(text)
    findings = list(_errors(text, run.device))
    whole = bool(run.rows) and (run.closed or exit_code == 0)
    if not run.rows and not findings:
        findings.append(tool_finding("did_not_run", first_line(text)))
    elif run.rows and not whole:
        findings.append(tool_finding("incomplete", "the table of results does not end"))
    if whole:
        findings += _judged(run, floors or {})
    findings += contradiction(exit_code, findings)
    best = _best(run)
    return conclude(
        TOOL,
        text,
        findings,
        passed=None if not run.rows else f"best average {best:g} Gb/s" if best else "it ran",
        measurements=list(_measurements(run)),
    )


def _run(text: str) -> _Run:
    run = _Run()
    for line in text.splitlines():
        title, device, header, row = (p.search(line) for p in (_TITLE, _DEVICE, _HEADER, _ROW))
        if title and not run.verb:
            run.verb = title[1].lower()
        elif device and run.device is None:
            run.device = device[1]
        elif header:
            run.columns = [
                (re.sub(r"[^a-z0-9]+", "_", m[1].strip().lower()), m[2])
                for m in _COLUMN.finditer(header[1])
            ]
            run.closed = False
        elif row and run.columns:
            values = row[3].split()
            if len(values) >= len(run.columns):
                names = [name for name, _ in run.columns]
                run.rows.append((int(row[1]), dict(zip(names, map(finite, values), strict=False))))
        elif _RULE.match(line) and run.rows:
            run.closed = True
    return run


def _errors(text: str, device: str | None) -> Iterator[Finding]:
    seen = set()
    for line in text.splitlines():
        reason = next((reason for pattern, reason in _PATTERNS if pattern.search(line)), None)
        if reason and reason not in seen:
            seen.add(reason)
            yield Finding(
                device,
                reason,
                Severity.WARNING,
                FindingKind.TOOL,
                category=Category.FABRIC,
                detail=line.strip()[:300],
            )


def _judged(run: _Run, floors: Mapping[str, float]) -> Iterator[Finding]:
    bandwidths = _averages(run)
    if any(name == "bw_average" for name, _ in run.columns) and not bandwidths:
        yield tool_finding("not_measured", "no average bandwidth is a positive number", run.device)
    floor = floors.get(f"ib_{run.verb}_bw_gbps", floors.get("ib_bw_gbps"))
    best = _best(run)
    if floor is None or best is None or best >= floor:
        return
    if max(size for size, _ in bandwidths) < JUDGED_FROM_BYTES:
        yield tool_finding("sizes_too_small", "only small messages were sent", run.device)
    else:
        yield below_floor(run.device, what="best average", value=best, floor=floor, unit="Gb/s")


def _averages(run: _Run) -> list[tuple[int, float]]:
    return [(size, v) for size, name, v, unit in _values(run) if name == "bw_average" and v > 0]


def _best(run: _Run) -> float | None:
    return max((value for _, value in _averages(run)), default=None)


def _values(run: _Run) -> Iterator[tuple[int, str, float, str]]:
    units = dict(run.columns)
    for size, values in run.rows:
        for name, value in values.items():
            if value is None:
                continue
            unit = units[name]
            if unit.lower().startswith("mb"):
                yield size, name, value * _GBIT_PER_MIB, "Gb/s"
            else:
                yield size, name, value, "Gb/s" if unit.lower().startswith("gb") else unit


def _measurements(run: _Run) -> Iterator[Measurement]:
    for size, name, value, unit in _values(run):
        # A peak of nought was not measured: long runs do not look for it.
        if name == "bw_peak" and value == 0:
            continue
        full = f"{name}_gbps" if unit == "Gb/s" else f"{name}_{unit.lower()}"
        yield Measurement(full, run.device, value, unit, size_bytes=size)
