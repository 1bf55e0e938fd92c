"""`sickbay read`: what does this output of a tool mean?"""

import io
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sickbay.cli.output import Json, emit
from sickbay.domain.reading import Reading, Verdict
from sickbay.errors import UsageError
from sickbay.readers import registry
from sickbay.readers.expectation import NOTHING_EXPECTED, Expectation, parse_class

LARGEST_OUTPUT_BYTES = 64 * 1024 * 1024
"""More than any tool prints: the largest known is a nvbandwidth document of some hundred KiB."""
LARGEST_LOG_BYTES = 4 * 1024**3
"""A log is read line by line; the limit only ends what never ends."""
LARGEST_CLASS_BYTES = 1024 * 1024
LONGEST_LINE_BYTES = 64 * 1024
_CHUNK_BYTES = 256 * 1024
_SHOWN_CHARS = 80
STANDARD_INPUT = "-"
_COLOURS = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red"}


def read(
    tool: Annotated[str, typer.Argument(help="Tool that printed it, or auto.", metavar="TOOL")],
    file: Annotated[
        str, typer.Argument(help="What it printed; - is standard input.", metavar="FILE")
    ],
    exit_code: Annotated[
        int | None, typer.Option("--exit-code", help="Exit status of the tool.")
    ] = None,
    expect: Annotated[
        str | None, typer.Option("--expect", help="TOML file of the node class.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """What an output of a tool means; any verdict ends with 0."""
    if tool != registry.AUTO and tool not in registry.names():
        known = ", ".join((registry.AUTO, *registry.names()))
        raise UsageError(f"no tool is called {tool!r}", field="tool", remedy=f"one of: {known}")
    expected = NOTHING_EXPECTED if expect is None else _expectation(expect)
    reading = _reading(tool, file, exit_code, expected)
    emit(document(reading), screen(reading), as_json=as_json)


def document(reading: Reading) -> dict[str, Any]:
    """A reading as the JSON document of the command."""
    return {
        "tool": reading.tool,
        "verdict": reading.verdict,
        "category": reading.category,
        "findings": [
            {
                "part": found.part,
                "reason": found.reason,
                "severity": found.severity,
                "kind": found.kind,
                "treatment": found.treatment,
            }
            for found in reading.findings
        ],
        "measurements": [
            {
                "name": measured.name,
                "part": measured.part,
                "peer": measured.peer,
                "size_bytes": measured.size_bytes,
                "placement": measured.placement,
                "value": measured.value,
                "unit": measured.unit,
            }
            for measured in reading.measurements
        ],
        "why": reading.why,
    }


def screen(reading: Reading) -> RenderableType:
    """A reading for people."""
    about = f" ({reading.category})" if reading.category else ""
    head = Text(f"{reading.verdict}{about}", _COLOURS.get(reading.verdict, "bold yellow"))
    shown: list[RenderableType] = [Text(f"{reading.tool}: ") + head, Text(reading.why)]
    if reading.findings:
        table = Table()
        for name in ("part", "reason", "severity", "kind", "treatment"):
            table.add_column(name, no_wrap=True)
        table.add_column("detail")
        for found in reading.findings:
            table.add_row(
                found.part or "node",
                found.reason,
                found.severity,
                found.kind,
                found.treatment or "",
                found.detail[:_SHOWN_CHARS],
            )
        shown.append(table)
    if reading.measurements:
        table = Table("measurement", "part", "peer", "size", "placement", "value", "unit")
        for one in reading.measurements:
            size = "" if one.size_bytes is None else str(one.size_bytes)
            value = f"{one.value:g}"
            table.add_row(
                one.name, one.part or "", one.peer or "", size, one.placement or "", value, one.unit
            )
        shown.append(table)
    return Group(*shown)


def _reading(tool: str, file: str, exit_code: int | None, expected: Expectation) -> Reading:
    """The reading of a file; a tool whose output may be of any size is read line by line."""
    with _opened(file, field="file") as opened:
        head = _more(opened, _CHUNK_BYTES, file=file, field="file")
        name = registry.recognise(_decoded(head)) if tool == registry.AUTO else tool
        if registry.streams(name):
            said = _Said()
            lines = _lines(head, opened, file, said)
            reading = registry.read_lines(name, lines, exit_code=exit_code)
            _refuse_silence(file, said.anything)
            return reading
        text = _decoded(_whole(head, opened, LARGEST_OUTPUT_BYTES, file=file, field="file"))
    _refuse_silence(file, bool(text.strip()))
    # What the head does not show, the whole text may.
    return registry.read(tool, text, exit_code=exit_code, expect=expected)


class _Said:
    """Whether any line held more than blanks."""

    anything = False


class _Joined(io.RawIOBase):
    """What was read already, then the rest: standard input cannot be rewound."""

    def __init__(self, head: bytes, rest: BinaryIO, *, file: str) -> None:
        super().__init__()
        self._head, self._rest, self._file = head, rest, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        got = self._head[: len(buffer)]
        self._head = self._head[len(got) :]
        got = got or _more(self._rest, len(buffer), file=self._file, field="file")
        buffer[: len(got)] = got
        return len(got)


def _lines(head: bytes, opened: BinaryIO, file: str, said: _Said) -> Iterator[str]:
    """The lines with their ends; what is beyond the longest line is left out."""
    reader = io.BufferedReader(_Joined(head, opened, file=file), _CHUNK_BYTES)
    total, goes_on = 0, False
    while line := reader.readline(LONGEST_LINE_BYTES):
        total += len(line)
        if total > LARGEST_LOG_BYTES:
            _refuse_size(file, LARGEST_LOG_BYTES, field="file")
        too_long = len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n")
        if not goes_on:
            text = _decoded(line)
            said.anything = said.anything or not text.isspace()
            yield f"{text}\n" if too_long else text
        goes_on = too_long


def _expectation(file: str) -> Expectation:
    with _opened(file, field="expect") as opened:
        text = _decoded(_whole(b"", opened, LARGEST_CLASS_BYTES, file=file, field="expect"))
    return parse_class(text, name=file)


def _opened(file: str, *, field: str) -> AbstractContextManager[BinaryIO]:
    if file == STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except (OSError, ValueError) as error:
        raise _unreadable(file, error, field=field) from error


def _more(opened: BinaryIO, count: int, *, file: str, field: str) -> bytes:
    try:
        return opened.read(count)
    except OSError as error:
        raise _unreadable(file, error, field=field) from error


def _whole(head: bytes, opened: BinaryIO, limit: int, *, file: str, field: str) -> bytes:
    """All of it; one byte too many is refused."""
    raw = head + _more(opened, max(0, limit + 1 - len(head)), file=file, field=field)
    if len(raw) > limit:
        _refuse_size(file, limit, field=field)
    return raw


def _decoded(raw: bytes) -> str:
    """The text; bytes that are no UTF-8 are replaced."""
    return raw.decode("utf-8", errors="replace")


def _refuse_silence(file: str, said_anything: bool) -> None:
    if not said_anything:
        raise UsageError(f"{file} is empty", field="file", remedy="give what the tool printed")


def _refuse_size(file: str, limit: int, *, field: str) -> NoReturn:
    raise UsageError(
        f"{file} has more than {limit // 1024**2} MiB",
        field=field,
        remedy="cut out what one run of the tool printed",
    )


def _unreadable(file: str, error: Exception, *, field: str) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    return UsageError(
        f"{file} cannot be read: {why}", field=field, remedy="name a file that can be read"
    )
