"""SuperBench: names and values, documents with return codes, and floors by name only."""

import json

from sickbay.domain.reading import Verdict
from sickbay.readers import superbench

LINES = "cpu_to_gpu0_by_dma_under_numa0 26.2\ngpu0_to_cpu_by_sm_under_numa0 5.6\n"


def read(text, *, exit_code=None, **asked):
    return superbench.read(text, exit_code=exit_code, **asked)


def reasons(reading):
    return {f.reason for f in reading.findings}


def test_no_value_is_judged_by_its_name():
    reading = read(LINES)
    assert reading.verdict is Verdict.PASS
    assert [(m.name, m.part, m.value, m.unit) for m in reading.measurements] == [
        ("cpu_to_gpu0_by_dma_under_numa0", None, 26.2, "GB/s"),
        ("gpu0_to_cpu_by_sm_under_numa0", None, 5.6, "GB/s"),
    ]


def test_a_floor_for_the_very_name_judges():
    floors = {"cpu_to_gpu0_by_dma_under_numa0": 30.0, "cpu_to_gpu0": 99.0}
    assert reasons(read(LINES, floors=floors)) == {"bandwidth_below_floor"}


def test_a_return_code_is_a_benchmark_that_did_not_run():
    document = {
        "name": "kernel-launch",
        "result": {"return_code": [3], "kernel-launch/event": [0.1]},
    }
    assert reasons(read(json.dumps(document))) == {"did_not_run"}
    document["result"]["return_code"] = [0]
    good = read(json.dumps(document))
    assert good.verdict is Verdict.PASS
    assert [(m.name, m.value) for m in good.measurements] == [("kernel-launch/event", 0.1)]
    flat = {"node": "n1", "nccl-bw/return_code": 0, "nccl-bw/allreduce_busbw": 400.5}
    assert [m.value for m in read(json.dumps(flat)).measurements] == [400.5]


def test_what_is_no_number_is_not_measured():
    assert reasons(read(LINES + "gpu0_to_gpu1_read_by_sm nan\n")) == {"not_measured"}
    assert reasons(read(LINES + "RuntimeError: CUDA error: all is lost\n")) == {"tool_error"}
    assert read("nothing to see here\n").verdict is Verdict.INCONCLUSIVE
    assert reasons(read('{"name": "x", "result": {"retu')) == {"truncated"}


def test_a_stream_has_a_share_of_its_peak_beside_its_bandwidth():
    reading = read("STREAM_COPY_double_gpu_0_buffer_4294967296_block_128    6711.67 81.93\n")
    assert [(m.value, m.unit) for m in reading.measurements] == [(6711.67, "GB/s")]
