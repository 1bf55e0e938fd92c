"""Redfish: tasks that only look done, inventories, errors, and answers without a body."""

import json

import pytest

from sickbay.domain.node import Category
from sickbay.domain.reading import Verdict
from sickbay.readers import redfish


def read(document, *, exit_code=None):
    text = document if isinstance(document, str) else json.dumps(document)
    return redfish.read(text, exit_code=exit_code)


def reasons(reading):
    return {f.reason for f in reading.findings}


def task(state="Completed", status="OK", messages=(), **more):
    body = {"@odata.id": "/redfish/v1/TaskService/Tasks/7", "TaskState": state}
    return body | ({"TaskStatus": status} if status else {}) | {"Messages": list(messages)} | more


def message(name, severity="OK"):
    return {"MessageId": name, "Message": name, "Severity": severity}


@pytest.mark.parametrize(
    "state",
    ["New", "Starting", "Running", "Suspended", "Pending", "Stopping", "Service", "", "Wibbling"],
)
def test_a_state_that_is_no_end_is_still_running(state):
    reading = read(task(state, PercentComplete=100))
    assert (reading.verdict, reasons(reading)) == (Verdict.INCONCLUSIVE, {"task_running"})


@pytest.mark.parametrize(
    "document",
    [
        task("Exception", "Critical"),
        task("Failed", None),
        task("Completed", "Critical"),
        task("Completed", "OK", [message("Update.1.0.ApplyFailed", "Critical")]),
        {"JobState": "CompletedWithErrors", "PercentComplete": 100},
    ],
)
def test_an_end_that_is_no_success_has_failed(document):
    reading = read(document)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.SOFTWARE)
    assert reasons(reading) == {"firmware_update_failed"}


def test_a_task_that_was_stopped_did_nothing_that_is_known():
    assert reasons(read(task("Cancelled"))) == {"task_stopped"}
    assert read(task("Killed")).verdict is Verdict.INCONCLUSIVE


def test_what_waits_for_its_activation_is_not_active():
    reading = read(task(messages=[message("Update.1.0.AwaitToActivate")]))
    assert (reading.verdict, reasons(reading)) == (Verdict.INCONCLUSIVE, {"firmware_staged"})


def test_a_warning_among_the_messages_is_kept_and_does_not_fail():
    reading = read(task(messages=[message("X.1.0.Odd", "Warning")]))
    assert (reading.verdict, reasons(reading)) == (Verdict.PASS, {"task_warning"})
    assert "must be read back" in reading.why
    assert read(task(status="Warning")).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("messages", [None, {"MessageId": "a"}, [None, 7], "text"])
def test_messages_come_in_every_shape(messages):
    assert read(task() | {"Messages": messages}).verdict is Verdict.PASS


def test_an_accepted_update_names_the_task_to_poll():
    created = {"MessageId": "Task.1.0.New", "MessageArgs": ["/redfish/v1/TaskService/Tasks/9"]}
    text = json.dumps({"@odata.type": "#UpdateService", "Messages": [created]})
    assert reasons(read(text)) == {"task_running"}
    assert redfish.task_uri(text) == "/redfish/v1/TaskService/Tasks/9"
    head = "HTTP/1.1 202 Accepted\r\nLocation: /redfish/v1/TaskService/TaskMonitors/4\r\n\r\n"
    assert reasons(read(head)) == {"task_running"}
    assert redfish.task_uri(head) == "/redfish/v1/TaskService/TaskMonitors/4"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("HTTP/1.1 404 Not Found\n\n", "task_gone"),
        ("HTTP/2 401\n\n", "bmc_access_denied"),
        ("HTTP/1.1 503 Service Unavailable\n\n", "bmc_error"),
        (
            json.dumps({"error": {"code": "Base.1.8.ResourceMissingAtURI", "message": "x"}}),
            "task_gone",
        ),
        (json.dumps({"error": {"code": "Base.1.8.InsufficientPrivilege"}}), "bmc_access_denied"),
        (json.dumps({"error": {"code": "Base.1.8.GeneralError", "message": "x"}}), "bmc_error"),
        ('{"TaskState": "Compl', "truncated"),
        ("{ no json }", "invalid_json"),
        ("curl: (28) timed out", "did_not_run"),
        ('{"Name": "nothing of ours"}', "incomplete"),
    ],
)
def test_an_answer_that_is_none_is_no_verdict(answer, reason):
    reading = read(answer)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reason in reasons(reading)


def component(name, version="1.2", health="OK", state="Enabled"):
    return {"Id": name, "Version": version, "Status": {"Health": health, "State": state}}


def test_an_inventory_gives_versions_and_faults():
    inventory = {"Members": [component("BMC_0", "24.1"), component("CPLD_1", health="Critical")]}
    reading = read(inventory)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.HOST)
    assert [(f.part, f.reason) for f in reading.findings] == [("CPLD_1", "component_critical")]
    assert redfish.versions(json.dumps(inventory)) == {"BMC_0": "24.1", "CPLD_1": "1.2"}


def test_an_inventory_of_addresses_only_says_nothing():
    links = {"Members": [{"@odata.id": "/redfish/v1/UpdateService/FirmwareInventory/BMC_0"}]}
    assert reasons(read(links)) == {"incomplete"}
    assert reasons(read(component("GPU_1", state="Updating"))) == {"task_running"}
    assert reasons(read(component("GPU_1", health="Warning"))) == {"component_warning"}
    assert read(component("GPU_1", health="Maybe")).verdict is Verdict.INCONCLUSIVE
    assert read(component("GPU_1")).verdict is Verdict.PASS


def test_c53_tasks_of_firmware_updates():
    a = read(task("Completed", "Critical", [{"MessageId": "V.1.JCP052"}], PercentComplete=100))
    assert (a.verdict, reasons(a)) == (Verdict.FAIL, {"firmware_update_failed"})
    b = read({"PercentComplete": 100, "TaskState": "Running", "TaskStatus": "OK"})
    assert (b.verdict, reasons(b)) == (Verdict.INCONCLUSIVE, {"task_running"})
    c = read("HTTP/1.1 404\n")
    assert (c.verdict, reasons(c)) == (Verdict.INCONCLUSIVE, {"task_gone"})
    assert all(f.treatment is None for reading in (a, b, c) for f in reading.findings)
