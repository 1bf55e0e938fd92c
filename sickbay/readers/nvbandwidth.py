"""nvbandwidth: what a run means, from its matrices, its errors and its exit status.

A wrong value fails at once. `N/A`, the diagonal and waived tests are nothing measured, never 0; the
printed SUM is not used. Bandwidths are judged against given floors only, latencies not at all.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers import cuda_errors
from sickbay.readers.bandwidth import below_floor
from sickbay.readers.conclusion import conclude, contradiction, tool_finding
from sickbay.readers.nvbandwidth_tables import Case, Output, of_document, of_text

TOOL = "nvbandwidth"
_SIGN = re.compile(
    r"^nvbandwidth Version:|\{\s*\"nvbandwidth\"\s*:|^Running \w+_(?:ce|sm|copy)\.$"
    r"|^SUM \w*(?:memcpy|local_copy|latency)\w* |Invalid value when checking the pattern",
    re.MULTILINE,
)
_SHORT: tuple[tuple[str, str], ...] = (
    ("host_to_device_memcpy_ce", "h2d_gbps"),
    ("device_to_host_memcpy_ce", "d2h_gbps"),
    ("device_to_device_memcpy_read_ce", "p2p_gbps"),
    ("device_to_device_memcpy_write_ce", "p2p_gbps"),
)
_CLOSES_WITH_A_NOTE = (0, 6)
_GBPS = "GB/s"


def recognises(text: str) -> bool:
    """Whether a text looks like an output of nvbandwidth."""
    return bool(_SIGN.search(text))


def read(
    text: str,
    *,
    exit_code: int | None,
    floors: Mapping[str, float] | None = None,
    wanted: Sequence[str] = (),
    gpus: int | None = None,
) -> Reading:
    """What one output of nvbandwidth, text or `-j` document, means.

    Args:
        text: what was printed.
        exit_code: the exit status, None when it is not known.
        floors: bandwidths of the class in GB/s by `nvbandwidth_<test>_gbps` or `<test>_gbps`;
            `h2d_gbps`, `d2h_gbps` and `p2p_gbps` stand for the copies by copy engine.
        wanted: the tests that were asked for; each must have been measured.
        gpus: GPUs the node has, None when nobody says.
    """
    output = of_document(text) or of_text(text)
    corrupt = [test for test in output.tests if test.corrupt]
    findings = [_corruption(test) for test in corrupt]
    if not corrupt:
        findings += _broken(output)
        findings += _unmeasured(output, exit_code)
        findings += _missing(output, wanted)
    counted = list(_gpu_count(output, gpus))
    findings += counted
    if not corrupt and not counted:
        findings += [f for test in output.tests for f in _floors(output, test, floors or {})]
    findings += contradiction(exit_code, findings)
    return conclude(
        TOOL,
        text,
        findings,
        passed=_said(output),
        measurements=[m for test in output.tests for m in _measurements(test)],
    )


def _corruption(test: Case) -> Finding:
    category = Category.MEMORY if "local" in test.name else Category.INTERCONNECT
    return Finding(
        None,
        "data_corruption",
        Severity.CRITICAL,
        FindingKind.HARDWARE,
        category=category,
        detail=f"{test.name}: {test.corrupt}",
    )


def _broken(output: Output) -> Iterator[Finding]:
    if output.truncated:
        yield tool_finding("truncated", "the document does not end")
    for sentence in [*output.errors, *(e for test in output.tests for e in test.errors)]:
        if re.search(r"cuda", sentence, re.IGNORECASE):
            yield cuda_errors.of_sentence(sentence)
        elif "NVML" in sentence:
            yield tool_finding("nvml_unavailable", sentence)
        else:
            yield tool_finding("tool_error", sentence)
    for sentence in output.missing:
        yield tool_finding("test_not_available", sentence)
    for test in output.tests:
        if test.state == "not found":
            yield tool_finding("test_not_available", test.name)
        elif test.state == "error" and not test.errors and not output.errors:
            yield tool_finding("tool_error", f"{test.name} ended in an error")
        elif test.state == "running" and not test.errors:
            yield tool_finding("incomplete", f"{test.name} has no whole result")


def _unmeasured(output: Output, exit_code: int | None) -> Iterator[Finding]:
    cells = [v for t in output.tests if t.state == "passed" for v in t.cells.values()]
    if any(value is None or value == 0 for value in cells):
        yield tool_finding("not_measured", "a cell of a matrix holds no positive number")
    if not cells:
        if output.waived:
            yield tool_finding("not_applicable", "every test was waived")
        else:
            yield tool_finding("incomplete", "no result is in the output")
    elif exit_code is None and (output.open_end or _lost_its_note(output)):
        yield tool_finding("incomplete", "the text ends before the tool's own last words")


def _lost_its_note(output: Output) -> bool:
    """Whether a version that closes every output with a note did not.

    One whole test is taken for all that was asked: people quote one.
    """
    named = [test for test in output.tests if test.state == "passed"]
    return (
        output.version is not None
        and output.version >= _CLOSES_WITH_A_NOTE
        and not output.noted
        and len(named) > 1
    )


def _missing(output: Output, wanted: Sequence[str]) -> Iterator[Finding]:
    states = {test.name: test.state for test in output.tests}
    for name in wanted:
        if states.get(name) == "waived":
            yield tool_finding("not_applicable", f"{name} was waived")
        elif not any(known.startswith(name) for known in states):
            yield tool_finding("incomplete", f"{name} was asked for and is not in the output")


def _gpu_count(output: Output, gpus: int | None) -> Iterator[Finding]:
    if gpus is not None and output.listed is not None and output.listed != gpus:
        detail = f"{output.listed} GPUs are listed, {gpus} are expected"
        yield tool_finding("gpu_count_mismatch", detail)


def _floors(output: Output, test: Case, floors: Mapping[str, float]) -> Iterator[Finding]:
    """The parts of a test that stay below its floor, each with its worst value."""
    keys = [f"nvbandwidth_{test.name}_gbps", f"{test.name}_gbps"]
    keys += [short for name, short in _SHORT if name == test.name]
    floor = next((floors[key] for key in keys if key in floors), None)
    if floor is None or test.unit != _GBPS or test.state != "passed":
        return
    worst: dict[int, tuple[float, str]] = {}
    for (row, column), value in test.cells.items():
        part, where = column, test.name
        if test.rows_are_gpus:
            part, where = row, f"{test.name} from {row} to {column}"
        if value is not None and value < worst.get(part, (floor, ""))[0]:
            worst[part] = (value, where)
    for index, (value, where) in worst.items():
        part_name = output.devices.get(index, str(index))
        yield below_floor(part_name, what=where, value=value, floor=floor, unit=_GBPS)


def _measurements(test: Case) -> Iterator[Measurement]:
    """A cell between GPUs has the row as part and the column as peer; else the column is the GPU.

    The first row of a matrix of CPUs has no peer, later ones are named `cpu1` and so on.
    """
    for (row, column), value in test.cells.items():
        if value is None or test.corrupt:
            continue
        part, peer = str(column), f"cpu{row}" if row else None
        if test.rows_are_gpus:
            part, peer = str(row), str(column)
        yield Measurement(test.name, part, value, test.unit, peer=peer)


def _said(output: Output) -> str | None:
    measured = [test for test in output.tests if test.cells and test.state == "passed"]
    if not measured:
        return None
    waived = f", {output.waived} waived" if output.waived else ""
    return f"{len(measured)} tests measured{waived}"
