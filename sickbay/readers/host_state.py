"""The host beside its GPUs: full disks by `df -P`, words its memory lost by the kernel's counts.

A full disk is nobody's broken part: it keeps the check from a verdict until somebody makes room.
"""

import re

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers.conclusion import conclude, contradiction, first_line, tool_finding

TOOL = "host"
FULL_PERCENT = 98
"""From here on a file system counts as full: logs, sockets and locks fail soon after."""
_HEAD = re.compile(
    r"^Filesystem\s+\S+\s+Used\s+Available\s+Capacity\s+Mounted on\s*$", re.MULTILINE
)
_ROW = re.compile(r"^(/dev/\S+)\s+(\d+)\s+(\d+)\s+(-?\d+)\s+(\d{1,3})%\s+(/.*?)\s*$", re.MULTILINE)
_LOST = re.compile(r"^\S*/edac/mc/(mc\d{1,3})/ue_count:\s*(\d{1,12})\s*$", re.MULTILINE)
# Images that are mounted read-only are full by nature.
_IMAGES = re.compile(r"^/dev/loop\d+$")


def read(text: str, *, exit_code: int | None) -> Reading:
    """What `df -P -l` and the files `ue_count` of the memory controllers mean.

    Args:
        text: the table of `df`, then `path: value` lines.
        exit_code: the exit status of `df`, None when it is not known.
    """
    findings = [*_full(text), *_lost(text)]
    shown = bool(_HEAD.search(text))
    if not shown:
        findings.append(tool_finding("did_not_run", first_line(text)))
    findings += contradiction(exit_code, findings)
    rows = len(_ROW.findall(text))
    passed = f"{rows} disks have room, no word of memory was lost" if shown else None
    return conclude(TOOL, text, findings, passed=passed)


def _full(text: str) -> list[Finding]:
    return [
        tool_finding("disk_full", f"{row[6]} on {row[1]} is {row[5]} % full", row[6])
        for row in _ROW.finditer(text)
        if int(row[5]) >= FULL_PERCENT and not _IMAGES.match(row[1])
    ]


def _lost(text: str) -> list[Finding]:
    return [
        Finding(
            row[1],
            "memory_uncorrected",
            Severity.CRITICAL,
            FindingKind.HARDWARE,
            category=Category.HOST,
            detail=f"{row[2]} uncorrectable errors since the memory controller was started",
        )
        for row in _LOST.finditer(text)
        if int(row[2])
    ]
