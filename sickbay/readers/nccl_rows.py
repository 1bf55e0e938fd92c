"""The text of nccl-tests, all versions, as runs of rows: nothing is judged here.

Lines of NCCL, mpirun and ssh stand anywhere between; launchers put a label before every line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sickbay.readers.bandwidth import finite
from sickbay.readers.launch_labels import unlabelled

_START = re.compile(r"^#?\s*Collective test starting:\s*(\w+)")
_CONCLUDED = re.compile(r"^#?\s*Collective test concluded")
_PARAMETERS = re.compile(r"^#?\s*nThreads?\s*:?\s*\d+")
_RANK = re.compile(
    r"^#?\s*Rank\s+(\d{1,9})(?:\s+Group\s+(\d{1,9}))?(?:\s+Pid\s+\d+)?\s+on\s+(\S+)\s+device\s+(\d{1,5})"
)
_HEADER = re.compile(r"^#?\s*(?:size\s+count|bytes\s+N)\b.*\btime\b")
_OOB = re.compile(r"^#?\s*Out of bounds values\s*:\s*(\d{1,15})(?:\s+(OK|FAILED))?")
_AVG = re.compile(r"^#?\s*Avg bus bandwidth\s*:\s*(\S+)(?:\s+(OK|FAILED))?")
_ROW = re.compile(r"^\s*(\d{1,18})\s+(\d{1,18})\s+([a-z]\w*)\s+(\S.*)$")
_NRANKS = re.compile(r"NCCL INFO .*\bnranks (\d{1,9})\b")
_BLOCK = 4
# The column of wrong values, newest name first; the older two hold the largest error instead.
_WRONG = ("#wrong", "error", "res")


@dataclass(frozen=True)
class Block:
    """One placement of one row. None means not measured (busbw) and not checked (wrong)."""

    algbw: float | None
    busbw: float | None
    wrong: float | None


@dataclass(frozen=True)
class Row:
    """One message size. `inside` is the in-place block, `outside` the out-of-place one."""

    size_bytes: int
    redop: str | None
    outside: Block | None
    inside: Block | None

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """The blocks that are there, by placement."""
        if self.outside:
            yield "out", self.outside
        if self.inside:
            yield "in", self.inside


@dataclass
class Run:
    """One start of one test. A verdict word of a footer is None when it is not there."""

    collective: str | None = None
    devices: list[tuple[str, int, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    nranks: int | None = None
    bounds: int | None = None
    bounds_word: str | None = None
    average: float | None = None
    average_word: str | None = None
    has_average: bool = False
    announced: bool = False
    parameters: bool = False
    concluded: bool = False
    cut: bool = False

    def is_empty(self) -> bool:
        """Whether nothing at all was said."""
        return self == Run(nranks=self.nranks)


def runs(text: str) -> list[Run]:
    """The runs in a text, in order."""
    lines = unlabelled(text)
    found = [Run()]
    columns: list[str] = []
    for line in lines:
        run = found[-1]
        if _begins_another(run, line):
            run = Run()
            found.append(run)
        header = _HEADER.match(line)
        if header:
            columns = line.strip("# \t").split()
        elif not _head(run, line) and not _foot(run, line):
            row = _row(line, columns)
            if row:
                run.rows.append(row)
    last = found[-1]
    last.cut = not text.endswith("\n") and bool(lines) and _is_part_of_a_run(lines[-1])
    return [run for run in found if not run.is_empty()]


def _begins_another(run: Run, line: str) -> bool:
    if _START.match(line):
        return run.announced or run.parameters or bool(run.rows) or run.has_average
    if _PARAMETERS.match(line):
        return run.parameters or bool(run.rows) or run.has_average
    return run.has_average and bool(_ROW.match(line) or _RANK.match(line) or _OOB.match(line))


def _is_part_of_a_run(line: str) -> bool:
    return bool(line.strip()) and not _CONCLUDED.match(line)


def _head(run: Run, line: str) -> bool:
    start, rank, nranks = _START.match(line), _RANK.match(line), _NRANKS.search(line)
    if start:
        run.announced, run.collective = True, start[1].removesuffix("_perf")
    elif rank:
        run.devices.append((rank[2] or "0", int(rank[1]), rank[3]))
    elif _PARAMETERS.match(line):
        run.parameters = True
    elif nranks:
        run.nranks = max(run.nranks or 0, int(nranks[1]))
    else:
        return False
    return True


def _foot(run: Run, line: str) -> bool:
    bounds, average = _OOB.match(line), _AVG.match(line)
    if bounds:
        run.bounds, run.bounds_word = int(bounds[1]), bounds[2]
    elif average:
        run.has_average, run.average = True, finite(average[1])
        run.average_word = average[2]
    elif _CONCLUDED.match(line):
        run.concluded = True
    else:
        return False
    return True


def _row(line: str, columns: list[str]) -> Row | None:
    match = _ROW.match(line)
    if match is None:
        return None
    rest = match[4].split()
    head = [match[1], match[2], match[3]]
    redop = None
    if rest and re.fullmatch(r"[a-z]\w*", rest[0]) and rest[0] not in {"nan", "inf"}:
        redop = rest[0]
        head.append(rest.pop(0))
        if rest and re.fullmatch(r"-?\d{1,9}", rest[0]):
            head.append(rest.pop(0))
    elif "root" in columns and rest and re.fullmatch(r"-?\d{1,9}", rest[0]):
        head.append(rest.pop(0))
    blocks = _by_columns(head + rest, columns) or _by_shape(rest)
    if not blocks:
        return None
    return Row(int(match[1]), redop, blocks[0], blocks[1] if len(blocks) > 1 else None)


def _by_columns(tokens: list[str], columns: list[str]) -> list[Block]:
    """The blocks by the names in the header, whatever other columns stand between."""
    if len(tokens) != len(columns):
        return []
    starts = [i for i, name in enumerate(columns) if name == "time"]
    blocks = []
    for start, end in zip(starts, [*starts[1:], len(columns)], strict=True):
        named = dict(zip(columns[start:end], tokens[start:end], strict=True))
        if "busbw" not in named:
            return []
        wrong = next((named[name] for name in _WRONG if name in named), "N/A")
        blocks.append(_block(named.get("algbw", ""), named["busbw"], wrong))
    return blocks


def _by_shape(rest: list[str]) -> list[Block]:
    """The blocks of a row without a header: time, algbw, busbw, wrong, twice."""
    if len(rest) < 2 * _BLOCK:
        return []
    blocks = [rest[:_BLOCK], rest[_BLOCK : 2 * _BLOCK]]
    return [_block(algbw, busbw, wrong) for _, algbw, busbw, wrong in blocks]


def _block(algbw: str, busbw: str, wrong: str) -> Block:
    return Block(finite(algbw), finite(busbw), finite(wrong))
