"""`nvidia-smi nvlink -s` and `-e`: which links are up, and what their error counters hold.

A GPU whose links are all inactive is down only when the class has links or its neighbours show
them: without either it may be a model without NVLink.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers.conclusion import conclude, tool_finding
from sickbay.readers.nvidia_smi_answers import TOOL, of_text, read_answer

_GPU = re.compile(r"^\s*GPU (\d+):")
_STATE = re.compile(r"^\s*Link (\d+):\s*(?:([0-9.]+) GB/s|<?\s*(in-?active)\s*>?)", re.IGNORECASE)
_COUNTER = re.compile(r"^\s*Link \d+: (Replay|Recovery|CRC)(?: \w+)* Errors: (\d+)", re.IGNORECASE)
_ALL_DOWN = "all links are inactive"


@dataclass
class _Gpu:
    speeds: dict[int, float] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    all_down: bool = False
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def links(self) -> int:
        return len(self.speeds) + len(self.down)


def is_nvlink(text: str) -> bool:
    """Whether a text is an answer about links."""
    return bool(re.search(r"^[ \t]*Link \d+:", text, re.MULTILINE)) or _ALL_DOWN in text.lower()


def read_nvlink(
    text: str, *, exit_code: int | None, links_per_gpu: int | None = None, gpus: int | None = None
) -> Reading:
    """What an answer about NVLinks means.

    Args:
        text: what `nvidia-smi nvlink -s` or `-e` printed.
        exit_code: the exit status, None when it is not known.
        links_per_gpu: links the node class has per GPU, None when nobody says.
        gpus: GPUs the node has, None when nobody says.
    """
    found = _gpus(text)
    if not found:
        return read_answer(text, exit_code=exit_code)
    wanted = links_per_gpu
    if wanted is None:
        wanted = max((g.links for g in found.values() if g.speeds), default=None)
    findings = of_text(text)
    for part, gpu in found.items():
        findings += _judged(part, gpu, wanted)
    if exit_code not in {0, None}:
        findings.append(tool_finding("exit_code_contradicts_document", f"exit {exit_code}"))
    if gpus is not None and len(found) < gpus:
        findings.append(tool_finding("gpus_not_listed", f"{len(found)} of {gpus} GPUs are shown"))
    return conclude(
        TOOL,
        text,
        findings,
        passed="all links are up",
        measurements=[m for part, gpu in found.items() for m in _measurements(part, gpu)],
    )


def _gpus(text: str) -> dict[str, _Gpu]:
    found: dict[str, _Gpu] = {}
    gpu = None
    for line in text.splitlines():
        head, state, counter = _GPU.match(line), _STATE.match(line), _COUNTER.match(line)
        if head:
            gpu = found.setdefault(head[1], _Gpu())
        elif gpu is None:
            continue
        elif state and state[3]:
            gpu.down.add(int(state[1]))
        elif state:
            gpu.speeds[int(state[1])] = float(state[2])
        elif counter:
            name = counter[1].lower()
            gpu.counters[name] = gpu.counters.get(name, 0) + int(counter[2])
        elif _ALL_DOWN in line.lower():
            gpu.all_down = True
    return found


def _judged(part: str, gpu: _Gpu, wanted: int | None) -> Iterator[Finding]:
    if gpu.counters:
        if any(gpu.counters.values()):
            yield tool_finding("nvlink_errors_counted", f"{gpu.counters}", part)
        return
    if wanted == 0:
        return
    if gpu.down or gpu.all_down:
        if wanted is None:
            yield tool_finding("nvlink_all_inactive", "no link of the node is up", part)
        else:
            yield _down(part, gpu)
    elif not gpu.links or (wanted is not None and gpu.links < wanted):
        yield tool_finding("nvlink_not_shown", f"{gpu.links} of {wanted} links are shown", part)


def _down(part: str, gpu: _Gpu) -> Finding:
    which = "all" if gpu.all_down or not gpu.speeds else ", ".join(map(str, sorted(gpu.down)))
    return Finding(
        part,
        "nvlink_down",
        Severity.MAJOR,
        FindingKind.HARDWARE,
        Treatment.RESET,
        Category.INTERCONNECT,
        f"inactive links: {which}",
    )


def _measurements(part: str, gpu: _Gpu) -> Iterator[Measurement]:
    if gpu.speeds:
        slowest = min(gpu.speeds.values())
        yield Measurement("nvlink_link_gbytes_per_s", part, slowest, "GB/s")
    for name, count in gpu.counters.items():
        yield Measurement(f"nvlink_{name}_errors", part, float(count), "errors")
