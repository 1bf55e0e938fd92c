"""Every reader of a benchmark, link, disk or board on texts it never saw."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.domain.reading import Verdict
from sickbay.readers import registry
from sickbay.readers.expectation import Expectation

TOOLS = [
    "nccl-tests",
    "nvbandwidth",
    "fio",
    "infiniband",
    "ibstat",
    "perftest",
    "ipmi-sel",
    "redfish",
    "firmware",
    "gpu-burn",
    "superbench",
]
CLASS = Expectation(gpu_count=8, ib_ports=2, ib_rate_gbps=400, floors={"nccl_busbw_gbps": 1e3})
PIECES = [
    "# Rank 0 Group 0 Pid 1 on n1 device 0 [0000:1b:00] X\n",
    "# Out of bounds values : 0 OK\n",
    "# Avg bus bandwidth : 7\n",
    "  8 2 float sum -1 1 2 3 0 1 2 3 0\n",
    "Running a_ce.\n",
    "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n",
    "  0  1\n",
    "0 N/A 1.0\n",
    "1 nan\n",
    '{"jobs": [{"error": 5}, 7, null]}\n',
    '{"jobs": 3}',
    "fio: io_u error on file /dev/x: ",
    "Input/output error: read\n",
    "/sys/class/infiniband/m/ports/1/state: 4: ACTIVE\n",
    "/sys/class/infiniband/m/ports/1/phys_state: ",
    "2: Polling\n",
    "CA 'm'\n",
    "\tPort 1:\n",
    "\t\tState: Down\n",
    "\t\tPhysical state: Polling\n",
    " #bytes #iterations BW average[Gb/sec]\n",
    " 65536 5000 1.0\n",
    "-" * 40 + "\n",
    "1 | 01/01/2026 | 1:1:1 | Fan | Upper Critical | Asserted\n",
    '{"TaskState": "Completed", "TaskStatus": [], "Messages": [[]]}\n',
    '{"error": {"code": 5}}\n',
    '{"Members": [1, {"Status": "x", "Version": 3}]}\n',
    '{"Output": [{"Firmware Devices": [1]}]}\n',
    '{"Output": 5, "Error Code": {}, "Error": 1}\n',
    "Device #1:\n",
    "  Status: \n",
    "\r",
    "\x00",
    "50.0%  proc'd: 1 (2 Gflop/s)   errors: 0 - x   temps: 1 C\n",
    "Tested 1 GPUs:\n",
    "\tGPU 0: OK\n",
    "gpu0_to_cpu_by_sm 5.6\n",
    '{"result": {"return_code": [0, "x"], "a": [1, "b"]}}\n',
    "é",
    "{",
    "}",
]


@pytest.mark.parametrize("tool", TOOLS)
@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14), status=st.sampled_from([None, 0, 1]))
def test_no_text_breaks_a_reader_or_makes_it_say_a_word_nobody_wrote(
    tool, pieces, status, documented_reason
):
    text = "".join(pieces)
    reading = registry.read(tool, text, exit_code=status, expect=CLASS)
    assert all(re.fullmatch(r"[a-z0-9_]+", f.reason) for f in reading.findings)
    assert [f.reason for f in reading.findings if not documented_reason(f.reason)] == []
    assert all(math.isfinite(m.value) for m in reading.measurements)
    assert reading.category or reading.verdict is not Verdict.FAIL
    if status == 1:
        assert reading.verdict is not Verdict.PASS


@pytest.mark.parametrize("tool", TOOLS)
def test_silence_is_never_a_pass(tool):
    for text in ("\n", "hello\n", "bash: tool: command not found\n"):
        assert registry.read(tool, text, exit_code=0).verdict is Verdict.INCONCLUSIVE
