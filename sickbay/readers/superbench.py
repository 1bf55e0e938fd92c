"""SuperBench: the measurements of its benchmarks, as `name value` lines or as documents.

What a good value is, the names do not say: copies by SM to the host are slow by design. Only a
floor for exactly that name judges.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sickbay.domain.reading import Finding, Measurement, Reading
from sickbay.readers.bandwidth import below_floor, finite
from sickbay.readers.conclusion import conclude, contradiction, first_line, tool_finding
from sickbay.readers.documents import json_documents

TOOL = "superbench"
_PAIR = re.compile(r"^\s*([A-Za-z][\w/:\-]{2,150})[\s:]\s*(-?[\w.+]{1,40})\s*$")
_COPY = re.compile(r"(?:cpu|gpu\w*)_(?:to|and)_(?:cpu|gpu\w*?)(?:_(?:read|write))?_by_(?:sm|dma)")
_STREAM = re.compile(r"^(STREAM_[A-Z]+_\w{1,100})\s+(\S{1,40})\s+(\S{1,40})\s*$")
_SIGN = re.compile(
    rf"^\s*{_COPY.pattern}\w* \S+\s*$|^STREAM_[A-Z]+_\w+\s+\d|\"return_code\"\s*:", re.MULTILINE
)
_FAILED = re.compile(r"^.*(?:\berror\b|\bfailed\b|Traceback|cuda\w*Error).*$",
                     re.IGNORECASE | re.MULTILINE)  # fmt: skip
_NOT_METRICS = {"node", "return_code", "raw_data", "name", "type", "run_count", "start_time",
                "end_time", "reduce_op"}  # fmt: skip


def recognises(text: str) -> bool:
    """Whether a text looks like measurements of SuperBench."""
    return bool(_SIGN.search(text))


def read(text: str, *, exit_code: int | None, floors: Mapping[str, float] | None = None) -> Reading:
    """What one output of a benchmark means.

    Args:
        text: `name value` lines, or one or more documents of results.
        exit_code: the exit status, None when it is not known.
        floors: the class's least values by the measurement's own name, in its own unit.
    """
    documents, truncated = json_documents(text)
    findings: list[Finding] = []
    measured: dict[str, float] = {}
    if truncated:
        findings.append(tool_finding("truncated", "a document does not end"))
    for document in documents:
        findings += _of_codes(document)
        measured |= dict(_numbers(document))
    if not documents and not truncated:
        findings += _of_text(text, measured)
    if not measured and not findings:
        findings.append(tool_finding("did_not_run", first_line(text)))
    for name, value in measured.items():
        floor = (floors or {}).get(name)
        if floor is not None and value < floor:
            unit = _unit(name)
            findings.append(below_floor(None, what=name, value=value, floor=floor, unit=unit))
    findings += contradiction(exit_code, findings)
    return conclude(
        TOOL,
        text,
        findings,
        passed=f"{len(measured)} measurements" if measured else None,
        measurements=[Measurement(n, None, v, _unit(n)) for n, v in measured.items()],
    )


def _of_text(text: str, measured: dict[str, float]) -> Iterator[Finding]:
    for line in text.splitlines():
        pair = _PAIR.match(line) or _STREAM.match(line)
        if pair is None:
            continue
        value = finite(pair[2])
        if value is not None:
            measured[pair[1]] = value
        elif _COPY.match(pair[1]) or _STREAM.match(line):
            yield tool_finding("not_measured", line)
    failed = _FAILED.search(text)
    if failed:
        yield tool_finding("tool_error", failed[0])


def _of_codes(document: Mapping[str, Any]) -> Iterator[Finding]:
    """The benchmark's own return codes: one number, or one per run."""
    for name, value in _codes(document):
        numbers = value if isinstance(value, list) else [value]
        bad = [n for n in numbers if n != 0]
        if bad:
            yield tool_finding("did_not_run", f"{name}: {bad[0]}")


def _codes(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in [*document.items(), *_mapping(document.get("result")).items()]:
        if name == "return_code" or name.endswith("/return_code"):
            yield name, value


def _numbers(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in [*document.items(), *_mapping(document.get("result")).items()]:
        if name in _NOT_METRICS or name.endswith("/return_code"):
            continue
        numbers = list(map(finite, value if isinstance(value, list) else [value]))
        known = [n for n in numbers if n is not None]
        if known and len(known) == len(numbers):
            yield name, min(known)


def _unit(name: str) -> str:
    """The unit, where the kind of benchmark fixes it; the output itself never says."""
    return "GB/s" if _COPY.search(name) or name.startswith("STREAM_") else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
