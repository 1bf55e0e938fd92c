"""The journal of a node as systemd-journal-gatewayd serves it under `/entries`."""

import json
from collections.abc import Mapping, Sequence

from sickbay.simulator.kernel import Journal, Record

JSON_LINES = "application/json"


class BadRange(ValueError):
    """The `Range` header cannot be read, or names no record of this journal."""


def entries(
    journal: Journal, *, hostname: str, accept: str, wanted_range: str, match: Mapping[str, str]
) -> tuple[str, str]:
    """Body and content type of one answer.

    Args:
        journal: the node's records.
        hostname: the node's own name.
        accept: the request's `Accept`; JSON lines, else short text lines.
        wanted_range: the request's `Range`, `entries=CURSOR[[:SKIP]:COUNT]`, or empty.
        match: field values a record must have.

    Raises:
        BadRange: the range cannot be satisfied.
    """
    records = [r for r in journal.records if _matches(r, match)] if match else journal.records
    chosen = select(records, wanted_range=wanted_range)
    if JSON_LINES in accept:
        lines = [json.dumps(record.fields(hostname)) for record in chosen]
        return "".join(f"{line}\n" for line in lines), JSON_LINES
    short = [f"{hostname} {record.identifier}: {record.message}\n" for record in chosen]
    return "".join(short), "text/plain"


def select(records: Sequence[Record], *, wanted_range: str) -> Sequence[Record]:
    """The records a `Range` asks for. Raises `BadRange`."""
    if not wanted_range:
        return records
    if not wanted_range.startswith("entries="):
        raise BadRange(f"range {wanted_range!r} does not start with entries=")
    cursor, skip, count = _parse(wanted_range.removeprefix("entries="))
    if cursor:
        start = _behind(records, cursor, skip=skip)
    else:
        start = len(records) + skip if skip < 0 else skip
    start = max(0, start)
    return records[start:] if count is None else records[start : start + count]


def _parse(text: str) -> tuple[str, int, int | None]:
    """Cursor, records to skip, records to give; a cursor holds no colon."""
    cursor, *numbers = text.split(":")
    try:
        values = [int(number) for number in numbers if number]
    except ValueError as error:
        raise BadRange(f"range {text!r} has no whole numbers") from error
    if len(numbers) > 2 or len(values) < len(numbers):  # noqa: PLR2004 - SKIP and COUNT
        raise BadRange(f"range {text!r} is not CURSOR[[:SKIP]:COUNT]")
    count = values[-1] if values else None
    if count is not None and count < 0:
        raise BadRange(f"range {text!r} asks for {count} records")
    return cursor, values[0] if len(values) > 1 else 0, count


def _behind(records: Sequence[Record], cursor: str, *, skip: int) -> int:
    """`skip` records behind the cursor's own, or behind where it was before it rotated away."""
    fields = dict(part.split("=", 1) for part in cursor.split(";") if "=" in part)
    try:
        number = int(fields["i"], 16)
    except (KeyError, ValueError) as error:
        raise BadRange(f"no such cursor {cursor!r}") from error
    low, high = 0, len(records)
    while low < high:
        middle = (low + high) // 2
        if records[middle].number < number:
            low = middle + 1
        else:
            high = middle
    there = low < len(records) and records[low].number == number
    return low + skip - (0 if there or skip <= 0 else 1)


def _matches(record: Record, match: Mapping[str, str]) -> bool:
    fields = {
        "_TRANSPORT": record.transport,
        "PRIORITY": record.priority,
        "SYSLOG_IDENTIFIER": record.identifier,
        "_BOOT_ID": record.boot_id.replace("-", ""),
    }
    return all(fields.get(name) == value for name, value in match.items())
