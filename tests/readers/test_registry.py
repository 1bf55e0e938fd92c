"""Any text is read by some tool or by nobody: never a crash, never a pass for half a failure."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sickbay.domain.reading import Verdict
from sickbay.errors import UsageError
from sickbay.readers import registry
from sickbay.readers.expectation import NOTHING_EXPECTED, Expectation, parse_class

LOG = (
    "[    3.1] usb 1-1: new high-speed USB device\n"
    "[    9.1] NVRM: Xid (PCI:0000:3d:00): 79, pid=7, name=x, GPU has fallen off the bus.\n"
)
FAILING = {
    "kernel-log": LOG.splitlines(keepends=True)[1],
    "nvidia-smi": "Unable to determine the device handle for GPU 0000:3D:00.0: Unknown Error\n",
    "dcgmi-diag": (
        '{"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [{"name": '
        '"memory", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}, '
        '{"entity_group": "GPU", "entity_id": 1, "status": "Fail", "warnings": [{"warning": "bad", '
        '"error_id": 52, "error_category": 10, "error_severity": 2}]}]}]}]}}\n'
    ),
    "dcgmi-health": (
        '{"body": {"Overall Health": {"value": "Failure"}, "GPU": {"children": {"0": {"value": '
        '"Failure", "children": {"Errors": {"children": {"Memory system": {"value": "Failure"}}}}'
        '}}}}, "header": ["Health Monitor Report"]}\n'
    ),
    "dcgmi-nvlink": (
        "|  NvLink Link Status  |\nGPUs:\n    gpuId 0:\n        U U D U\n"
        "Key: Up=U, Down=D, Disabled=X, Not Supported=_\n"
    ),
    "dcgm-exporter": 'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0",UUID="GPU-1"} 1\n',
}
MINE = sorted(FAILING)
SPICE = (
    "NVRM: ",
    "Xid (PCI:0000:1a:00): 79, ",
    "{",
    '{"DCGM Diagnostic"',
    '"status": "Pass"',
    "| PCIe | Fail |\n",
    "GPU 0: ",
    "GPU 00000000:1A:00.0\n",
    "Pending : Yes\n",
    "<nvidia_smi_log>",
    "</nvidia_smi_log>",
    "0, None\n",
    "U D X _",
    "\x00",
    "\ufffd",
    "9223372036854775794",
    "\r\n",
)
TEXTS = st.lists(st.one_of(st.text(max_size=40), st.sampled_from(SPICE)), max_size=12).map("".join)


@pytest.mark.parametrize("tool", MINE)
def test_a_tool_is_recognised_by_what_it_prints(tool):
    assert registry.recognise(FAILING[tool]) == tool
    reading = registry.read(registry.AUTO, FAILING[tool], exit_code=None)
    assert (reading.tool, reading.verdict) == (tool, Verdict.FAIL)


@pytest.mark.parametrize("tool", MINE)
def test_no_beginning_of_a_failing_output_passes(tool):
    text = FAILING[tool]
    verdicts = {registry.read(tool, text[:n], exit_code=None).verdict for n in range(len(text))}
    assert Verdict.PASS not in verdicts


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("No devices were found\n", "nvidia-smi"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "nvidia-smi"),
        ("0, None\n1, Reset\n", "nvidia-smi"),
        ("Error: Health watches not enabled. Please enable watches.\n", "dcgmi-health"),
        ("Error: unable to establish a connection to the specified host: x\n", "dcgmi-diag"),
        ("Feb  3 11:02:09 gpu-17 systemd[1]: Started something.\n", "kernel-log"),
        ("6,3,812004512,-;usb 1-1: new device\n", "kernel-log"),
    ],
)
def test_an_answer_without_a_document_is_recognised_too(text, tool):
    assert registry.recognise(text) == tool


@pytest.mark.parametrize("text", ["hello\n", "{}\n", "0 0 0\n", "<html></html>\n"])
def test_an_output_nobody_knows_is_other_and_no_verdict(text):
    reading = registry.read(registry.AUTO, text, exit_code=0)
    assert (reading.tool, reading.verdict) == (registry.OTHER, Verdict.INCONCLUSIVE)
    assert [f.reason for f in reading.findings] == ["tool_not_recognised"]


def test_a_log_cut_in_the_middle_of_a_line_does_not_pass():
    clean = "[    3.1] usb 1-1: new high-speed USB device\n"
    assert registry.read("kernel-log", clean, exit_code=None).verdict is Verdict.PASS
    cut = registry.read("kernel-log", clean[:-4], exit_code=None)
    assert (cut.verdict, cut.findings[-1].reason) == (Verdict.INCONCLUSIVE, "truncated")


def test_a_log_read_line_by_line_means_the_same():
    whole = registry.read("kernel-log", LOG, exit_code=None)
    lines = LOG.splitlines(keepends=True)
    assert registry.streams("kernel-log")
    assert registry.read_lines("kernel-log", lines, exit_code=None) == whole
    cut = registry.read_lines("kernel-log", [lines[0][:-3]], exit_code=None)
    assert cut.verdict is Verdict.INCONCLUSIVE


@given(text=TEXTS, code=st.sampled_from([None, 0, 1, 15, 205, 226, 255, -9, 10**9]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_text_is_read_by_every_tool(text, code, documented_reason):
    expect = Expectation(gpu_count=8, nvlink_links_per_gpu=18)
    for tool in (registry.AUTO, *MINE):
        for wanted in (NOTHING_EXPECTED, expect):
            reading = registry.read(tool, text, exit_code=code, expect=wanted)
            assert reading.why
            assert all(documented_reason(f.reason) for f in reading.findings)
            assert reading.verdict is not Verdict.FAIL or reading.hardware_findings()
            assert reading.verdict is not Verdict.FAIL or reading.category


@given(tool=st.sampled_from(MINE), text=TEXTS, at=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_rubbish_around_a_failure_makes_no_pass_of_its_beginnings(tool, text, at):
    # What stands before a failure belongs to it; cut within it, nothing passes.
    failing = FAILING[tool]
    cut = failing[: int(len(failing) * at)]
    if cut and not cut.endswith("\n"):
        whole = f"{text}\n{cut}" if tool != "kernel-log" else cut
        assert registry.read(tool, whole, exit_code=None).verdict is not Verdict.PASS


@pytest.mark.parametrize("tool", MINE)
def test_time_grows_with_the_size_and_not_with_its_square(tool):
    def seconds(unit, size):
        text = unit * (size // len(unit))
        start = time.process_time()
        registry.read(tool, text, exit_code=None)
        return time.process_time() - start

    slow = {}
    for unit in (*SPICE, "{[", "GPU ", '{"a":', "{}", "| x | y |\n", "NVML", ", ", "Link 0: \n"):
        small, large = max(seconds(unit, 6_000), 0.004), seconds(unit, 60_000)
        # Ten times the size in a hundred times the time would be the square.
        if large > 40 * small:
            slow[unit] = (small, large)
    assert slow == {}


# --- class files -------------------------------------------------------------------------------


def test_a_class_file_says_only_what_it_says():
    text = (
        "gpu_count = 8\nnvlink_links_per_gpu = 18\nib_ports = 8\nib_rate_gbps = 400\n"
        "[floors]\nnccl_busbw_gbps = 460.5\n"
    )
    found = parse_class(text, name="h100.toml")
    assert (found.gpu_count, found.nvlink_links_per_gpu, found.ib_ports) == (8, 18, 8)
    assert (found.ib_rate_gbps, dict(found.floors)) == (400.0, {"nccl_busbw_gbps": 460.5})
    assert parse_class("", name="empty.toml") == NOTHING_EXPECTED


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("gpu_count = ", "expect"),
        ("gpus = 8", "gpus"),
        ('gpu_count = "8"', "gpu_count"),
        ("gpu_count = true", "gpu_count"),
        ("gpu_count = -1", "gpu_count"),
        ("ib_rate_gbps = nan", "ib_rate_gbps"),
        ("ib_rate_gbps = 0", "ib_rate_gbps"),
        ("floors = 3", "floors"),
        ('[floors]\nnccl_busbw_gbps = "x"', "floors.nccl_busbw_gbps"),
        ("[floors]\n'Bad Name' = 3", "Bad Name"),
    ],
)
def test_a_class_file_that_is_wrong_names_the_file_and_the_field(text, field):
    with pytest.raises(UsageError) as raised:
        parse_class(text, name="h100.toml")
    assert raised.value.field == field
    assert "h100.toml" in raised.value.message
    assert raised.value.remedy
