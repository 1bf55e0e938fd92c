"""nvfwupd and mlxfwmanager (mlxup): what a firmware tool did, and which versions it shows.

An error code of nought says that the tool ran, not that anything was updated. A version on the
flash is staged; only a version read after the activation is active.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers import redfish
from sickbay.readers.conclusion import conclude, first_line, tool_finding
from sickbay.readers.documents import json_documents
from sickbay.readers.parts import bus_id

TOOL = "firmware"
_NVOS_STATE = re.compile(r"['\"]state['\"]\s*:\s*['\"](\w*)['\"]")
_NVOS_DETAIL = re.compile(r"['\"](?:detail|status)['\"]\s*:\s*['\"]([^'\"]{1,300})['\"]")
_NVOS_JOB = re.compile(r"Job Id\b|action_\w+")
_ERROR_CODE = re.compile(r"^\s*\"?Error Code\"?\s*:\s*(\d{1,9})", re.MULTILINE)
_TASK_WORD = re.compile(r"^\s*Task ?(State|Status)\s*:\s*(\w+)", re.MULTILINE)
_FINISHED = re.compile(r"Firmware update successful|update (?:is )?successful", re.IGNORECASE)
_UPDATE_FAILED = re.compile(r"(?:firmware|fw) update (?:has )?failed", re.IGNORECASE)
_AP_ROW = re.compile(r"^(\S+)\s{2,}(\S.*?)\s{2,}(\S.*?)\s{2,}(Yes|No)\s*$")
_AP_HEAD = re.compile(r"^AP Name\s+Sys Version\s+Pkg Version\s+Up-To-Date")
_AP_END = re.compile(r"^-{60,}\s*$|^Error Code", re.MULTILINE)
_MLX_DEVICE = re.compile(r"^Device #(\d{1,4}):\s*(.*)$")
_MLX_PCI = re.compile(r"^\s*PCI Device Name:\s*(\S+)")
_MLX_STATUS = re.compile(r"^\s*Status:\s*(\S.*?)\s*$")
_MLX_ENDED = re.compile(r"^\s*(?:Done|Fail\w*)\b.*$", re.IGNORECASE)
_MLX_PCI_NAME = re.compile(r"pci(\d+):(\d+):(\d+):\d+$")
_RESTART = re.compile(
    r"restart needed for updates to take effect|please reboot|to load (?:the )?new (?:fw|firmware)",
    re.IGNORECASE,
)
_SIGN = re.compile(
    r"^Device #\d+:|^Querying Mellanox|\"(?:Error Code|Firmware Devices)\"\s*:|^Error Code:\s*\d"
    r"|^AP Name\s+Sys Version|^Status for Job Id|^FW update started|['\"]action_\w+['\"]",
    re.MULTILINE,
)
_ABSENT = {"n/a", "", "-"}
_OURS = {"Output", "Error Code", "Firmware Devices"}


def recognises(text: str) -> bool:
    """Whether a text looks like an output of a firmware tool."""
    return bool(_SIGN.search(text))


def read(text: str, *, exit_code: int | None) -> Reading:
    """What one output of a firmware tool means.

    Args:
        text: what was printed, text or document.
        exit_code: the exit status, None when it is not known.
    """
    documents, truncated = json_documents(text)
    ours = [d for d in documents if _OURS & d.keys()]
    findings: list[Finding] = []
    good: list[str] = []
    if truncated:
        findings.append(tool_finding("truncated", "the document does not end"))
    for document in ours:
        _of_document(document, findings, good)
    if not ours and not truncated:
        _of_text(text, findings, good)
        tasks = [d for d in documents if redfish.is_task(d)]
        if tasks and not findings and not good:
            _of_entry(tasks[-1], findings, good)
    if not findings and not good:
        findings.append(tool_finding("did_not_run", first_line(text)))
    if exit_code not in {0, None} and not any(f.kind is not FindingKind.TOOL for f in findings):
        findings.append(tool_finding("firmware_tool_error", f"exit status {exit_code}"))
    open_questions = [f for f in findings if f.severity is not Severity.INFO]
    blocked = any(f.kind is FindingKind.CONFIGURATION for f in open_questions)
    return conclude(
        TOOL,
        text,
        open_questions,
        passed=None if blocked or not good else good[0],
        remarks=[f for f in findings if f.severity is Severity.INFO],
    )


def _of_document(document: Mapping[str, Any], findings: list[Finding], good: list[str]) -> None:
    errors = document.get("Error")
    said = [str(e)[:200] for e in errors] if isinstance(errors, list) else []
    if said or str(document.get("Error Code", 0)) != "0":
        detail = f"error code {document.get('Error Code')}: {' '.join(said)}"
        findings.append(tool_finding("firmware_tool_error", detail))
    output = document.get("Output", document)
    for entry in output if isinstance(output, list) else [output]:
        if isinstance(entry, Mapping):
            _of_entry(entry, findings, good)


def _of_entry(entry: Mapping[str, Any], findings: list[Finding], good: list[str]) -> None:
    """One target: its parts with their versions, its task, or what was answered to a request."""
    connection = str(entry.get("Connection Status", "Successful"))
    if connection.lower() != "successful":
        findings.append(tool_finding("bmc_unreachable", connection))
    devices = entry.get("Firmware Devices")
    if isinstance(devices, list):
        _of_rows([_device_row(d) for d in devices if isinstance(d, Mapping)], findings, good)
        return
    if _OURS & entry.keys():
        return
    told = redfish.of_document(entry)
    findings += told
    if redfish.is_task(entry) and not any(f.severity is not Severity.INFO for f in told):
        good.append("the task ended well; the version in use must be read back")


def _device_row(device: Mapping[str, Any]) -> tuple[str, str, str, str]:
    keys = ("AP Name", "Sys Version", "Pkg Version", "Up-To-Date")
    name, system, package, current = (str(device.get(key, "")).strip() for key in keys)
    return name, system, package, current


def _of_text(text: str, findings: list[Finding], good: list[str]) -> None:
    code = _ERROR_CODE.search(text)
    if code and int(code[1]):
        findings.append(tool_finding("firmware_tool_error", f"error code {code[1]}"))
    if _NVOS_JOB.search(text) and _NVOS_STATE.search(text):
        findings.append(_of_job(text))
    elif _TASK_WORD.search(text) or _FINISHED.search(text):
        findings += _of_progress(text)
    if _UPDATE_FAILED.search(text):
        findings.append(redfish.failed("the tool says that the update failed"))
    lines = text.splitlines()
    if any(_AP_HEAD.match(line) for line in lines):
        rows = [(m[1], m[2], m[3], m[4]) for m in map(_AP_ROW.match, lines) if m]
        _of_rows(rows, findings, good)
        if not _AP_END.search(text):
            findings.append(tool_finding("incomplete", "the table of devices does not end"))
    if any(_MLX_DEVICE.match(line) for line in lines):
        _of_adapters(lines, findings, good)
    findings += [
        tool_finding("firmware_tool_error", line) for line in lines if line.startswith("-E-")
    ]


def _of_job(text: str) -> Finding:
    """A job of a switch tray: the answer is no JSON, its state is a word of its own."""
    state = _NVOS_STATE.search(text)
    detail = _NVOS_DETAIL.search(text)
    word = state[1].lower() if state else ""
    shown = f"{word or 'no state'}: {detail[1] if detail else ''}"
    if word == "action_success":
        return redfish.staged(shown)
    if word in {"action_error", "action_failed", "action_failure"}:
        return redfish.failed(shown)
    return redfish.running(shown)


def _of_progress(text: str) -> Iterator[Finding]:
    """The lines of an update that is watched: the last state counts."""
    last = {match[1]: match[2] for match in _TASK_WORD.finditer(text)}
    if not last:
        yield redfish.staged("the tool says that the update succeeded")
        return
    task = {"TaskState": last.get("State", ""), "TaskStatus": last.get("Status", "")}
    told = redfish.of_document(task)
    yield from told
    if not told:
        yield redfish.staged("the task ended well and the activation is a step of its own")


def _of_rows(
    rows: Sequence[tuple[str, str, str, str]], findings: list[Finding], good: list[str]
) -> None:
    """`No` says that a part is behind only when the package holds another version for it."""
    covered = [row for row in rows if row[2].lower() not in _ABSENT]
    behind = [row for row in covered if row[3].lower() != "yes" and row[1] != row[2]]
    findings += [_outdated(name, f"{now}, the package has {new}") for name, now, new, _ in behind]
    if not covered:
        findings.append(tool_finding("firmware_not_applicable", "no part is in the package"))
    elif not behind:
        good.append(f"{len(covered)} parts have the version of the package")


def _of_adapters(lines: Sequence[str], findings: list[Finding], good: list[str]) -> None:
    """Per adapter its status, then what an update of it said, to the last word."""
    part, number = None, ""
    told: list[str] = []
    updates: dict[str, str] = {}
    restart = any(_RESTART.search(line) for line in lines)
    for line in lines:
        device, pci, status = _MLX_DEVICE.match(line), _MLX_PCI.match(line), _MLX_STATUS.match(line)
        ended = _MLX_ENDED.match(line)
        if device:
            number, part = device[1], None
            if device[2].lower().startswith("up to date"):
                told.append(device[2])
            elif device[2]:
                updates[number] = device[2]
        elif pci:
            part = _adapter(pci[1])
        elif status and number:
            told.append(status[1])
            findings += _of_status(part or number, status[1], restart=restart)
        elif ended and number in updates:
            updates[number] += f" {ended[0].strip()}"
    for device_number, words in updates.items():
        findings += _of_update(device_number, words)
    if not told and not updates:
        findings.append(tool_finding("incomplete", "no status of an adapter is shown"))
    elif not updates and all(word.lower().startswith("up to date") for word in told):
        good.append("all adapters are up to date")


def _of_status(part: str, status: str, *, restart: bool) -> Iterator[Finding]:
    word = status.lower()
    if "no matching image" in word:
        yield tool_finding("firmware_not_applicable", status, part)
    elif "update required" in word:
        yield redfish.staged(status, part) if restart else _outdated(part, status)
    elif "fail" in word or "error" in word:
        yield tool_finding("firmware_tool_error", status, part)
    elif word != "up to date":
        yield tool_finding("firmware_status_unknown", status, part)


def _of_update(number: str, said: str) -> Iterator[Finding]:
    """What an update of one adapter said, its last word included."""
    word = said.lower()
    if "fail" in word or "error" in word:
        yield redfish.failed(said, number)
    elif re.search(r"\bdone\b", word):
        yield redfish.staged(said, number)
    else:
        yield redfish.running(said)


def _adapter(name: str) -> str:
    """`pci0:6:0:0` or `0000:06:00.0` as a bus id; another name as it is."""
    old = _MLX_PCI_NAME.match(name)
    if old:
        domain, bus, device = (int(number) for number in old.groups())
        return f"{domain:04x}:{bus:02x}:{device:02x}"
    return bus_id(name) or name


def _outdated(part: str, detail: str) -> Finding:
    return Finding(
        part,
        "firmware_out_of_date",
        Severity.WARNING,
        FindingKind.CONFIGURATION,
        Treatment.REFLASH,
        Category.SOFTWARE,
        detail[:300],
    )
