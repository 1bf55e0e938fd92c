import json

import pytest

from sickbay.adapters.tool_checks import ToolCheckRunner
from sickbay.domain.proof import Check, CheckName
from sickbay.domain.reading import FindingKind, Verdict

DIAG = Check(CheckName.DCGM_DIAG, tests=("software", "memory"))
HEALTHY = json.dumps({"body": {"Overall Health": {"value": "Healthy"}}})


def diag(*, root="DCGM Diagnostic", memory="Pass", warnings=()):
    ids = [{"entity_group": "GPU", "entity_id": n} for n in (0, 1)]
    software = [i | {"status": "Pass"} for i in ids]
    rows = [ids[0] | {"status": "Pass"}, ids[1] | {"status": memory, "warnings": list(warnings)}]
    return json.dumps(
        {
            root: {
                "test_categories": [
                    {
                        "category": "Deployment",
                        "tests": [{"name": "software", "results": software}],
                    },
                    {"category": "Hardware", "tests": [{"name": "memory", "results": rows}]},
                ]
            },
            "entity_groups": [
                {"entity_group": "GPU", "entities": [{"entity_id": 1, "serial_num": "166"}]}
            ],
        }
    )


def dcgmi(answer, *, version="4.5.1", code=0):
    return f"""echo "$@" >>"$ROOM/calls"
case "$1" in
  --version) echo "dcgmi  version: {version}";;
  *) cat <<'END'
{answer}
END
  exit {code};;
esac"""


async def run(env, check, node, *, deadline_s=20.0):
    return await ToolCheckRunner(env).run(check, node=node, deadline_s=deadline_s)


async def test_a_passing_diagnostic_passes_and_keeps_the_raw_text(tools, node):
    output = await run(tools(dcgmi=dcgmi(diag())), DIAG, node)
    assert output.reading.verdict is Verdict.PASS
    assert json.loads(output.raw) == json.loads(diag())


async def test_a_failing_gpu_is_named_by_its_bus_id(tools, node):
    warning = {"warning": "Found 2 faulty memory elements on GPU 1.", "error_id": 52}
    answer = dcgmi(diag(memory="Fail", warnings=[warning]), code=205)
    output = await run(tools(dcgmi=answer), DIAG, node)
    assert output.reading.verdict is Verdict.FAIL
    assert [f.part for f in output.reading.hardware_findings()] == ["0000:3b:00"]


@pytest.mark.parametrize(
    ("version", "tests", "wanted"),
    [
        ("4.5.1", ("software", "memory"), "diag -r software,memory -j"),
        ("3.3.9", ("software", "memory"), "diag -r 2 -j"),
        ("3.3.9", ("software", "targeted_power"), "diag -r 3 -j"),
        ("3.3.9", ("software",), "diag -r 1 -j"),
    ],
)
async def test_releases_before_4_are_asked_for_a_level(
    tools, node, tmp_path, version, tests, wanted
):
    env = tools(dcgmi=dcgmi(diag(), version=version))
    await run(env, Check(CheckName.DCGM_DIAG, tests=tests), node)
    assert wanted in (tmp_path / "calls").read_text().splitlines()


async def test_a_test_the_release_does_not_have_is_no_pass(tools, node):
    check = Check(CheckName.DCGM_DIAG, tests=("software", "memory", "nvbandwidth"))
    output = await run(tools(dcgmi=dcgmi(diag(), version="3.3.9")), check, node)
    assert output.reading.verdict is Verdict.INCONCLUSIVE


async def test_a_diagnostic_past_its_deadline_is_inconclusive(tools, node):
    env = tools(dcgmi='[ "$1" = --version ] && exit 0; echo "{"; sleep 30')
    output = await run(env, DIAG, node, deadline_s=0.6)
    assert output.reading.verdict is Verdict.INCONCLUSIVE
    assert [f.reason for f in output.reading.findings] == ["timeout"]
    assert output.raw == b"{\n"


@pytest.mark.parametrize(
    "check", [DIAG, *(Check(n) for n in CheckName if n is not CheckName.DCGM_DIAG)]
)
async def test_a_tool_that_is_not_installed_is_inconclusive(tools, node, check):
    env = tools() | {"PATH": "/nowhere"}
    output = await ToolCheckRunner(env).run(check, node=node, deadline_s=20.0, neighbour=node)
    assert output.reading.verdict is Verdict.INCONCLUSIVE
    assert [f.reason for f in output.reading.findings] == ["tool_not_installed"]


async def test_watches_that_are_off_are_switched_on_first(tools, node, tmp_path):
    env = tools(
        dcgmi=f"""echo "$@" >>"$ROOM/calls"
if [ "$2" = -s ]; then touch "$ROOM/on"; exit 0; fi
if [ -e "$ROOM/on" ]; then echo '{HEALTHY}'; else echo "Error: Health watches not enabled."; fi"""
    )
    output = await run(env, Check(CheckName.DCGM_HEALTH), node)
    assert output.reading.verdict is Verdict.PASS
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["health -c -j", "health -s a", "health -c -j"]


async def test_an_event_the_watch_still_holds_is_no_state(tools, node):
    incident = {"value": "Failure", "overflow": ["XID 48 was detected on GPU 0."]}
    entity = {"value": "Failure", "children": {"Errors": {"children": {"Memory": incident}}}}
    body = {"Overall Health": {"value": "Failure"}, "GPU": {"children": {"0": entity}}}
    env = tools(dcgmi=dcgmi(json.dumps({"body": body})))
    output = await run(env, Check(CheckName.DCGM_HEALTH), node)
    assert output.reading.verdict is Verdict.PASS
    assert [(f.reason, f.kind) for f in output.reading.findings] == [("xid_48", FindingKind.TOOL)]


async def test_a_gpu_on_record_that_the_driver_does_not_show_is_lost(tools, node, state_xml):
    text = state_xml({"00000000:1A:00.0": "GPU-a"})
    output = await run(tools(nvidia_smi=f"echo '{text}'"), Check(CheckName.GPU_STATE), node)
    assert output.reading.verdict is Verdict.FAIL
    assert [f.part for f in output.reading.hardware_findings()] == ["0000:3b:00"]


async def test_links_of_fewer_gpus_than_on_record_are_no_pass(tools, node):
    script = "echo 'GPU 0: NVIDIA H200 (UUID: GPU-a)'; echo '\t Link 0: 26.562 GB/s'"
    output = await run(tools(nvidia_smi=script), Check(CheckName.NVLINK_STATE), node)
    assert output.reading.verdict is Verdict.INCONCLUSIVE
