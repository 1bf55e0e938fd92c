"""fio: what a run on a disk means, from its document, its sentences and its exit status.

An error of the medium fails the device although the document is cut; every other error says why
the run was none.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers.bandwidth import below_floor, finite
from sickbay.readers.conclusion import conclude, contradiction, tool_finding
from sickbay.readers.documents import json_documents

TOOL = "fio"
_IO_ERROR = re.compile(
    r"fio: io_u error(?: on file (?P<file>\S+?))?: (?P<words>[A-Z][\w ,/()'-]{2,60})"
)
_PID_ERROR = re.compile(r"fio: pid=\d+, err=(?P<number>\d{1,5})/(?:file:)?(?P<where>[\w.]+:\d+)?")
_VERIFY = re.compile(
    r"verify: bad (?:magic )?header|verify failed at|\b(?:md5|crc\w*|sha\w*|xxhash|pattern|meta):"
    r" verify failed|bad verify|verify: bad"
)
_VERIFY_FILE = re.compile(r"(?:at file |file )(\S+)")
_TEXT_JOB = re.compile(r"^\S+: \(groupid=\d+, jobs=\d+\): err=\s*(\d{1,5})", re.MULTILINE)
_TERSE = re.compile(r"^[345];fio-[\w.\-]+;[^;]*;\d+;(\d{1,5});", re.MULTILINE)
_SIGN = re.compile(
    r"\"fio version\"\s*:|^fio: |^(?:\d;)?fio-\d|\(groupid=\d+, jobs=\d+\): err=|fio=fio-\d",
    re.MULTILINE,
)
_WORDS = {
    "input/output error": 5,
    "remote i/o error": 121,
    "no space left on device": 28,
    "invalid or incomplete multibyte": 84,
    "structure needs cleaning": 117,
    "no such device": 19,
    "connection timed out": 110,
    "permission denied": 13,
    "no data available": 61,
    "read-only file system": 30,
}
# Numbers of Linux; the first group are errors of the medium or its path.
_MEDIUM = {
    5: "eio",
    61: "medium_error",
    121: "remote_io_error",
    19: "device_gone",
    6: "device_gone",
}
_CORRUPT = {84}
_TOOL = {
    1: "no_permission",
    13: "no_permission",
    2: "no_such_file",
    28: "no_space",
    30: "read_only",
}
_DIRECTIONS = ("read", "write", "trim")
_P99 = "99.000000"
_KIB = 1024


def recognises(text: str) -> bool:
    """Whether a text looks like an output of fio."""
    return bool(_SIGN.search(text))


def read(text: str, *, exit_code: int | None, floors: Mapping[str, float] | None = None) -> Reading:
    """What one run of fio with `--output-format=json` means.

    Args:
        text: what was printed.
        exit_code: the exit status, None when it is not known.
        floors: the class's least values by `fio_<measurement>` or `<measurement>`, such as
            `fio_read_iops` or `fio_write_bytes_per_s`; absent ones are not judged.
    """
    documents, truncated = json_documents(text)
    runs = [d for d in documents if "jobs" in d or "client_stats" in d]
    jobs = [job for d in runs for job in _jobs(d)]
    device = _device(runs, text)
    findings = [*_of_sentences(text), *_of_jobs(jobs, device)]
    if truncated:
        findings.append(tool_finding("truncated", "the document does not end"))
    elif not runs and "{" in text:
        findings.append(tool_finding("invalid_json", "what stands in braces is no JSON"))
    elif not runs:
        findings += _of_plain_text(text)
    measured = list(_measurements(jobs))
    if runs and not any(m.value > 0 for m in measured):
        findings.append(tool_finding("not_measured", "no input or output was done"))
    findings += _below(measured, floors or {}, device)
    findings += contradiction(exit_code, findings)
    return conclude(
        TOOL,
        text,
        _once(findings),
        passed=f"{len(jobs)} jobs ended without an error" if jobs else None,
        measurements=measured,
    )


def _of_sentences(text: str) -> Iterator[Finding]:
    for line in text.splitlines():
        error, pid = _IO_ERROR.search(line), _PID_ERROR.search(line)
        if error:
            words = error["words"].lower()
            number = next((n for sign, n in _WORDS.items() if sign in words), 0)
            yield _of_number(number, _name(error["file"]), line)
        elif pid and int(pid["number"]):
            yield _of_number(int(pid["number"]), None, line)
        elif _VERIFY.search(line):
            where = _VERIFY_FILE.search(line)
            yield _corrupt(_name(where[1].rstrip(",:")) if where else None, line)


def _of_jobs(jobs: Sequence[Mapping[str, Any]], device: str | None) -> Iterator[Finding]:
    for job in jobs:
        number = finite(job.get("error"))
        if number is None:
            yield tool_finding("incomplete", "a job does not say whether it ended in an error")
        elif number:
            options = _mapping(job.get("job options"))
            own = _name(options.get("filename")) or device
            yield _of_number(int(number), own, f"job {job.get('jobname')}: error {number:g}")


def _of_number(number: int, part: str | None, detail: str) -> Finding:
    if number in _CORRUPT:
        return _corrupt(part, detail)
    if number in _MEDIUM:
        return Finding(
            part,
            _MEDIUM[number],
            Severity.CRITICAL,
            FindingKind.HARDWARE,
            category=Category.STORAGE,
            detail=detail.strip()[:300],
        )
    return tool_finding(_TOOL.get(number, "tool_error"), detail, part)


def _corrupt(part: str | None, detail: str) -> Finding:
    return Finding(
        part,
        "data_corruption",
        Severity.CRITICAL,
        FindingKind.HARDWARE,
        category=Category.STORAGE,
        detail=detail.strip()[:300],
    )


def _of_plain_text(text: str) -> Iterator[Finding]:
    """The report for people, or the terse one: its errors count, its numbers are not read."""
    for match in (*_TEXT_JOB.finditer(text), *_TERSE.finditer(text)):
        if int(match[1]):
            yield _of_number(int(match[1]), None, match[0])
    yield tool_finding("did_not_run", "no document of fio is in the output")


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, each reason once per part; a part's own stand for those that name none."""
    named = {f.reason for f in findings if f.part}
    found: dict[tuple[str, str | None], Finding] = {}
    for finding in findings:
        if finding.part or finding.reason not in named:
            found.setdefault((finding.reason, finding.part), finding)
    return list(found.values())


def _jobs(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    jobs = document.get("jobs", document.get("client_stats"))
    found = [job for job in jobs if isinstance(job, Mapping)] if isinstance(jobs, list) else []
    return [job for job in found if job.get("jobname") != "All clients"]


def _device(runs: Sequence[Mapping[str, Any]], text: str) -> str | None:
    """The one device a run was on, None when there is none or more."""
    names = {_name(_mapping(d.get("global options")).get("filename")) for d in runs}
    if names <= {None}:
        used = [u for d in runs for u in d.get("disk_util") or [] if isinstance(u, Mapping)]
        names = {str(u["name"]) for u in used if "name" in u}
    if not names:
        names = {_name(m) for m in re.findall(r'"filename"\s*:\s*"([^"]{1,200})"', text)}
    return names.pop() if len(names) == 1 else None


def _name(file: object) -> str | None:
    """The device's name of a path under /dev; a file on a file system names none."""
    found = re.fullmatch(r"/dev/([\w/.\-]{1,100})", file) if isinstance(file, str) else None
    return found[1] if found else None


def _measurements(jobs: Sequence[Mapping[str, Any]]) -> Iterator[Measurement]:
    """The sums over the jobs, and the slowest job's 99th percentile, of each direction used."""
    for direction in _DIRECTIONS:
        sides = [_mapping(job.get(direction)) for job in jobs]
        used = [side for side in sides if (finite(side.get("iops")) or 0) > 0]
        if not used:
            continue
        rates = [_bytes_per_s(side) for side in used]
        waits = [w for w in map(_p99_ns, used) if w is not None]
        iops = sum(finite(side.get("iops")) or 0.0 for side in used)
        yield Measurement(f"{direction}_iops", None, iops, "1/s")
        if all(r is not None for r in rates):
            total = sum(r for r in rates if r is not None)
            yield Measurement(f"{direction}_bytes_per_s", None, total, "B/s")
        if waits:
            yield Measurement(f"{direction}_latency_p99_ns", None, max(waits), "ns")


def _bytes_per_s(side: Mapping[str, Any]) -> float | None:
    """`bw` is in KiB/s; newer versions say `bw_bytes` too."""
    exact, rounded = finite(side.get("bw_bytes")), finite(side.get("bw"))
    if exact is not None:
        return exact
    return None if rounded is None else rounded * _KIB


def _p99_ns(side: Mapping[str, Any]) -> float | None:
    for key in ("clat_ns", "lat_ns"):
        found = finite(_mapping(_mapping(side.get(key)).get("percentile")).get(_P99))
        if found is not None:
            return found
    return None


def _below(
    measured: Sequence[Measurement], floors: Mapping[str, float], device: str | None
) -> Iterator[Finding]:
    for one in measured:
        floor = floors.get(f"fio_{one.name}", floors.get(one.name))
        if floor is not None and not one.name.endswith("_ns") and one.value < floor:
            yield below_floor(device, what=one.name, value=one.value, floor=floor, unit=one.unit)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
