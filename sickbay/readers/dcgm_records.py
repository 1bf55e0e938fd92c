"""What a wrapper around `dcgmi` logs: one record per test or warning, and error codes in a line.

Such records are excerpts: they can tell of a fault or of a test that did not run, never that a node
is well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers.conclusion import tool_finding
from sickbay.readers.dcgm_layouts import test_name
from sickbay.readers.dcgm_meaning import error_id_named, finding_of

_CODE_LINE = re.compile(
    r"\b(?:ErrorCode: ?)?DCGM_FR_(?P<name>[A-Z0-9_]+)\b,? ?(?:GPU:? ?(?P<gpu>\d+))?(?P<text>[^\n]*)"
)
_COUNTS = ("passed", "failed", "skipped", "total")
_PASSED = {"pass", "passed", "ok", "success"}


def findings_of_records(text: str, documents: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What the records in a text say, else what the error codes in its lines say."""
    found: list[Finding] = []
    for document in documents:
        found += _of_record(document)
    if documents:
        return found
    return list(of_code_lines(text))


def of_code_lines(text: str) -> Iterator[Finding]:
    """Lines that name an error as DCGM's headers do."""
    for match in _CODE_LINE.finditer(text):
        number = error_id_named(match["name"])
        sentence = match["text"].strip(" :,;") or match["name"].lower()
        if number is not None:
            yield finding_of(sentence, test="health", part=match["gpu"], error_id=number)


def _of_record(record: Mapping[str, Any]) -> Iterator[Finding]:
    if all(isinstance(record.get(key), int) for key in _COUNTS):
        counts = ", ".join(f"{key} {record[key]}" for key in _COUNTS)
        yield tool_finding("incomplete", f"a summary without its tests: {counts}")
    test = record.get("test")
    if not isinstance(test, str):
        return
    part = record.get("gpu", record.get("gpu_id"))
    name = None if part is None else str(part)
    errors = record.get("errors")
    listed = [e for e in errors if isinstance(e, dict)] if isinstance(errors, list) else [record]
    passed = str(record.get("status", "")).strip().lower() in _PASSED
    for error in listed:
        found = _of_error(error, test_name(test), name)
        if found is not None:
            # Beside a pass an error says that the test did not do its work.
            yield found if not passed else tool_finding(found.reason, found.detail, name)


def _of_error(error: Mapping[str, Any], test: str, part: str | None) -> Finding | None:
    code = error.get("error_code", error.get("error_id", error.get("code")))
    number = code if isinstance(code, int) else error_id_named(str(code or ""))
    sentence = str(error.get("detail") or error.get("warning") or error.get("message") or "")
    if number is None and not sentence:
        return None
    found = finding_of(sentence or str(code), test=test, part=part, error_id=number)
    if found.kind is FindingKind.HARDWARE and number is None:
        # A sentence nobody described, in somebody else's words.
        return tool_finding("tool_error", sentence, part)
    return found
