"""A quiet watch after a reboot is no proof: what counts is what was tested, twice if owed."""

import json
from dataclasses import replace

import pytest

from sickbay.domain.node import Category, Treatment
from sickbay.domain.proof import Check, CheckName, CheckResult, suite_for, suite_verdict
from sickbay.domain.reading import Verdict
from sickbay.domain.repair import TABLE, Choice, Ending, Stage, StageOutcome
from sickbay.readers import dcgm_diag, dcgm_health, nvidia_smi

HEALTHY = json.dumps(
    {"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}
)
LISTED = "GPU 0: NVIDIA H100 (UUID: GPU-00000000-0000)\n"


@pytest.mark.parametrize("category", list(Category))
def test_c04_it_rebooted_and_reports_healthy_is_not_repaired(category):
    suite = suite_for(category)
    readings = {
        CheckName.GPU_STATE: nvidia_smi.read(LISTED, exit_code=0),
        CheckName.NVLINK_STATE: nvidia_smi.read(LISTED, exit_code=0),
        CheckName.DCGM_HEALTH: dcgm_health.read(HEALTHY, exit_code=0),
    }
    assert readings[CheckName.DCGM_HEALTH].verdict is Verdict.PASS
    for answer, code in (("", 0), ("", None), (HEALTHY, 0)):
        readings[CheckName.DCGM_DIAG] = dcgm_diag.read(answer, exit_code=code)
        results = [_result(check, readings) for check in suite.checks]
        assert suite_verdict(results) is Verdict.INCONCLUSIVE


def test_c04_a_reboot_leads_to_the_proof_and_an_unclear_one_nowhere():
    assert TABLE[Stage.REBOOT, StageOutcome.DONE] is Stage.PROVE
    assert TABLE[Stage.PROVE, StageOutcome.INCONCLUSIVE] is Choice.RETRY
    returned = [key for key, there in TABLE.items() if there is Ending.RETURNED]
    assert [stage for stage, _ in returned] == [Stage.RETURN]


def test_c04_the_release_belongs_to_what_the_reader_saw():
    lost = nvidia_smi.read(
        "Unable to determine the device handle for GPU 0000:3D:00.0: Unknown Error\n", exit_code=15
    )
    (finding,) = lost.hardware_findings()
    assert finding.treatment is Treatment.REBOOT
    # The watch says healthy about the same node: the worse one counts.
    check = Check(CheckName.GPU_STATE)
    quiet = CheckResult(replace(check, name=CheckName.DCGM_HEALTH), Verdict.PASS, why="")
    assert suite_verdict([quiet, CheckResult(check, lost.verdict, why=lost.why)]) is Verdict.FAIL


def _result(check, readings):
    """What else is in the suite passes: even then a diagnosis that did not run is no pass."""
    reading = readings.get(check.name)
    if reading is None:
        return CheckResult(check, Verdict.PASS, why="")
    return CheckResult(check, reading.verdict, why=reading.why, findings=reading.findings)
