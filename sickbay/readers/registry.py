"""Which tools can be read: one row per tool, by name, or recognised from the output itself.

The order of the rows is the order of recognition: what is sure comes before what is likely. An
output that nobody recognises is `other`, and says nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from sickbay.domain.reading import Reading, Verdict
from sickbay.readers import (
    class_reads,
    dcgm_diag,
    dcgm_exporter,
    dcgm_health,
    dcgm_nvlink,
    fio,
    firmware,
    gpu_burn,
    ibstat,
    infiniband,
    ipmi_sel,
    kernel_log,
    nccl_tests,
    nvbandwidth,
    nvidia_smi,
    perftest,
    redfish,
    superbench,
)
from sickbay.readers.conclusion import conclude, first_line, tool_finding
from sickbay.readers.expectation import NOTHING_EXPECTED, Expectation

AUTO = "auto"
OTHER = "other"

_HEAD_CHARS = 256 * 1024
# What opens a whole document, and what ends it: it needs no line end to be whole.
_DOCUMENTS = {"{": "}", "<": ">"}


class Read(Protocol):
    """What a reader is: raw text and exit status (None: not known) to a reading."""

    def __call__(self, text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
        """What the output means, held to what the node class is expected to have."""
        ...


class ReadLines(Protocol):
    """A reader of output of any size, line by line in constant memory."""

    def __call__(self, raw: Iterable[str], *, exit_code: int | None) -> Reading:
        """What the lines (with their ends) mean."""
        ...


@dataclass(frozen=True)
class Tool:
    """One tool: its name on the command line, its reader, and how its output is recognised.

    `read_lines` is there for tools whose output may be of any size.
    """

    name: str
    read: Read
    recognises: Callable[[str], bool]
    read_lines: ReadLines | None = None


def _dcgm_diag(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    return dcgm_diag.read(
        text,
        exit_code=exit_code,
        gpus=expect.gpu_count,
        links_per_gpu=expect.nvlink_links_per_gpu,
    )


def _dcgm_health(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    del expect
    return dcgm_health.read(text, exit_code=exit_code)


def _dcgm_nvlink(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    return dcgm_nvlink.read(
        text,
        exit_code=exit_code,
        links_per_gpu=expect.nvlink_links_per_gpu,
        gpus=expect.gpu_count,
    )


def _dcgm_exporter(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    del expect
    return dcgm_exporter.read(text, exit_code=exit_code)


def _nvidia_smi(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    return nvidia_smi.read(
        text,
        exit_code=exit_code,
        links_per_gpu=expect.nvlink_links_per_gpu,
        gpus=expect.gpu_count,
    )


def _kernel_log(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    del expect
    return kernel_log.read(text, exit_code=exit_code)


TOOLS: tuple[Tool, ...] = (
    Tool("dcgmi-health", _dcgm_health, dcgm_health.recognises),
    Tool("dcgmi-nvlink", _dcgm_nvlink, dcgm_nvlink.recognises),
    Tool("dcgmi-diag", _dcgm_diag, dcgm_diag.recognises),
    Tool("dcgm-exporter", _dcgm_exporter, dcgm_exporter.recognises),
    Tool("nvbandwidth", class_reads.read_nvbandwidth, nvbandwidth.recognises),
    Tool("nccl-tests", class_reads.read_nccl_tests, nccl_tests.recognises),
    Tool("gpu-burn", class_reads.read_gpu_burn, gpu_burn.recognises),
    Tool("fio", class_reads.read_fio, fio.recognises),
    Tool("firmware", class_reads.read_firmware, firmware.recognises),
    Tool("redfish", class_reads.read_redfish, redfish.recognises),
    Tool("ibstat", class_reads.read_ibstat, ibstat.recognises),
    Tool("infiniband", class_reads.read_infiniband, infiniband.recognises),
    Tool("perftest", class_reads.read_perftest, perftest.recognises),
    Tool("ipmi-sel", class_reads.read_ipmi_sel, ipmi_sel.recognises),
    Tool("superbench", class_reads.read_superbench, superbench.recognises),
    Tool("nvidia-smi", _nvidia_smi, nvidia_smi.recognises),
    Tool("kernel-log", _kernel_log, kernel_log.recognises, kernel_log.read_lines),
)
"""Every tool that can be read; a kernel log comes last, for any line may stand in one."""

_BY_NAME = {tool.name: tool for tool in TOOLS}


def names() -> tuple[str, ...]:
    """The names of the tools, `auto` not among them."""
    return tuple(_BY_NAME)


def recognise(text: str) -> str:
    """The name of the tool that printed a text, `other` when no row recognises it."""
    head = text[:_HEAD_CHARS]
    return next((tool.name for tool in TOOLS if tool.recognises(head)), OTHER)


def read(
    tool: str, text: str, *, exit_code: int | None, expect: Expectation = NOTHING_EXPECTED
) -> Reading:
    """What an output means.

    Args:
        tool: a name of `names()`, or `auto` to recognise it.
        text: what the tool printed, standard output and error together.
        exit_code: the exit status, None when it is not known.
        expect: what the node class is expected to have.

    Raises:
        KeyError: nobody reads a tool of this name.
    """
    name = recognise(text) if tool == AUTO else tool
    if name == OTHER:
        unknown = tool_finding("tool_not_recognised", first_line(text))
        return conclude(OTHER, text, [unknown], passed=None)
    reading = _BY_NAME[name].read(text, exit_code=exit_code, expect=expect)
    return reading if _is_ended(text) else _not_a_pass(reading)


def streams(tool: str) -> bool:
    """Whether a tool's output is read line by line."""
    return tool in _BY_NAME and _BY_NAME[tool].read_lines is not None


def read_lines(tool: str, raw: Iterable[str], *, exit_code: int | None) -> Reading:
    """As `read`, for a tool that `streams`.

    Raises:
        KeyError: the tool does not stream.
    """
    reader = _BY_NAME[tool].read_lines
    if reader is None:
        raise KeyError(tool)
    ended = True

    def watched() -> Iterator[str]:
        nonlocal ended
        for line in raw:
            ended = line.endswith("\n")
            yield line

    reading = reader(watched(), exit_code=exit_code)
    return reading if ended else _not_a_pass(reading)


def _is_ended(text: str) -> bool:
    """Whether the last line is whole: tools end it, a full disk or a killed writer does not."""
    if text.endswith("\n"):
        return True
    stripped = text.strip()
    end = _DOCUMENTS.get(stripped[:1])
    return end is not None and stripped.endswith(end)


def _not_a_pass(reading: Reading) -> Reading:
    """The reading of a text that was cut in the middle of a line: what follows may have failed."""
    if reading.verdict is not Verdict.PASS:
        return reading
    cut = tool_finding("truncated", "the last line has no end")
    why = f"{cut.reason}: {cut.detail}"
    return replace(
        reading, verdict=Verdict.INCONCLUSIVE, why=why, findings=(*reading.findings, cut)
    )
