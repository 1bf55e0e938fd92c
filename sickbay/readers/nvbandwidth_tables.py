"""The matrices nvbandwidth prints, in text or in its document: nothing is judged here.

Columns are counted from the rows: a header can have lost its indent; a printed SUM can be wrong.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sickbay.readers.bandwidth import finite
from sickbay.readers.launch_labels import unlabelled
from sickbay.readers.parts import bus_id

_VERSION = re.compile(r"^nvbandwidth Version:\s*v?(\d+)\.(\d+)")
_DEVICE = re.compile(
    r"^(?:Device\s+(\d{1,5})|Process\s+(\d{1,5}) \(\S*\): device\s+\d{1,5}): .*?"
    r"(?:\(([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\)?)?\s*$"
)
_RUNNING = re.compile(r"^Running (\w+)\.")
_WAIVED = re.compile(r"^(?:Waived\b|Waiving \w+)")
_DESCRIPTION = re.compile(r"^\s*\S.*\((GB/s|us|ns)\)\s*$")
_HALF = re.compile(r"\b(read|write)\s?([12])\b|\b(total)\b", re.IGNORECASE)
_NOTE = "NOTE: The reported results may not reflect"
_CELLS = re.compile(r"^\s*\d{1,5}(?:\s+(?:N/A|-?nan|-?inf|\d{1,12}(?:\.\d*)?(?:e[+-]?\d+)?))*\s*$")
_CORRUPT = re.compile(r"Invalid value when checking the pattern|h_errorFlag", re.IGNORECASE)
_ERROR = re.compile(r"\[CUDA_ERROR_\w+|\[cudaError\w+|^\s*(?:ERROR\b|Error:|NVML_ERROR:|ASSERT\b)")
_NOT_FOUND = re.compile(r"^(?:Not Found:|.*\btest ?case\b.*\bnot found)", re.IGNORECASE)
_ERRORS_KEPT = 20
_ABSENT = "N/A"


@dataclass
class Case:
    """One test case. `state` is the worst word for it; the cells are those of its matrix."""

    name: str
    state: str = "running"
    unit: str = "GB/s"
    rows_are_gpus: bool = False
    cells: dict[tuple[int, int], float | None] = field(default_factory=dict)
    columns: int | None = None
    rows: int = 0
    cut: bool = False
    corrupt: str = ""
    errors: list[str] = field(default_factory=list)

    def is_whole(self) -> bool:
        """Whether the matrix has all its rows; one of CPUs may have any number of them."""
        if self.cut or not self.rows:
            return False
        return not self.rows_are_gpus or self.rows >= (self.columns or 0)


@dataclass
class Output:
    """What one start printed: its tests, the devices by index, and words outside any test."""

    tests: list[Case] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
    version: tuple[int, int] | None = None
    listed: int | None = None
    waived: int = 0
    noted: bool = False
    errors: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    open_end: bool = False
    truncated: bool = False


def of_text(text: str) -> Output:
    """The output in a text."""
    output, walk = Output(), _Walk()
    lines = unlabelled(text)
    for line in lines:
        version, device, running = _VERSION.match(line), _DEVICE.match(line), _RUNNING.match(line)
        if version:
            output.version = (int(version[1]), int(version[2]))
        elif device:
            index = device[1] or device[2]
            output.devices[int(index)] = bus_id(device[3] or "") or index
        elif running:
            walk.begin(output, running[1])
        elif _WAIVED.match(line):
            output.waived += 1
            walk.waive()
        elif line.startswith(_NOTE):
            output.noted = True
        else:
            walk.take(output, line)
    output.listed = len(output.devices) or None
    for test in output.tests:
        whole = test.is_whole() and not test.errors and not test.corrupt
        test.state = "passed" if whole and test.state == "running" else test.state
    output.open_end = bool(lines) and not text.endswith("\n") and bool(_CELLS.match(lines[-1]))
    return output


class _Walk:
    """Where in a text the reading is."""

    def __init__(self) -> None:
        self._test: Case | None = None
        self._base = ""
        self._header_follows = False

    def begin(self, output: Output, name: str) -> None:
        self._base, self._header_follows = name, False
        self._test = Case(name)
        output.tests.append(self._test)

    def waive(self) -> None:
        """A waived test says so right after its name; older builds print no name at all."""
        if self._test and not self._test.rows and not self._test.errors:
            self._test.state = "waived"
        self._test = None

    def take(self, output: Output, line: str) -> None:
        if _CORRUPT.search(line):
            self._of(output).corrupt = line.strip()[:300]
        elif _NOT_FOUND.match(line):
            output.missing.append(line.strip()[:300])
        elif _ERROR.search(line):
            self._error(output, line)
        elif _DESCRIPTION.match(line) and self._test:
            self._describe(output, line)
        elif _CELLS.match(line) and self._test and line.strip():
            self._cells(line.split())

    def _of(self, output: Output) -> Case:
        if self._test is None:
            self.begin(output, "unnamed")
        assert self._test is not None  # noqa: S101 - begin() sets it
        return self._test

    def _error(self, output: Output, line: str) -> None:
        said = self._test.errors if self._test else output.errors
        if len(said) < _ERRORS_KEPT:
            said.append(line.strip()[:300])

    def _describe(self, output: Output, line: str) -> None:
        test = self._of(output)
        half = _HALF.search(line)
        name = self._base
        if half:
            name += "_" + (half[3] or f"{half[1]}{half[2]}").lower()
        if test.rows:
            test = Case(name)
            self._test = test
            output.tests.append(test)
        test.name = name
        _describe(test, line)
        self._header_follows = True

    def _cells(self, tokens: list[str]) -> None:
        test = self._test
        if test is None:
            return
        if self._header_follows and all(token.isdecimal() for token in tokens):
            test.columns, self._header_follows = len(tokens), False
            return
        self._header_follows = False
        values = tokens[1:]
        test.cut = (
            test.cut or not values or (test.columns is not None and len(values) < test.columns)
        )
        _fill(test, int(tokens[0]), values)


def of_document(text: str) -> Output | None:
    """The output in the document of `-j`, wherever it stands; None when there is none."""
    start = re.search(r"\{\s*\"nvbandwidth\"\s*:", text)
    if start is None:
        return None
    try:
        document, _ = json.JSONDecoder().raw_decode(text, start.start())
    except (ValueError, RecursionError):
        return Output(truncated=True)
    body = document["nvbandwidth"]
    if not isinstance(body, Mapping):
        return Output(truncated=True)
    output = Output(noted=True)
    devices = body.get("GPU Device list")
    if isinstance(devices, list):
        output.listed = len(devices)
        output.devices = _listed(devices)
    for case in body.get("testcases") or []:
        if isinstance(case, Mapping):
            _add_case(output, case)
    if body.get("error"):
        output.errors.append(str(body["error"])[:300])
    for said in (text[: start.start()], *output.errors):
        wrong = _CORRUPT.search(said)
        if wrong:
            running = [t for t in output.tests if t.state in {"running", "error"}]
            test = running[-1] if running else Case("unnamed", state="error")
            test.corrupt = wrong[0]
            output.tests += [] if running else [test]
    return output


_WORST = ("passed", "waived", "running", "not found", "error")


def _add_case(output: Output, case: Mapping[str, Any]) -> None:
    """One case; a name given twice has the worse of its two states."""
    name, state = str(case.get("name", "unnamed")), str(case.get("status", "")).lower()
    state = state if state in _WORST else "running"
    test = next((t for t in output.tests if t.name == name), None)
    if test is None:
        test = Case(name, state=state)
        output.tests.append(test)
    test.state = max(test.state, state, key=_WORST.index)
    said = str(case.get("error") or case.get("message") or "")
    if said:
        test.errors.append(said[:300])
        if _CORRUPT.search(said):
            test.corrupt = said[:300]
    if state == "waived":
        output.waived += 1
    _describe(test, str(case.get("bandwidth_description", "")).strip())
    matrix = case.get("bandwidth_matrix")
    rows = [v for v in matrix if isinstance(v, list)] if isinstance(matrix, list) else []
    if test.rows_are_gpus and rows and len(rows) > len(rows[0]):
        # A test of both directions adds a matrix for each and then the total of the two.
        rows = rows[-len(rows[0]) :]
    for row, values in enumerate(rows):
        _fill(test, row, [str(value) for value in values])


def _describe(test: Case, line: str) -> None:
    unit = _DESCRIPTION.match(line)
    if unit:
        test.unit = unit[1]
        # Some versions call the row of a copy to the host a GPU; its columns are the GPUs.
        test.rows_are_gpus = "GPU(row)" in line and "GPU(column)" in line


def _fill(test: Case, row: int, values: list[str]) -> None:
    """The cells of one row. N/A is no cell; on the diagonal of GPUs nothing is measured."""
    test.rows += 1
    test.columns = max(test.columns or 0, len(values))
    for column, value in enumerate(values):
        if value != _ABSENT and not (test.rows_are_gpus and row == column):
            test.cells[row, column] = finite(value)


def _listed(devices: list[Any]) -> dict[int, str]:
    found = {}
    for index, said in enumerate(devices):
        match = re.search(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})", str(said))
        place = re.match(r"\s*(\d{1,5}):", str(said))
        if match:
            found[int(place[1]) if place else index] = bus_id(match[1]) or str(index)
    return found
