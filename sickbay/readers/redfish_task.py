"""Redfish documents of a firmware update: the task, and the inventory of versions.

A task that says *completed* is not thereby a success, and one at 100 % is not thereby finished.
States that no standard names are taken for still running; the caller's deadline ends them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sickbay.contracts.firmware import FlashTask, TaskState

# Task states of the DMTF Task schema that end a task, and two that vendors add.
GOOD_ENDS = frozenset({"completed", "success"})
BAD_ENDS = frozenset({"exception", "killed", "cancelled", "failed"})
# Message ids (registry Update) that say that the image did not reach the component.
FAILURES = frozenset(
    {"ApplyFailed", "VerificationFailed", "TransferFailed", "ActivateFailed", "OperationFailed"}
)
AWAITS = "AwaitToActivate"
WHOLE = 100
SHOWN = 300


def flash_task(body: Mapping[str, Any]) -> FlashTask:
    """How the task stands, by its own document."""
    state = str(body.get("TaskState") or "").casefold()
    status = str(body.get("TaskStatus") or "").casefold()
    messages = _messages(body)
    percent = _percent(body.get("PercentComplete"))
    if state in BAD_ENDS:
        return FlashTask(TaskState.FAILED, percent, detail=_worst(messages) or f"task {state}")
    if state not in GOOD_ENDS:
        return FlashTask(TaskState.RUNNING, percent, detail=state or "no state given")
    broken = [m for m in messages if _event(m) in FAILURES]
    if status == "critical" or broken:
        why = _worst(broken or messages) or "no reason given"
        return FlashTask(TaskState.FAILED, percent, detail=f"completed, but {status}: {why}")
    awaiting = next((m for m in messages if _event(m) == AWAITS), None)
    detail = f"staged: {awaiting.get('Resolution') or 'awaits activation'}" if awaiting else state
    return FlashTask(TaskState.SUCCEEDED, percent, detail=detail[:SHOWN])


def task_link(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """Where the task of an accepted update is found, empty when the answer does not say.

    The task itself is better than its monitor, which is gone once its last answer was read.
    """
    if "TaskState" in body or "#Task." in str(body.get("@odata.type") or ""):
        own = str(body.get("@odata.id") or "")
        if own:
            return own
    location = str(headers.get("Location") or "")
    if location:
        return location
    for message in _messages(body):
        arguments = message.get("MessageArgs")
        for argument in arguments if isinstance(arguments, list) else ():
            if "/TaskService/Tasks/" in str(argument):
                return str(argument)
    return ""


def component_versions(
    members: Iterable[Mapping[str, Any]], *, system: str, alone: bool
) -> dict[str, str]:
    """Version by component of one system, empty where the controller tells none.

    Args:
        members: the documents of the firmware inventory.
        system: the system's path.
        alone: whether the controller serves this system only. Then every member is its own; else
            those that name it, or something below it, as a related item.
    """
    return {
        name: str(member.get("Version") or "")
        for name, member in of_system(members, system=system, alone=alone).items()
    }


def of_system(
    members: Iterable[Mapping[str, Any]], *, system: str, alone: bool
) -> dict[str, Mapping[str, Any]]:
    """The inventory's members of one system, by component."""
    return {
        str(member["Id"]): member
        for member in members
        if member.get("Id") and (alone or _relates(member, system.rstrip("/")))
    }


def _relates(member: Mapping[str, Any], system: str) -> bool:
    items = member.get("RelatedItem") or []
    paths = [str(i.get("@odata.id", "")) for i in items if isinstance(i, Mapping)]
    return any(path.rstrip("/") == system or path.startswith(f"{system}/") for path in paths)


def _messages(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = body.get("Messages")
    return [m for m in found if isinstance(m, Mapping)] if isinstance(found, list) else []


def _event(message: Mapping[str, Any]) -> str:
    return str(message.get("MessageId") or "").rpartition(".")[2]


def _worst(messages: Iterable[Mapping[str, Any]]) -> str:
    """The text of the worst message; among equals the last, which says how it ended."""
    rank = {"critical": 2, "warning": 1}
    texts = [
        (rank.get(str(m.get("Severity") or m.get("MessageSeverity") or "").casefold(), 0), i, m)
        for i, m in enumerate(messages)
    ]
    if not texts:
        return ""
    _, _, worst = max(texts, key=lambda t: t[:2])
    return str(worst.get("Message") or worst.get("MessageId") or "")[:SHOWN]


def _percent(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= WHOLE else None
