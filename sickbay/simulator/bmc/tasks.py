"""A flash as a task of the Redfish task service."""

from collections.abc import Sequence
from typing import Any

from sickbay.simulator.bmc.messages import ROOT, link
from sickbay.simulator.bmc.resources import OK, stamp
from sickbay.simulator.flashing import VERIFY_SHARE, WHOLE, Flash

_WAITS = {"boot": "system reset", "power_cycle": "DC power cycle or AC power cycle"}


def task_service(tasks: str, *, now: float) -> dict[str, Any]:
    """The resource above the tasks. `now` in unix seconds."""
    return {
        "@odata.id": f"{ROOT}/TaskService",
        "@odata.type": "#TaskService.v1_2_1.TaskService",
        "Id": "TaskService",
        "Name": "Task Service",
        "ServiceEnabled": True,
        "DateTime": stamp(now),
        "CompletedTaskOverWritePolicy": "Oldest",
        "LifeCycleEventOnTaskStateChange": False,
        "Status": OK,
        "Tasks": link(tasks),
    }


def task_resource(
    flash: Flash, *, path: str, monitor: str, targets: Sequence[str], now_h: float
) -> dict[str, Any]:
    """One task: its state and status are two things, and only both together are a result."""
    body: dict[str, Any] = {
        "@odata.id": path,
        "@odata.type": "#Task.v1_7_4.Task",
        "Id": flash.id,
        "Name": f"Firmware update of {flash.node}",
        "TaskMonitor": monitor,
        "TaskState": _state(flash),
        "TaskStatus": "Critical" if flash.state == "failed" else "OK",
        "PercentComplete": flash.percent(now_h=now_h),
        "StartTime": stamp(flash.started_at),
        "Messages": _messages(flash, targets=targets, now_h=now_h),
    }
    if flash.ended_at is not None:
        body["EndTime"] = stamp(flash.ended_at)
    return body


def _state(flash: Flash) -> str:
    if flash.state == "running":
        return "Running"
    return "Completed" if flash.state == "done" or flash.critical else "Exception"


def _messages(flash: Flash, *, targets: Sequence[str], now_h: float) -> list[dict[str, Any]]:
    """What has been said so far, oldest first."""
    percent, found = flash.percent(now_h=now_h), []
    version = flash.version or "unknown"
    for target in targets:
        said = [("TargetDetermined", "OK", f"{target} will be updated with image {version}.", "")]
        if percent < VERIFY_SHARE * WHOLE or flash.state == "failed":
            said.append(("TransferringToComponent", "OK", f"Image {version} goes to {target}.", ""))
        else:
            said.append(("InstallingOnComponent", "OK", f"Image {version} is installed.", ""))
        if flash.state == "done":
            said.append(("UpdateSuccessful", "OK", f"{target} has image {version}.", ""))
        if flash.state == "done" and flash.needs:
            waits = _WAITS[flash.needs]
            said.append(("AwaitToActivate", "OK", f"Image {version} awaits its activation.", waits))
        if flash.state == "failed":
            said.append((flash.failure, "Critical", f"Image {version}: {flash.why}.", ""))
        found += [_message(*row, args=[version, target]) for row in said]
    return found


def _message(
    name: str, severity: str, text: str, resolution: str, *, args: list[str]
) -> dict[str, Any]:
    return {
        "@odata.type": "#Message.v1_2_1.Message",
        "MessageId": f"Update.1.0.{name}",
        "Message": text,
        "MessageArgs": args,
        "MessageSeverity": severity,
        "Severity": severity,
        "Resolution": resolution or "None.",
    }
