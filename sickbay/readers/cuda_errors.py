"""What an error of the CUDA library, quoted by a benchmark, says about the node.

Two of CUDA's errors state that hardware failed; all others only say why a tool did not run.
Sentences are those of NVIDIA's CUDA runtime and driver interfaces.
"""

import re

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers.conclusion import tool_finding

_HARDWARE: tuple[tuple[str, str, Category], ...] = (
    (r"ecc_?uncorrectable|uncorrectable ecc error", "cuda_ecc_uncorrectable", Category.MEMORY),
    (r"nvlink_?uncorrectable|uncorrectable nvlink error", "cuda_nvlink_uncorrectable",
     Category.INTERCONNECT),
)  # fmt: skip
_TOOL: tuple[tuple[str, str], ...] = (
    (r"system_?not_?ready|system not yet initialized", "cuda_system_not_ready"),
    (r"busy or unavailable|devices_?unavailable", "cuda_context_busy"),
    (r"out_?of_?memory|out of memory|memory_?allocation", "cuda_out_of_memory"),
    (r"no_?device|no cuda-capable device", "no_devices"),
    (r"driver_?mismatch|insufficient_?driver|driver version is insufficient|unsupported display",
     "driver_mismatch"),
)  # fmt: skip
_HARDWARE_PATTERNS = tuple((re.compile(p, re.IGNORECASE), r, c) for p, r, c in _HARDWARE)
_TOOL_PATTERNS = tuple((re.compile(p, re.IGNORECASE), r) for p, r in _TOOL)


def of_sentence(sentence: str, *, part: str | None = None) -> Finding:
    """The finding of one sentence that is known to be an error of CUDA."""
    for pattern, reason, category in _HARDWARE_PATTERNS:
        if pattern.search(sentence):
            return Finding(
                part,
                reason,
                Severity.CRITICAL,
                FindingKind.HARDWARE,
                Treatment.RESET,
                category,
                sentence.strip()[:300],
            )
    for pattern, reason in _TOOL_PATTERNS:
        if pattern.search(sentence):
            return tool_finding(reason, sentence, part)
    return tool_finding("cuda_error", sentence, part)
