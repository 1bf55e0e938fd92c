"""Redfish: tasks, inventories and errors of a board management controller.

A task that is Completed with a critical status has failed; one at 100 % that still runs is running;
a task that is gone says nothing, then the version must be read. Unknown states still run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers.bandwidth import finite
from sickbay.readers.conclusion import conclude, contradiction, first_line, tool_finding
from sickbay.readers.documents import json_documents

TOOL = "redfish"
_ENDED_WELL = {"completed", "success", "successful", "ok"}
_ENDED_BADLY = {"exception", "failed", "failure", "completedwitherrors", "error"}
_STOPPED = {"killed", "cancelled", "canceled", "aborted"}
_CLAIMS_STAGED = re.compile(
    r"awaittoactivate|awaiting_?activation|pendingactivation", re.IGNORECASE
)
_FAILED_MESSAGE = re.compile(
    r"\.(?:ApplyFailed|VerificationFailed|TransferFailed|ActivateFailed|TaskAborted)$"
)
_CREATED = re.compile(r"(?:^|\.)Task\.[\d.]+\.New$")
_TASK_URI = re.compile(r"(/redfish/v1/\S*?(?:Tasks?|TaskMonitors?|Jobs)/[\w.\-]+)")
_HTTP = re.compile(r"^HTTP/\d(?:\.\d)? (\d{3})\b", re.MULTILINE)
_LOCATION = re.compile(r"^Location:\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_MISSING = re.compile(r"ResourceMissingAtURI|ResourceNotFound|ResourceMissing")
_SIGN = re.compile(
    r"\"@odata\.(?:id|type|context)\"|\"TaskState\"\s*:|\"@Message\.ExtendedInfo\"|^HTTP/\d",
    re.MULTILINE,
)
_NVFWUPD = re.compile(r"\"(?:Error Code|Firmware Devices)\"\s*:|^FW update started", re.MULTILINE)
_HTTP_ACCEPTED, _HTTP_GONE = 202, {404, 410}
_HTTP_DENIED, _HTTP_ERRORS = {401, 403}, 400


def recognises(text: str) -> bool:
    """Whether a text looks like an answer of Redfish."""
    return bool(_SIGN.search(text)) and not _NVFWUPD.search(text)


def read(text: str, *, exit_code: int | None) -> Reading:
    """What one answer means: a task, an inventory, an error, with or without its HTTP head.

    Args:
        text: the answer as received.
        exit_code: the exit status of what fetched it, None when it is not known.
    """
    documents, truncated = json_documents(text)
    documents = [d for d in documents if d]
    findings = [f for d in documents for f in of_document(d)]
    findings += _of_http(text, has_body=bool(documents))
    if truncated:
        findings.append(tool_finding("truncated", "the document does not end"))
    elif not documents and not findings:
        bad = "invalid_json" if "{" in text else "did_not_run"
        findings.append(tool_finding(bad, first_line(text)))
    findings += contradiction(exit_code, findings)
    remarks = [f for f in findings if f.severity is Severity.INFO]
    return conclude(
        TOOL,
        text,
        [f for f in findings if f.severity is not Severity.INFO],
        passed=_said(documents),
        remarks=remarks,
        measurements=[m for d in documents for m in _progress(d)],
    )


def of_document(document: Mapping[str, Any]) -> list[Finding]:
    """What one document says; an INFO finding is a remark that changes no verdict."""
    if isinstance(document.get("error"), Mapping):
        return [_of_error(_mapping(document["error"]))]
    if is_task(document):
        return list(_of_task(document))
    created = [m for m in _messages(document) if _CREATED.search(_id(m))]
    if created:
        return [running(_task_uri(created[0]))]
    resources = list(_resources(document))
    if not resources:
        return [tool_finding("incomplete", "no task, no component and no error is in the document")]
    return [f for resource in resources for f in _of_resource(resource)]


def is_task(document: Mapping[str, Any]) -> bool:
    """Whether a document is a task or a job."""
    return "TaskState" in document or "JobState" in document or "PercentComplete" in document


def versions(text: str) -> dict[str, str]:
    """The firmware versions an inventory shows, by component."""
    documents, _ = json_documents(text)
    found = {}
    for resource in (r for d in documents for r in _resources(d)):
        name = str(resource.get("Id") or resource.get("Name") or "")
        if name and isinstance(resource.get("Version"), str):
            found[name] = str(resource["Version"])
    return found


def task_uri(text: str) -> str | None:
    """The task an answer names, for polling; None when it names none."""
    head = _LOCATION.search(text)
    if head:
        return head[1]
    found = _TASK_URI.search(text)
    return found[1].rstrip('",') if found else None


def running(detail: str) -> Finding:
    """An update that goes on: poll it to its deadline."""
    return tool_finding("task_running", detail)


def failed(detail: str, part: str | None = None) -> Finding:
    """An update that ended badly; what is on the part now must be read."""
    return Finding(
        part,
        "firmware_update_failed",
        Severity.MAJOR,
        FindingKind.HARDWARE,
        category=Category.SOFTWARE,
        detail=detail[:300],
    )


def staged(detail: str, part: str | None = None) -> Finding:
    """A new version that is on the flash and not in use before its activation."""
    return tool_finding("firmware_staged", detail, part)


def _of_task(task: Mapping[str, Any]) -> Iterator[Finding]:
    state = str(task.get("TaskState") or task.get("JobState") or "").strip()
    status = str(task.get("TaskStatus") or task.get("JobStatus") or "").strip()
    word = re.sub(r"[\s_]", "", state).lower()
    worst = _worst_message(_messages(task))
    shown = f"state {state or 'none'}, status {status or 'none'}{worst}"
    broken = [m for m in _messages(task) if _FAILED_MESSAGE.search(_id(m))]
    if word in _ENDED_BADLY:
        yield failed(shown)
    elif word in _STOPPED:
        yield tool_finding("task_stopped", shown)
    elif word in _ENDED_WELL:
        if status.lower() == "critical" or broken:
            yield failed(shown)
            return
        if any(_CLAIMS_STAGED.search(_id(m)) for m in _messages(task)):
            yield staged("the new version waits for its activation")
        if status.lower() == "warning":
            yield tool_finding("task_warning", shown)
        elif status.lower() not in {"ok", ""}:
            yield tool_finding("task_state_unknown", shown)
        elif worst:
            yield Finding(None, "task_warning", Severity.INFO, FindingKind.TOOL, detail=shown[:300])
    else:
        yield running(shown)


def _worst_message(messages: Sequence[Mapping[str, Any]]) -> str:
    said = [m for m in messages if _severity(m) in {"warning", "critical"}]
    if not said:
        return ""
    worst = next((m for m in said if _severity(m) == "critical"), said[0])
    return f": {worst.get('Message') or _id(worst)}"


def _of_resource(resource: Mapping[str, Any]) -> Iterator[Finding]:
    status = _mapping(resource.get("Status"))
    health = str(status.get("Health") or status.get("HealthRollup") or "").lower()
    state = str(status.get("State") or "").lower()
    name = str(resource.get("Id") or resource.get("Name") or "") or None
    if state == "updating":
        yield running(f"{name} is being updated")
    if health == "critical":
        yield Finding(
            name,
            "component_critical",
            Severity.MAJOR,
            FindingKind.HARDWARE,
            category=Category.HOST,
            detail=f"state {state or 'unknown'}, health critical",
        )
    elif health == "warning":
        yield tool_finding("component_warning", f"state {state or 'unknown'}", name)
    elif health not in {"ok", ""}:
        yield tool_finding("component_unknown", f"health {health}", name)


def _of_error(error: Mapping[str, Any]) -> Finding:
    messages = [m for m in _list(error.get("@Message.ExtendedInfo")) if isinstance(m, Mapping)]
    said = " ".join(str(m.get("Message") or _id(m)) for m in messages) or str(error.get("message"))
    ids = " ".join([str(error.get("code", "")), *map(_id, messages)])
    if _MISSING.search(ids):
        return tool_finding("task_gone", said)
    if re.search(r"InsufficientPrivilege|NoValidSession|AccessDenied|Unauthorized", ids):
        return tool_finding("bmc_access_denied", said)
    return tool_finding("bmc_error", said)


def _of_http(text: str, *, has_body: bool) -> Iterator[Finding]:
    codes = [int(code) for code in _HTTP.findall(text)]
    if not codes:
        return
    code = codes[-1]
    if code in _HTTP_GONE:
        yield tool_finding("task_gone", f"HTTP {code}: read the version, do not start again")
    elif code in _HTTP_DENIED:
        yield tool_finding("bmc_access_denied", f"HTTP {code}")
    elif code >= _HTTP_ERRORS:
        yield tool_finding("bmc_error", f"HTTP {code}")
    elif code == _HTTP_ACCEPTED and not has_body:
        yield running(f"accepted: {task_uri(text) or 'no task is named'}")


def _said(documents: Sequence[Mapping[str, Any]]) -> str | None:
    if any(is_task(d) for d in documents):
        return "the task ended well; the version in use must be read back"
    count = sum(1 for d in documents for _ in _resources(d))
    return f"{count} components are shown without a fault" if count else None


def _progress(document: Mapping[str, Any]) -> Iterator[Measurement]:
    percent = finite(document.get("PercentComplete"))
    if percent is not None:
        yield Measurement("percent_complete", None, percent, "%")


def _resources(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The resources with a status or a version, those of a collection that is expanded too."""
    members = document.get("Members")
    shown = members if isinstance(members, list) else [document]
    for resource in shown:
        if not isinstance(resource, Mapping) or is_task(resource):
            continue
        has_status = isinstance(resource.get("Status"), Mapping)
        if has_status or isinstance(resource.get("Version"), str):
            yield resource


def _messages(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages: a list, one object or null, as vendors write them."""
    messages = document.get("Messages")
    if isinstance(messages, Mapping):
        return [messages]
    return [m for m in _list(messages) if isinstance(m, Mapping)]


def _task_uri(message: Mapping[str, Any]) -> str:
    named = [str(a) for a in _list(message.get("MessageArgs")) if "/redfish/" in str(a)]
    return f"accepted, the task is {named[0]}" if named else str(message.get("Message", "accepted"))


def _severity(message: Mapping[str, Any]) -> str:
    return str(message.get("Severity") or message.get("MessageSeverity") or "").lower()


def _id(message: Mapping[str, Any]) -> str:
    return str(message.get("MessageId") or "")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
