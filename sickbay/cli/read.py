"""`sickbay read`: what does this output of a tool mean?"""

import sys
from pathlib import Path
from typing import Annotated, Any

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
LARGEST_CLASS_BYTES = 1024 * 1024
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
    text = _text(file, field="file", limit=LARGEST_OUTPUT_BYTES)
    if not text.strip():
        raise UsageError(f"{file} is empty", field="file", remedy="give what the tool printed")
    reading = registry.read(tool, text, exit_code=exit_code, expect=expected)
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
        table = Table("part", "reason", "severity", "kind", "treatment", "detail")
        for found in reading.findings:
            table.add_row(
                found.part or "node",
                found.reason,
                found.severity,
                found.kind,
                found.treatment or "",
                found.detail,
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


def _expectation(file: str) -> Expectation:
    text = _text(file, field="expect", limit=LARGEST_CLASS_BYTES)
    return parse_class(text, name=file)


def _text(file: str, *, field: str, limit: int) -> str:
    """The text of a file, bytes that are no UTF-8 replaced; one byte too many is refused."""
    try:
        if file == STANDARD_INPUT:
            raw = sys.stdin.buffer.read(limit + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(limit + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{file} cannot be read: {why}", field=field, remedy="name a file that can be read"
        ) from error
    if len(raw) > limit:
        raise UsageError(
            f"{file} has more than {limit // 1024**2} MiB",
            field=field,
            remedy="cut out what one run of the tool printed",
        )
    return raw.decode("utf-8", errors="replace")
