"""`dcgmi nvlink -s` and `-e`: which links are up, and what their error counters hold.

A link that is down is a fault where the class has links, or where another link of the node is up:
a card without NVLink shows the same letter. Counters are totals: one reading is no rate.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers import dcgm_answers
from sickbay.readers.conclusion import conclude, first_line, tool_finding
from sickbay.readers.documents import json_documents
from sickbay.readers.exposition import number

TOOL = "dcgmi-nvlink"

_GPU_HEAD = re.compile(r"\s*gpuId (\d+):", re.IGNORECASE)
_SWITCH_HEAD = re.compile(r"\s*(?:physicalId|switchId|nvSwitches)\b.*:?", re.IGNORECASE)
_STATES = re.compile(r"\s*[UDX_](?:\s+[UDX_])*\s*")
_KEY = re.compile(r"^Key: ", re.IGNORECASE | re.MULTILINE)
_COUNTER = re.compile(r"(CRC FLIT|CRC Data|Replay|Recovery) Errors?\b", re.IGNORECASE)
_ROW = re.compile(r"\|\s*(?:->\s*)?(?P<name>[^|]+?)\s*\|\s*(?P<value>[^|]*?)\s*\|\s*")
_TITLE_GPU = re.compile(r"\bGPU (\d+)\b")
_LINK = re.compile(r"Link (\d+)", re.IGNORECASE)


@dataclass
class _Counters:
    """The counters of one GPU, summed over its links; None in `unread` for what had no number."""

    totals: dict[str, float] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    def add(self, printed: str, value: str) -> None:
        """Count one printed value; values come as numbers in strings."""
        found = _COUNTER.match(printed.strip())
        if found is None:
            return
        name = found[1].lower().replace(" ", "_")
        count = number(value)
        if isinstance(count, float):
            self.totals[name] = self.totals.get(name, 0.0) + count
        else:
            self.unread.add(name)


def read(
    text: str,
    *,
    exit_code: int | None,
    links_per_gpu: int | None = None,
    gpus: int | None = None,
) -> Reading:
    """What an answer about NVLinks means.

    Args:
        text: what `dcgmi nvlink -s` or `-e` printed, JSON or text.
        exit_code: the exit status, None when it is not known.
        links_per_gpu: links the node class has per GPU, None when nobody says.
        gpus: GPUs the node class has, None when nobody says.
    """
    findings = dcgm_answers.of_text(text)
    own = dcgm_answers.of_exit(exit_code)
    findings += [own] if own else []
    documents, truncated = json_documents(text)
    counters = _document_counters(documents) or _table_counters(text)
    states = _states(text)
    if truncated or (counters and not documents and not text.rstrip().endswith("+")):
        findings.append(tool_finding("truncated", "the answer has no end"))
    if counters:
        return _of_counters(text, counters, findings)
    if not states:
        if not findings:
            findings.append(tool_finding("no_document", first_line(text)))
        return conclude(TOOL, text, findings, passed=None)
    if not _KEY.search(text):
        findings.append(tool_finding("truncated", "the key below the links is missing"))
    if gpus is not None and len(states) != gpus:
        reason = "gpus_not_listed" if len(states) < gpus else "class_mismatch"
        findings.append(tool_finding(reason, f"{len(states)} of {gpus} GPUs are shown"))
    fitted = links_per_gpu if links_per_gpu is not None else _fitted(states)
    for part, letters in states.items():
        findings += _judged(part, letters, fitted, expected=links_per_gpu)
    return conclude(TOOL, text, findings, passed=f"all links of {len(states)} GPUs are up")


def recognises(text: str) -> bool:
    """Whether a text is an answer of `dcgmi nvlink`."""
    lowered = text.lower()
    return "nvlink error counts" in lowered or "nvlink link status" in lowered


def _states(text: str) -> dict[str, str]:
    """Letters of the links per GPU: U up, D down, X disabled, _ not supported."""
    found: dict[str, str] = {}
    part: str | None = None
    for line in text.splitlines():
        if head := _GPU_HEAD.match(line):
            part = head[1]
            found.setdefault(part, "")
            line = line[head.end() :]  # noqa: PLW2901 - the letters may follow on the same line
        elif _SWITCH_HEAD.match(line):
            part = None
        if part is not None and _STATES.fullmatch(line):
            found[part] += "".join(line.split())
    return found


def _fitted(states: Mapping[str, str]) -> int | None:
    """Links per GPU as the node itself shows them, None when no link is up anywhere."""
    if not any("U" in letters for letters in states.values()):
        return None
    return max(sum(letter != "_" for letter in letters) for letters in states.values())


def _judged(
    part: str, letters: str, fitted: int | None, *, expected: int | None
) -> Iterator[Finding]:
    down = [str(n) for n, letter in enumerate(letters) if letter == "D"]
    if fitted == 0:
        return
    if "X" in letters:
        kind, level = FindingKind.CONFIGURATION, Severity.INFO
        yield Finding(part, "nvlink_disabled", level, kind, detail=f"{letters.count('X')} links")
    if down and fitted is None:
        yield tool_finding("nvlink_all_inactive", "no link of the node is up", part)
    elif down:
        kind, category = FindingKind.HARDWARE, Category.INTERCONNECT
        detail = f"down: {', '.join(down)}"
        yield Finding(part, "nvlink_down", Severity.MAJOR, kind, None, category, detail)
    shown = sum(letter != "_" for letter in letters)
    if not down and (not shown or (expected is not None and shown < expected)):
        yield tool_finding("nvlink_not_shown", f"{shown} of {expected} links are shown", part)


def _document_counters(documents: list[dict[str, Any]]) -> dict[str, _Counters]:
    """Counters of a JSON answer; the head names the GPU of all links in the body."""
    found: dict[str, _Counters] = {}
    for document in documents:
        body, header = document.get("body"), document.get("header")
        if not isinstance(body, dict):
            continue
        title = " ".join(str(h) for h in header) if isinstance(header, list) else str(header)
        gpu = _TITLE_GPU.search(title)
        for printed, link in body.items():
            own = _TITLE_GPU.search(printed)
            part = own[1] if own else gpu[1] if gpu else None
            if part is not None:
                _add_all(found.setdefault(part, _Counters()), link)
    return {part: one for part, one in found.items() if one.totals or one.unread}


def _add_all(into: _Counters, value: object) -> None:
    children = value.get("children") if isinstance(value, dict) else None
    if not isinstance(children, dict):
        return
    for printed, child in children.items():
        if isinstance(child, dict):
            into.add(str(printed), str(child.get("value", "")))
            _add_all(into, child)


def _table_counters(text: str) -> dict[str, _Counters]:
    """Counters of the text table."""
    found: dict[str, _Counters] = {}
    part: str | None = None
    for line in text.splitlines():
        row = _ROW.fullmatch(line.strip())
        if row is None or not row["value"]:
            title = None if _LINK.search(line) else _TITLE_GPU.search(line)
            part = title[1] if title else part
        elif part is not None:
            found.setdefault(part, _Counters()).add(row["name"], row["value"])
    return {part: one for part, one in found.items() if one.totals or one.unread}


def _of_counters(text: str, counters: Mapping[str, _Counters], findings: list[Finding]) -> Reading:
    measured = []
    for part, one in counters.items():
        measured += [
            Measurement(f"nvlink_{name}_errors", part, count, "errors")
            for name, count in one.totals.items()
        ]
        if any(one.totals.values()):
            # A total of weeks is no fault of today: it takes a second reading to say.
            findings.append(tool_finding("nvlink_errors_counted", str(one.totals), part))
        if one.unread:
            findings.append(tool_finding("unreadable", ", ".join(sorted(one.unread)), part))
    passed = "no link has counted an error"
    return conclude(TOOL, text, findings, passed=passed, measurements=measured)
