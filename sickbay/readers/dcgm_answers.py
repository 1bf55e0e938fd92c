"""What dcgmi says without a document: error sentences, exit statuses, and its text table.

Exit statuses are DCGM's return codes modulo 256, as NVIDIA's headers list them.
"""

import re
from collections.abc import Iterator

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers.dcgm_layouts import Row, Warned, test_name
from sickbay.readers.dcgm_meaning import SOFTWARE_TEST

EXIT_ERROR = 226
"""Some test did not pass, a matter of configuration included."""
EXIT_ISOLATE = 205
"""Some test asks to isolate the GPU."""

INFORMATION = "info"
"""The name of the rows of a text table that only carry numbers."""

_EXITS = {
    189: "gpus_detached",
    190: "dcgm_stopped",
    192: "diag_killed",
    198: "test_not_available",
    199: "nvml_timeout",
    200: "nvml_not_loaded",
    202: "dcgm_paused",
    203: "diag_killed",
    204: "nvvs_missing",
    217: "diag_already_running",
    222: "gpu_in_use",
    227: "needs_root",
    234: "gpu_not_supported",
    235: "hostengine_unreachable",
    239: "no_permission",
    242: "no_data",
    244: "version_mismatch",
    245: "timeout",
    254: "tool_error",
}
_EXIT_LOST, _EXIT_NEEDS_RESET = 238, 237
_SIGNALLED = range(129, 160)
_SENTENCES: tuple[tuple[str, str], ...] = (
    (r"unable to establish a connection|host ?engine connection|unable to start an embedded",
     "hostengine_unreachable"),
    (r"health watches not enabled", "watches_not_enabled"),
    (r"mig (configuration|mode)", "mig_enabled"),
    (r"homogeneous group of gpus", "gpus_differ"),
    (r"while dcgm is paused", "dcgm_paused"),
    (r"already running", "diag_already_running"),
    (r"was not found among possible test", "test_not_available"),
    (r"parse error|couldn't find match for argument", "tool_error"),
    (r"unable to complete diagnostic", "tool_error"),
    (r"busy or unavailable", "cuda_context_busy"),
    (r"process terminated with errors|\bABORT\b", "did_not_run"),
    (r"memory copy utilization for the gpu", "nvbandwidth_interference"),
)  # fmt: skip
_SENTENCE_PATTERNS = tuple((re.compile(p, re.IGNORECASE), reason) for p, reason in _SENTENCES)
_GPU = re.compile(r"\bGPU:? ?(\d+)")
_CELLS = re.compile(r"^\|([^|]*)\|([^|]*)\|?\s*$")
_SECTION = re.compile(r"^[|+]-+ +(\w[\w ]*?) +-+[|+]")
_VERDICT = re.compile(
    r"(?:GPU ?(?P<gpu>\d+): )?(?P<word>Pass|Fail|Warn|Skip)(?: - GPUs?: ?(?P<gpus>[\d, ]+))?"
)
_FRAME = re.compile(r"\+[-+]+\+")
_MESSAGE = re.compile(r"(error|warning|info)(?:: *GPU ?(\d+))?", re.IGNORECASE)


def of_text(text: str) -> list[Finding]:
    """What error sentences outside any document say; never anything about the hardware."""
    found: dict[tuple[str, str | None], Finding] = {}
    for line in text.splitlines():
        for pattern, reason in _SENTENCE_PATTERNS:
            if pattern.search(line):
                gpu = _GPU.search(line)
                part = gpu[1] if gpu else None
                detail = line.strip()[:300]
                finding = Finding(part, reason, Severity.WARNING, FindingKind.TOOL, detail=detail)
                found.setdefault((reason, part), finding)
    return list(found.values())


def of_exit(exit_code: int | None) -> Finding | None:
    """What an exit status says by itself; None for the ones that only repeat the document."""
    if exit_code in {None, 0, EXIT_ERROR, EXIT_ISOLATE}:
        return None
    detail = f"exit status {exit_code}"
    if exit_code == _EXIT_LOST:
        return _node_fault("gpu_lost", Severity.CRITICAL, Treatment.REBOOT, detail)
    if exit_code == _EXIT_NEEDS_RESET:
        return _node_fault("gpu_requires_reset", Severity.MAJOR, Treatment.RESET, detail)
    reason = "diag_killed" if exit_code in _SIGNALLED else _EXITS.get(exit_code or 0, "tool_error")
    return Finding(None, reason, Severity.WARNING, FindingKind.TOOL, detail=detail)


def table_rows(text: str) -> tuple[list[Row], bool]:
    """The rows of the text table, and whether it is whole: closed by its frame, its head there."""
    if "|" not in text:
        return [], False
    rows: list[Row] = []
    section = ""
    for head, name, value in _cells(text):
        if head:
            section = head
            continue
        message = _MESSAGE.fullmatch(name)
        if message and message[1].lower() == "info":
            rows.append(Row(INFORMATION, message[2], "info", infos=(value,)))
        elif message:
            told = [row for row in rows if row.test != INFORMATION]
            last = told[-1].test if told else (SOFTWARE_TEST if section else "unnamed")
            rows.append(_warned(last, value, message[2]))
        else:
            test = SOFTWARE_TEST if section.lower() == "deployment" else test_name(name)
            rows.extend(_judged(test, value))
    return rows, "+==" in text and _is_framed(text)


def _is_framed(text: str) -> bool:
    """Whether the last line is the table's frame, as long as the one at its top.

    A section's head and a frame that was cut end with the same sign, and close nothing.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    frames = [line for line in lines if _FRAME.fullmatch(line)]
    return len(frames) > 1 and lines[-1] == frames[0]


def _cells(text: str) -> Iterator[tuple[str, str, str]]:
    """(section, "", "") or ("", name, value) per row; wrapped lines are put together again."""
    name, parts = "", [""]
    for line in text.splitlines():
        section = _SECTION.match(line)
        cells = _CELLS.match(line)
        if section or (cells and cells[1].strip()):
            if name:
                yield "", name, _joined(parts)
            name, parts = "", [""]
        if section:
            yield section[1], "", ""
        elif cells and cells[1].strip():
            name, parts = cells[1].strip(), [cells[2]]
        elif cells and name:
            parts.append(cells[2])
    if name:
        yield "", name, _joined(parts)


def _joined(parts: list[str]) -> str:
    """A wrapped cell put together: it is cut anywhere, after one blank and before two."""
    return "".join(p[1:-2] if p.endswith("  ") else p[1:] for p in parts).strip()


def _judged(test: str, value: str) -> list[Row]:
    """The verdicts in one cell; newer tables print one for the test, then one per GPU."""
    rows = []
    for match in _VERDICT.finditer(value):
        status = {"pass": "pass", "skip": "skip"}.get(match["word"].lower(), "fail")
        listed = match["gpu"] or match["gpus"] or ""
        rows += [Row(test, part or None, status) for part in listed.replace(" ", "").split(",")]
    named = [row for row in rows if row.part is not None]
    return named or rows


def _warned(test: str, value: str, part: str | None) -> Row:
    gpu = _GPU.search(value)
    return Row(test, part or (gpu[1] if gpu else None), "fail", (Warned(value),))


def _node_fault(reason: str, severity: Severity, treatment: Treatment, detail: str) -> Finding:
    return Finding(
        None, reason, severity, FindingKind.HARDWARE, treatment, Category.COMPUTE, detail
    )
