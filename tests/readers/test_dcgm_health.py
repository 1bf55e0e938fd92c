import json

import pytest

from sickbay.domain.node import Category, Treatment
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import dcgm_health


def document(overall, gpus=None):
    body = {"Overall Health": {"value": overall}}
    for gpu, (system, level, text) in (gpus or {}).items():
        incident = {"value": level, "overflow": [text]}
        entity = {"value": level, "children": {"Errors": {"children": {system: incident}}}}
        body.setdefault("GPU", {"children": {}})["children"][gpu] = entity
    return json.dumps({"body": body, "header": ["Health Monitor Report"]}, indent="\t")


def read(text, *, exit_code=0):
    return dcgm_health.read(text, exit_code=exit_code)


def test_healthy_passes_and_names_no_gpu():
    reading = read(document("Healthy"))
    assert reading.verdict is Verdict.PASS
    assert not reading.findings


@pytest.mark.parametrize(
    ("system", "text", "reason", "category", "treatment"),
    [
        ("Memory system", "GPU 3 had a row remapping failure.", "row_remap_failure",
         Category.MEMORY, Treatment.SWAP),
        ("Memory system", "A DBE has been detected: 1", "ecc_uncorrectable", Category.MEMORY,
         Treatment.RESET),
        ("Driver system", "GPU 3 has fallen off the bus.", "gpu_lost", Category.COMPUTE,
         Treatment.REBOOT),
        ("NVLink system", "GPU 3's NvLink link 2 is currently down.", "nvlink_down",
         Category.INTERCONNECT, Treatment.RESET),
        ("Power system", "something new", "health_incident", Category.PERFORMANCE, None),
    ],
)  # fmt: skip
def test_a_failure_names_part_category_and_treatment(system, text, reason, category, treatment):
    reading = read(document("Failure", {"3": (system, "Failure", text)}))
    assert reading.verdict is Verdict.FAIL
    (found,) = reading.findings
    assert (found.part, found.reason, found.category, found.treatment) == (
        "3",
        reason,
        category,
        treatment,
    )


def test_a_warning_nobody_knows_is_no_verdict():
    reading = read(document("Warning", {"0": ("Power system", "Warning", "something new")}))
    assert reading.verdict is Verdict.INCONCLUSIVE


def test_an_error_of_a_job_does_not_blame_the_gpu():
    event = ("Driver system", "Warning", "XID 31 was detected on GPU 0.")
    reading = read(document("Warning", {"0": event}))
    assert reading.verdict is Verdict.PASS
    assert reading.findings[0].kind is FindingKind.APPLICATION


@pytest.mark.parametrize(
    ("text", "exit_code", "reason"),
    [
        ("Error: Health watches not enabled. Please enable watches.", 0, "watches_not_enabled"),
        ("Error: unable to establish a connection to the specified host: localhost", 235,
         "hostengine_unreachable"),
        (document("Healthy")[:60], 0, "truncated"),
        (document("Healthy") * 2, 0, "two_documents"),
        ("", 0, "no_document"),
        (document("Failure"), 0, "incident_not_named"),
        (document("Healthy"), 235, "hostengine_unreachable"),
    ],
)  # fmt: skip
def test_everything_else_says_nothing(text, exit_code, reason):
    reading = read(text, exit_code=exit_code)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reason in {f.reason for f in reading.findings}


def test_watches_that_are_off_are_recognised():
    assert dcgm_health.watches_are_off("Error: Health watches not enabled. Please enable watches.")
    assert not dcgm_health.watches_are_off(document("Healthy"))
