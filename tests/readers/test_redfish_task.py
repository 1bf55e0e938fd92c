"""A task's own document decides: completed is not success, and 100 % is not the end."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.contracts.firmware import TaskState
from sickbay.readers.redfish_task import component_versions, flash_task, task_link


def message(event, *, severity="OK", text="", resolution="None"):
    return {
        "MessageId": f"Update.1.0.{event}",
        "Severity": severity,
        "Message": text or event,
        "Resolution": resolution,
    }


def test_c53_completed_but_critical_failed_and_says_why():
    body = json.loads(
        '{"PercentComplete":100,"TaskState":"Completed","TaskStatus":"Critical","Messages":'
        '[{"MessageId":"IDRAC.2.8.JCP052","Message":"It made no progress."}]}'
    )
    task = flash_task(body)
    assert (task.state, task.percent) == (TaskState.FAILED, 100)
    assert "It made no progress." in task.detail


def test_c53_100_percent_while_running_is_running():
    task = flash_task({"PercentComplete": 100, "TaskState": "Running", "TaskStatus": "OK"})
    assert (task.state, task.percent) == (TaskState.RUNNING, 100)


@pytest.mark.parametrize("event", ["ApplyFailed", "VerificationFailed", "TransferFailed"])
def test_a_message_that_the_image_did_not_arrive_is_a_failure_whatever_the_status(event):
    body = {
        "TaskState": "Completed",
        "TaskStatus": "OK",
        "Messages": [message("UpdateSuccessful"), message(event, severity="Warning", text="no")],
    }
    task = flash_task(body)
    assert (task.state, task.detail.endswith("no")) == (TaskState.FAILED, True)


def test_completed_with_a_warning_about_something_else_succeeded():
    body = {
        "TaskState": "Completed",
        "TaskStatus": "OK",
        "Messages": [message("MessageNil", severity="Warning"), message("UpdateSuccessful")],
    }
    assert flash_task(body).state is TaskState.SUCCEEDED


def test_what_awaits_activation_says_what_it_waits_for():
    waits = message("AwaitToActivate", resolution="DC power cycle or AC power cycle")
    task = flash_task({"TaskState": "Completed", "TaskStatus": "OK", "Messages": [waits]})
    assert task.state is TaskState.SUCCEEDED
    assert "DC power cycle" in task.detail


@pytest.mark.parametrize("state", ["Exception", "Killed", "Cancelled", "Failed"])
def test_states_that_end_badly(state):
    assert flash_task({"TaskState": state}).state is TaskState.FAILED


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "TaskState": st.sampled_from(["", "New", "Pending", "Interrupted", "Odd", None, 3]),
            "TaskStatus": st.sampled_from(["OK", "Critical", None]),
            "PercentComplete": st.sampled_from([None, -1, 50, 100, 101, 2.5, "100", "", True]),
            "Messages": st.sampled_from([None, "text", [], [3], [{}], [{"MessageArgs": 3}]]),
        },
    )
)
def test_a_state_no_standard_names_is_still_running_and_no_document_breaks_the_reader(body):
    task = flash_task(body)
    assert task.state is TaskState.RUNNING
    assert task.percent is None or 0 <= task.percent <= 100


def test_the_task_itself_is_better_than_its_monitor():
    location = {"Location": "/redfish/v1/TaskService/TaskMonitors/7"}
    body = {"@odata.type": "#Task.v1_4_2.Task", "@odata.id": "/redfish/v1/TaskService/Tasks/7"}
    assert task_link(location, body) == "/redfish/v1/TaskService/Tasks/7"
    assert task_link(location, {"Id": "x"}) == location["Location"]
    started = {"Messages": [{"MessageArgs": ["x", "/redfish/v1/TaskService/Tasks/9"]}]}
    assert task_link({}, started) == "/redfish/v1/TaskService/Tasks/9"
    assert task_link({}, {}) == ""
    for odd in (3, None, "text", [{"x": 1}]):
        assert task_link({}, {"Messages": [{"MessageArgs": odd}, odd]}) == ""


def test_a_component_belongs_to_the_system_it_relates_to():
    def member(name, version, *related):
        items = [{"@odata.id": path} for path in related]
        return {"Id": name, "Version": version, "RelatedItem": items}

    members = [
        member("GPU_0", "1", "/redfish/v1/Systems/n1"),
        member("GPU_0", "2", "/redfish/v1/Systems/n11"),
        member("NIC", None, "/redfish/v1/Systems/n1/NetworkInterfaces/1"),
        member("PSU", "3"),
        {"Version": "nameless"},
    ]
    mine = component_versions(members, system="/redfish/v1/Systems/n1", alone=False)
    assert mine == {"GPU_0": "1", "NIC": ""}
    assert "PSU" in component_versions(members, system="/redfish/v1/Systems/n1", alone=True)
