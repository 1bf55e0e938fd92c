"""`nvidia-smi`: any of its outputs, its errors included; which command printed it shows the text.

The rules of a GPU's state are the same for XML, text, CSV and the plain table.
"""

import re
from collections.abc import Sequence

from sickbay.domain.node import Category, Part, PartKind, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers.conclusion import conclude, tool_finding
from sickbay.readers.nvidia_smi_answers import (
    TOOL,
    lost_finding,
    lost_gpus,
    of_text,
    read_answer,
    read_listed,
    read_reset,
)
from sickbay.readers.nvidia_smi_links import is_nvlink, read_nvlink
from sickbay.readers.nvidia_smi_state import JUDGED, measurements_of, state_of
from sickbay.readers.nvidia_smi_table import parse_csv, parse_table
from sickbay.readers.nvidia_smi_tree import StateLog, parse
from sickbay.readers.parts import bus_id

__all__ = [
    "TOOL",
    "lost_gpus",
    "read",
    "read_answer",
    "read_listed",
    "read_nvlink",
    "read_parts",
    "read_reset",
    "read_state",
]

_SIGNS = re.compile(
    r"<nvidia_smi_log|NVSMI LOG|NVIDIA-SMI \S|^GPU \d+: .*\(UUID: GPU-|Failed to initialize NVML"
    r"|Unable to determine the device handle|NVIDIA-SMI has failed|was successfully reset"
    r"|No devices were found|In use by another client|in use by another process"
    r"|Volatile Uncorr\. ECC|NVMLError"
    r"|^GPUs? could not be reset|^ *GPU Recovery Action +:|^ *Remapped Rows\b|^ *ECC Errors$"
    r"|^ *Retired Pages$|^ *Fabric$",
    re.IGNORECASE | re.MULTILINE,
)


def read(
    text: str,
    *,
    exit_code: int | None,
    links_per_gpu: int | None = None,
    gpus: int | None = None,
) -> Reading:
    """What any output of `nvidia-smi` means.

    Args:
        text: what was printed.
        exit_code: the exit status, None when it is not known.
        links_per_gpu: links the node class has per GPU, None when nobody says.
        gpus: GPUs the node class has, None when nobody says.
    """
    if is_nvlink(text):
        return read_nvlink(text, exit_code=exit_code, links_per_gpu=links_per_gpu)
    if _parse(text) is not None:
        return read_state(text, exit_code=exit_code, gpus=gpus)
    return read_answer(text, exit_code=exit_code, gpus=gpus)


def recognises(text: str) -> bool:
    """Whether a text is any output of `nvidia-smi`, its errors included."""
    if _SIGNS.search(text) or is_nvlink(text):
        return True
    return parse_table(text) is not None or _is_query(text)


def read_state(
    text: str,
    *,
    exit_code: int | None,
    expected: Sequence[Part] = (),
    gpus: int | None = None,
) -> Reading:
    """What `nvidia-smi` says of the GPUs' standing state.

    Args:
        text: the XML of `-q -x`, the text of `-q`, the CSV of a query or the plain table.
        exit_code: the exit status, None when it is not known.
        expected: the parts on record; a GPU of them that is not shown is lost.
        gpus: GPUs the node class has, None when nobody says.
    """
    log = _parse(text)
    if log is None:
        return read_answer(text, exit_code=exit_code, expected=expected)
    findings = of_text(text if log.truncated else _outside(text))
    if log.truncated:
        findings.append(tool_finding("truncated", "the document has no end"))
    findings += [f for gpu in log.gpus for f in state_of(gpu)]
    # A list that was cut off names no missing part.
    if not log.truncated:
        findings += [*_absent(log, expected), *_count(log, gpus)]
    findings += _doubts(log, exit_code)
    return conclude(
        TOOL,
        text,
        findings,
        passed=f"{len(log.gpus)} GPUs without a standing fault" if log.gpus else None,
        measurements=[m for gpu in log.gpus for m in measurements_of(gpu)],
    )


def read_parts(text: str) -> tuple[Part, ...]:
    """The GPUs a `-q -x` document shows; a slot is not known to the tool and stays empty."""
    log = parse(text)
    return tuple(
        Part(
            slot="",
            kind=PartKind.GPU,
            uuid=gpu.first("uuid", "gpu_uuid") or "",
            serial=gpu.first("serial", "serial_number") or "",
            bus_id=gpu.bus_id or "",
        )
        for gpu in (log.gpus if log else ())
    )


def _doubts(log: StateLog, exit_code: int | None) -> list[Finding]:
    """What keeps a log without a fault from passing."""
    found = []
    if exit_code not in {0, None}:
        found.append(tool_finding("exit_code_contradicts_document", f"exit status {exit_code}"))
    if log.attached is not None and log.attached > len(log.gpus):
        detail = f"{log.attached} GPUs are attached, {len(log.gpus)} are listed"
        found.append(tool_finding("gpus_not_listed", detail))
    found += [tool_finding(reason, detail) for reason, detail in log.doubts]
    silent = [g for g in log.gpus if not any(p.startswith(JUDGED) for p in g.fields)]
    found += [tool_finding("state_not_shown", "no field of its state", g.part) for g in silent]
    return found


def _count(log: StateLog, gpus: int | None) -> list[Finding]:
    """GPUs the class has and the driver does not: only the driver's own count is believed."""
    if gpus is None:
        return []
    shown = log.attached if log.attached is not None else len(log.gpus)
    if shown > gpus:
        return [tool_finding("class_mismatch", f"{shown} GPUs, the class has {gpus}")]
    if shown == gpus:
        return []
    detail = f"{shown} of {gpus} GPUs are there"
    if log.attached is None:
        return [tool_finding("gpus_not_listed", detail)]
    kind, category = FindingKind.HARDWARE, Category.COMPUTE
    return [
        Finding(None, "gpu_missing", Severity.CRITICAL, kind, Treatment.REBOOT, category, detail)
    ]


def _absent(log: StateLog, expected: Sequence[Part]) -> list[Finding]:
    """Expected GPUs that are not shown; one in the same place with another UUID is a new part."""
    uuids = {gpu.first("uuid", "gpu_uuid") for gpu in log.gpus}
    places = {gpu.bus_id for gpu in log.gpus}
    return [
        lost_finding(bus_id(p.bus_id) or p.uuid, f"the GPU of {p.slot} is not shown")
        for p in expected
        if p.kind is PartKind.GPU and p.uuid not in uuids and bus_id(p.bus_id) not in places
    ]


def _parse(text: str) -> StateLog | None:
    return parse(text) or parse_table(text) or parse_csv(text)


def _is_query(text: str) -> bool:
    """Whether the rows of a query name GPUs: any list with commas could be one without."""
    log = parse_csv(text)
    return bool(log and any(p.startswith(JUDGED) for gpu in log.gpus for p in gpu.fields))


def _outside(text: str) -> str:
    """What was printed around an XML document, all of it for the other forms."""
    start, end = text.find("<?xml"), text.rfind("</nvidia_smi_log>")
    if start < 0:
        start = text.find("<nvidia_smi_log")
    return text if start < 0 or end < start else f"{text[:start]}\n{text[end:]}"
