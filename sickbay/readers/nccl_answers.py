"""What nccl-tests, NCCL and the launcher say when a run fails, and which network NCCL used.

None of it accuses hardware: a collective that broke says that one of its parts did, not which.
"""

import re
from collections.abc import Iterator, Sequence

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers import cuda_errors
from sickbay.readers.conclusion import tool_finding

_NCCL = re.compile(r"Test NCCL failure\s+\S+\s+'([^'/]*)")
_CUDA = re.compile(r"\bCuda failure\s+(?:\S+:\d+\s+)?(?:\d+\s+)?'([^'\n]*)", re.IGNORECASE)
_TIMEOUT = re.compile(r"Test timeout \(\d+|DUE TO TIME LIMIT")
_COMPLETION = re.compile(r"NCCL WARN .*\bstatus=(?:\w{1,60}\()?(\d+)")
_HCA = re.compile(r"\bhca (\S+)")
_NO_IB = re.compile(r"NET/IB : No (?:IB )?device found", re.IGNORECASE)
_NETWORK = re.compile(r"NCCL INFO (?:\S+ )?Using network (\S+)")
_NCCL_WORDS: tuple[tuple[str, str], ...] = (
    ("unhandled system error", "nccl_unhandled_system_error"),
    ("unhandled cuda error", "nccl_unhandled_cuda_error"),
    ("internal error", "nccl_internal_error"),
    ("invalid argument", "nccl_invalid_argument"),
    ("invalid usage", "nccl_invalid_usage"),
    ("remote process exited", "nccl_remote_error"),
)
_STARTS: tuple[str, ...] = (
    r"must be run on at least \d+",
    r"not enough slots available",
    r"host key verification failed",
    r"permission denied \(",
    r"could not resolve hostname",
    r"unable to (?:reliably )?(?:start|launch)",
    r"was unable to (?:launch|find|start)",
    r"(?:command|executable) not found",
    r"error while loading shared libraries",
    r"no such file or directory",
    r"^srun: error:",
    r"lost communication with|unable to complete a tcp connection",
)
_ENDS: tuple[str, ...] = (
    r"mpirun detected that one or more processes exited",
    r"primary job\s+terminated normally, but",
    r"\bMPI_ABORT was invoked",
    r"^srun: error: .*(?:exited with exit code|killed|terminated)",
)
_START_PATTERNS = tuple(re.compile(p, re.IGNORECASE) for p in (*_STARTS, *_ENDS))
_END_PATTERNS = tuple(re.compile(p, re.IGNORECASE) for p in _ENDS)
_DIED = re.compile(r"exited on signal \d+|Caught signal \d+|Segmentation fault", re.IGNORECASE)
_RETRIES_EXCEEDED = "12"


def of_lines(lines: Sequence[str]) -> list[Finding]:
    """What the sentences of errors say, each reason once per part."""
    found: dict[tuple[str, str | None], Finding] = {}
    for line in lines:
        for finding in _of_line(line):
            found.setdefault((finding.reason, finding.part), finding)
    return list(found.values())


def launcher_complaint(lines: Sequence[str]) -> str | None:
    """The first line with which a launcher says that the test did not start or did not end."""
    said = (line for line in lines if "NCCL INFO" not in line and "NCCL WARN" not in line)
    return next((line for line in said if any(p.search(line) for p in _START_PATTERNS)), None)


def network_used(text: str) -> str | None:
    """The network NCCL chose, as its INFO lines name it (`IB`, `Socket`); None when none says."""
    found = _NETWORK.findall(text)
    return found[-1] if found else None


def _of_line(line: str) -> Iterator[Finding]:
    failed, cuda = _NCCL.search(line), _CUDA.search(line)
    if failed:
        words = failed[1].lower()
        reason = next((r for sign, r in _NCCL_WORDS if sign in words), "nccl_error")
        yield tool_finding(reason, line)
    elif cuda:
        yield cuda_errors.of_sentence(cuda[1])
    if _TIMEOUT.search(line):
        yield tool_finding("timeout", line)
    if _DIED.search(line) or any(p.search(line) for p in _END_PATTERNS):
        yield tool_finding("rank_died", line)
    completion = _COMPLETION.search(line)
    if completion:
        yield _completion(line, completion[1])
    if _NO_IB.search(line):
        yield Finding(
            None,
            "ib_not_found",
            Severity.INFO,
            FindingKind.CONFIGURATION,
            category=Category.FABRIC,
            detail=line.strip()[:300],
        )


def _completion(line: str, status: str) -> Finding:
    """A failed transfer: the network between two nodes, or either end of it."""
    hca = _HCA.search(line)
    reason = "ib_retry_exceeded" if status == _RETRIES_EXCEEDED else "ib_transfer_failed"
    return Finding(
        hca[1] if hca else None,
        reason,
        Severity.WARNING,
        FindingKind.TOOL,
        category=Category.FABRIC,
        detail=line.strip()[:300],
    )
