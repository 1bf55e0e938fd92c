"""The lines of a kernel log in all their spellings: where each comes from, when, and what it says.

Read are dmesg (plain, -T, -x, -r, ISO times), /dev/kmsg records, syslog and journal lines with any
date, journal JSON, and bare messages. What a process wrote into the log is not the kernel's word:
such a line keeps its program and is nobody's finding but that program's.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

KERNEL = "kernel"
USER = "user"
"""The program of a line that some process wrote straight into the kernel's buffer."""

_LONGEST = 8_192
# Lines without a head that may follow one with a head.
_LOOKS_BACK = 64
_FACILITIES_OF_THE_KERNEL = 8
_KMSG = re.compile(r'(?:<(?P<angle>\d+)>)?"?(?P<prio>\d+),\d+,(?P<usec>\d+),[^;]{0,60};')
_ANGLE = re.compile(r"<(?P<prio>\d+)>")
_DECODED = re.compile(r"(?P<facility>[a-z0-9]+) *:[a-z]+ *: ")
_CLOCK = re.compile(
    r"\[ *(?:(?P<mono>\d+\.\d+)|\w{3} (?P<month>[A-Z][a-z]{2}) +(?P<day>\d+)"
    r" (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d) (?P<year>\d{4}))\] ?"
)
_THREAD = re.compile(r"\[ *[TC]\d+\] ?")
_ISO = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
    r"(?P<fraction>[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? "
)
_SYSLOG = re.compile(
    r"(?:(?P<month>[A-Z][a-z]{2}) +(?P<day>\d+)|(?P<lmonth>\d{1,2})\w{1,3} +(?P<lday>\d+)\w?)"
    r"(?: \d{4})? (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:\.\d+)? "
)
_PROGRAM = re.compile(
    r"(?P<host>[^\s:\[]+ )?(?P<program>[A-Za-z][\w.@/-]*)(?P<pid>\[\d+\])?: ?(?=.)"
)
# The fabric manager's own file: [date] [LEVEL] [tid N] sentence.
_FABRIC_MANAGER = re.compile(
    r"\[(?P<month>[A-Z][a-z]{2}) (?P<day>\d+) (?P<year>\d{4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)\]"
    r" \[[A-Z]+\] \[tid \d+\] "
)
FABRIC_MANAGER = "nv-fabricmanager"
_NUMBERED = re.compile(r"\d{1,7} {1,3}(?=NVRM:| )")
# Words that open a message of the kernel and could be taken for a host's name.
_NO_HOST = {"nvme", "mlx5_core", "pcieport", "nvidia", "EXT4-fs", "XFS", "sd", "CPU"}
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_DAYS_PER_MONTH, _DAYS_PER_YEAR = 31, 372


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line: its message without what stands before it.

    `at_s` counts seconds on the clock of the line, comparable within one log only; None without a
    time. `program` is `kernel` for the kernel's own lines, bare messages included. `headed` says
    that anything of a log stood before the message.
    """

    message: str
    program: str = KERNEL
    at_s: float | None = None
    headed: bool = True

    @property
    def of_kernel(self) -> bool:
        """Whether the kernel itself says it."""
        return self.program == KERNEL


def lines(raw: Iterable[str], *, wanted: Callable[[str], object]) -> Iterator[LogLine]:
    """The lines of a log that hold a wanted word.

    A line without a head goes on with what the line before it said, so what a process printed over
    several lines stays that process's word.

    Args:
        raw: lines with their ends.
        wanted: whether a raw line is worth parsing.
    """
    owner = _Owner()
    for one in raw:
        if wanted(one):
            line = parse(one)
            if not line.headed:
                yield replace(line, program=owner.now())
            else:
                owner.is_known(line.program)
                yield line
        else:
            owner.passed(one)


class _Owner:
    """Whose word a line without a head is: that of the last one with a head.

    Lines are parsed only when somebody asks. In a log whose lines have heads, one that has been
    without for long is nobody's; in one without any it is the kernel's.
    """

    def __init__(self) -> None:
        self._unread: deque[str] = deque(maxlen=_LOOKS_BACK)
        self._program = KERNEL
        self._has_heads = False
        self._first = 0

    def passed(self, raw: str) -> None:
        """A line went by that nobody parsed; the first ones tell whether the log has heads."""
        if self._first < _LOOKS_BACK and not self._has_heads:
            self._first += 1
            self._has_heads = parse(raw).headed
        self._unread.append(raw)

    def is_known(self, program: str) -> None:
        """A line with a head was parsed."""
        self._program, self._has_heads = program, True
        self._unread.clear()

    def now(self) -> str:
        """Whose word the next line without a head is."""
        too_many = len(self._unread) == _LOOKS_BACK
        for raw in reversed(self._unread):
            line = parse(raw)
            if line.headed:
                self.is_known(line.program)
                return self._program
        self._unread.clear()
        if too_many and self._has_heads:
            self._program = USER
        return self._program


def parse(raw: str) -> LogLine:
    """The line behind a raw one, by itself."""
    text = raw[:_LONGEST].rstrip("\r\n").lstrip("\ufeff")
    if text.startswith("{") and '"MESSAGE"' in text:
        return _from_journal(text)
    record = _KMSG.match(text)
    if record:
        kernel = int(record["prio"]) < _FACILITIES_OF_THE_KERNEL
        message = text[record.end() :]
        return LogLine(message, KERNEL if kernel else USER, int(record["usec"]) / 1e6)
    whole = text
    program, text = _level(text)
    if found := _FABRIC_MANAGER.match(text):
        return LogLine(text[found.end() :], FABRIC_MANAGER, _wall_s(found))
    at_s, text, has_host = _time(text)
    if (
        has_host is not False
        and (found := _PROGRAM.match(text))
        and _names_one(found, dated=has_host)
    ):
        named = found["program"]
        text = text[found.end() :]
        if named != KERNEL or found["pid"]:
            return LogLine(text, named if named != KERNEL else USER, at_s)
        _, text = _level(text)
        inner = _CLOCK.match(text)
        text = text[inner.end() :] if inner else text
    if thread := _THREAD.match(text):
        text = text[thread.end() :]
    headed = len(text) < len(whole)
    if number := _NUMBERED.match(text):
        text = text[number.end() :]
    return LogLine(text.strip(), program, at_s, headed)


def looks_like_one(raw: str) -> bool:
    """Whether a line stands as only a log's line does: with a record's head, or a time first."""
    text = raw[:_LONGEST]
    if _KMSG.match(text) or _FABRIC_MANAGER.match(text) or _DECODED.match(text):
        return True
    _, text = _level(text)
    if text.startswith("{"):
        return '"MESSAGE"' in text and '"_' in text
    if _CLOCK.match(text):
        return True
    dated = _SYSLOG.match(text) or _ISO.match(text)
    return bool(dated and _PROGRAM.match(text[dated.end() :]))


def _level(text: str) -> tuple[str, str]:
    """The program that a level in front names, and the rest."""
    if angle := _ANGLE.match(text):
        kernel = int(angle["prio"]) < _FACILITIES_OF_THE_KERNEL
        return (KERNEL if kernel else USER), text[angle.end() :]
    if decoded := _DECODED.match(text):
        return (KERNEL if decoded["facility"] == "kern" else USER), text[decoded.end() :]
    return KERNEL, text


def _time(text: str) -> tuple[float | None, str, bool | None]:
    """The time in front, the rest, and whether a host and a program follow (None: perhaps)."""
    if found := _CLOCK.match(text):
        at_s = float(found["mono"]) if found["mono"] else _wall_s(found)
        return at_s, text[found.end() :], False
    if found := _ISO.match(text):
        # dmesg writes a comma and no host; syslog a point or nothing, and the host.
        dmesg = (found["fraction"] or "").startswith(",")
        return _wall_s(found), text[found.end() :], not dmesg
    if found := _SYSLOG.match(text):
        return _wall_s(found), text[found.end() :], True
    return None, text, None


def _names_one(found: re.Match[str], *, dated: bool | None) -> bool:
    """Whether the words before a colon are a host and a program, not the message's own."""
    host = (found["host"] or "").strip()
    if host in _NO_HOST:
        return False
    # Without a date only the kernel's own name, or a process with its id, is believed.
    return bool(dated) or found["program"] == KERNEL or bool(found["pid"] and host)


def _wall_s(found: re.Match[str]) -> float:
    """Seconds on a calendar of 31-day months: only differences of short spans are used."""
    parts = found.groupdict()
    month = parts.get("month") or parts.get("lmonth") or "1"
    number = _MONTHS.get(month) or (int(month) if month.isdecimal() else 1)
    day = int(parts.get("day") or parts.get("lday") or 1)
    days = int(parts.get("year") or 0) * _DAYS_PER_YEAR + number * _DAYS_PER_MONTH + day
    return float(days * 86_400 + int(parts["h"]) * 3600 + int(parts["m"]) * 60 + int(parts["s"]))


def _from_journal(text: str) -> LogLine:
    """One entry of the journal in its JSON form."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return LogLine("", USER)
    message = entry.get("MESSAGE")
    if not isinstance(message, str):
        return LogLine("", USER)
    stamp = str(entry.get("__REALTIME_TIMESTAMP", ""))
    at_s = int(stamp) / 1e6 if stamp.isdecimal() else None
    identifier = str(entry.get("SYSLOG_IDENTIFIER") or USER)
    if entry.get("_TRANSPORT") == KERNEL or ("_TRANSPORT" not in entry and identifier == KERNEL):
        # Records that a process put into the buffer carry that process's own name.
        return LogLine(message, KERNEL if identifier == KERNEL else USER, at_s)
    return LogLine(message, identifier if identifier != KERNEL else USER, at_s)
