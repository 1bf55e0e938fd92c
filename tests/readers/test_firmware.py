"""Firmware tools: accepted, running, staged, failed, not applicable, out of date."""

import json

import pytest

from sickbay.domain.node import Treatment
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import firmware


def answer(*output, code=0, errors=()):
    return json.dumps({"Error": list(errors), "Error Code": code, "Output": list(output)}, indent=2)


def read(text, *, exit_code=None):
    return firmware.read(text, exit_code=exit_code)


def reasons(reading):
    return {(f.part, f.reason) for f in reading.findings}


def device(name, now, new, current):
    return {"AP Name": name, "Sys Version": now, "Pkg Version": new, "Up-To-Date": current}


def adapter(status, *, number=1, pci="0000:3b:00.0"):
    return (
        f"Device #{number}:\n----------\n\n  Device Type:      ConnectX7\n"
        f"  PCI Device Name:  {pci}\n  Base GUID:        N/A\n"
        f"     FW             28.39.1002     28.40.1000\n\n  Status:           {status}\n"
    )


def test_an_error_code_of_nought_updates_nothing():
    reading = read(
        answer({"Messages": [{"MessageId": "Task.1.0.New", "MessageArgs": ["/redfish/v1/T/2"]}]})
    )
    assert (reading.verdict, reasons(reading)) == (Verdict.INCONCLUSIVE, {(None, "task_running")})
    assert "/redfish/v1/T/2" in reading.findings[0].detail


@pytest.mark.parametrize(
    ("task", "verdict"),
    [
        ({"TaskState": "Completed", "TaskStatus": "OK"}, Verdict.PASS),
        (
            {"TaskState": "Running", "TaskStatus": "OK", "PercentComplete": 100},
            Verdict.INCONCLUSIVE,
        ),
        ({"TaskState": "Exception", "TaskStatus": "Critical"}, Verdict.FAIL),
    ],
)
def test_a_task_has_the_meaning_of_its_state(task, verdict):
    assert read(answer(task)).verdict is verdict


def test_an_error_of_the_tool_is_no_fault_of_the_part():
    reading = read(answer(code=1, errors=["Invalid credentials"]), exit_code=1)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert (None, "firmware_tool_error") in reasons(reading)
    assert read(answer()[:30]).verdict is Verdict.INCONCLUSIVE


def test_only_a_part_the_package_holds_can_be_behind():
    rows = [
        device("HGX_FW_BMC_0", "24.1", "24.2", "No"),
        device("PSU_0", "1.0", "1.0", "No"),
        device("HGX_FW_EROT_0", "7", "N/A", "No"),
        device("HGX_FW_FPGA_0", "3", "3", "Yes"),
    ]
    reading = read(answer({"Firmware Devices": rows}))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert [(f.part, f.reason, f.kind, f.treatment) for f in reading.findings] == [
        ("HGX_FW_BMC_0", "firmware_out_of_date", FindingKind.CONFIGURATION, Treatment.REFLASH)
    ]
    assert read(answer({"Firmware Devices": rows[1:]})).verdict is Verdict.PASS
    assert reasons(read(answer({"Firmware Devices": rows[2:3]}))) == {
        (None, "firmware_not_applicable")
    }


def test_a_document_of_one_target_stands_by_itself():
    target = {"Connection Status": "Successful", "System Model": "DGXH100"}
    rows = [device("HGX_FW_BMC_0", "24.2", "24.2", "Yes")]
    assert read(json.dumps(target | {"Firmware Devices": rows})).verdict is Verdict.PASS
    failed = target | {"Connection Status": "Failed", "Firmware Devices": rows}
    assert reasons(read(json.dumps(failed))) == {(None, "bmc_unreachable")}


def test_a_task_that_was_just_started_is_running():
    started = json.dumps({"Id": "HGX_9", "TaskState": "Running", "TaskStatus": "OK"})
    reading = read(started + "\nFW update started, Task Id: HGX_9\n")
    assert (reading.verdict, reasons(reading)) == (Verdict.INCONCLUSIVE, {(None, "task_running")})


def test_the_table_for_people_says_the_same():
    head = (
        "AP Name          Sys Version      Pkg Version      Up-To-Date\n-------   ---   ---  ---\n"
    )
    rows = "HGX_FW_BMC_0     24.1             24.2             No\n"
    rows += "HGX_FPGA         3.0              N/A              No\n"
    end = "-" * 100 + "\nError Code: 0\n"
    assert reasons(read(head + rows + end)) == {("HGX_FW_BMC_0", "firmware_out_of_date")}
    assert read(
        head + rows.replace("24.1", "24.2").replace("24.2             No", "24.2   Yes")
    ).verdict is (Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("word", "reason", "verdict"),
    [
        ("action_success", "firmware_staged", Verdict.INCONCLUSIVE),
        ("action_running", "task_running", Verdict.INCONCLUSIVE),
        ("", "task_running", Verdict.INCONCLUSIVE),
        ("action_error", "firmware_update_failed", Verdict.FAIL),
    ],
)
def test_a_job_of_a_switch_tray_is_no_json(word, reason, verdict):
    body = f"{{'detail': 'x', 'state': '{word}', 'issue': []}}"
    text = f"Status for Job Id: 3\n{body}\n\nError Code: 0\n"
    reading = read(text)
    assert (reading.verdict, reasons(reading)) == (verdict, {(None, reason)})


def test_an_update_that_is_watched_ends_staged():
    text = "FW update started, Task Id: HGX_0\nTaskState: Running\nTaskStatus: OK\n"
    assert reasons(read(text)) == {(None, "task_running")}
    text += (
        "TaskState: Completed\nPercentComplete: 100\nTaskStatus: OK\nFirmware update successful!\n"
    )
    assert reasons(read(text)) == {(None, "firmware_staged")}
    assert read(
        text.replace("TaskStatus: OK\nFirmware", "TaskStatus: Critical\nFirmware")
    ).verdict is (Verdict.FAIL)


@pytest.mark.parametrize(
    ("status", "reason", "verdict"),
    [
        ("Up to date", None, Verdict.PASS),
        ("Update required", "firmware_out_of_date", Verdict.INCONCLUSIVE),
        ("No matching image found", "firmware_not_applicable", Verdict.INCONCLUSIVE),
        ("Failed to open device", "firmware_tool_error", Verdict.INCONCLUSIVE),
        ("Bewildered", "firmware_status_unknown", Verdict.INCONCLUSIVE),
    ],
)
def test_an_adapter_has_the_meaning_of_its_status(status, reason, verdict):
    reading = read("Querying Mellanox devices firmware ...\n\n" + adapter(status))
    assert reading.verdict is verdict
    assert reasons(reading) == ({("0000:3b:00", reason)} if reason else set())


def test_one_adapter_that_is_current_does_not_speak_for_the_other():
    text = adapter("Up to date") + adapter("Update required", number=2, pci="pci0:6:0:0")
    assert reasons(read(text)) == {("0000:06:00", "firmware_out_of_date")}


UPDATE = (
    "Performing FW update ...\nDevice #1: Updating FW ...\nWriting Boot image component -   OK\n"
)


def test_an_update_of_an_adapter_is_staged_until_the_restart():
    shown = adapter("Update required") + "---------\n" + UPDATE
    assert (None, "task_running") in reasons(read(shown))
    done = read(shown + "Done\nRestart needed for updates to take effect.\n")
    assert done.verdict is Verdict.INCONCLUSIVE
    assert {reason for _, reason in reasons(done)} == {"firmware_staged"}
    failed = read(
        shown + "Fail : The Digest in the signature is wrong\n-E- Failed to update Device #1\n"
    )
    assert failed.verdict is Verdict.FAIL
