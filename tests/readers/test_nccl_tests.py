"""nccl-tests: rows and footers of every layout, failures, and what a cut text must not become."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.domain.node import Category
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import nccl_answers, nccl_tests

MIB = 1024**2
FOOT = "# Out of bounds values : {} {}\n# Avg bus bandwidth    : {}\n#\n"
COLUMNS = (
    "#       size  count  type  redop  root  time  algbw  busbw {w}  time  algbw  busbw {w}{more}\n"
)


def devices(*hosts, per_host=8):
    rank = 0
    lines = []
    for host in hosts:
        for index in range(per_host):
            lines.append(
                f"#  Rank {rank:2} Group  0 Pid {900 + rank} on {host} device {index:2} "
                f"[0000:{16 + index:02x}:00] NVIDIA H100\n"
            )
            rank += 1
    return "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 validation: 1\n# Using devices\n" + "".join(
        lines
    )


def row(size=1024 * MIB, bus=182.0, alg=None, wrong=("0", "0"), redop="sum      -1"):
    alg = bus / 1.875 if alg is None else alg
    block = f"11013 {alg:.2f} {bus:.2f} "
    return f"  {size}  {size // 4}  float  {redop}  {block}{wrong[0]}  {block}{wrong[1]}\n"


def output(*rows, head=None, wrong=0, word="OK", average="100.5"):
    head = devices("n1", "n2") if head is None else head
    return head + "".join(rows) + FOOT.format(wrong, word, average)


def read(text, *, exit_code=None, **asked):
    return nccl_tests.read(text, exit_code=exit_code, **asked)


def reasons(reading):
    return {f.reason for f in reading.findings}


def values(reading, name):
    return [m.value for m in reading.measurements if m.name == name]


def test_the_best_row_and_not_the_average_is_held_against_the_floor():
    text = output(row(8 * MIB, bus=20.0), row(bus=182.8), average="60.1")
    assert read(text, floors={"nccl_busbw_gbps": 170}).verdict is Verdict.PASS
    slow = read(text, floors={"nccl_busbw_gbps": 190})
    assert slow.verdict is Verdict.FAIL
    assert slow.category is Category.PERFORMANCE
    assert reasons(slow) == {"bandwidth_below_floor"}


def test_a_floor_of_the_collective_goes_before_the_general_one():
    text = "# Collective test starting: alltoall_perf\n" + output(row(bus=40.0))
    text += "# Collective test concluded: alltoall_perf\n"
    floors = {"nccl_busbw_gbps": 170, "nccl_alltoall_busbw_gbps": 38}
    assert read(text, floors=floors).verdict is Verdict.PASS


def test_small_messages_are_never_called_slow():
    reading = read(output(row(65536, bus=0.9)), floors={"nccl_busbw_gbps": 170})
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {"sizes_too_small"}


def test_a_wrong_value_fails_before_everything_else():
    text = output(row(wrong=("3", "0")), wrong=3, word="FAILED")
    reading = read(text, floors={"nccl_busbw_gbps": 1000}, exit_code=1)
    assert reading.verdict is Verdict.FAIL
    assert reading.category is Category.FABRIC
    assert reasons(reading) == {"out_of_bounds"}
    assert values(reading, "out_of_bounds") == [3]
    assert not values(reading, "busbw_gbps")


def test_a_wrong_value_in_a_row_fails_a_run_that_never_ended():
    assert read(devices("n1") + row(wrong=("0", "2"))).verdict is Verdict.FAIL


def test_one_rank_alone_proves_and_accuses_nothing():
    text = output(row(bus=0.0, alg=1300.0), head=devices("n1", per_host=1), average="0")
    reading = read(text, floors={"nccl_busbw_gbps": 300})
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {"single_rank"}
    assert not values(reading, "busbw_gbps")
    assert values(reading, "ranks") == [1]


def test_a_demanded_minimum_that_was_missed_fails_two_ranks_and_not_one():
    assert reasons(read(output(row(), average="3.1 FAILED"))) == {"min_bandwidth_failed"}
    assert read(output(row(), average="3.1 FAILED")).verdict is Verdict.FAIL
    alone = output(row(bus=0.0, alg=9.0), head=devices("n1", per_host=1), average="0 FAILED")
    assert read(alone).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "[prterun-n1-77@1,12]<stdout>: ", "0: "])
def test_labels_of_launchers_are_taken_off(label):
    text = "".join(label + line + "\n" for line in output(row()).splitlines())
    reading = read(text)
    assert reading.verdict is Verdict.PASS
    assert values(reading, "busbw_gbps") == [182.0, 182.0]


def test_columns_are_found_by_the_header_whatever_stands_between():
    head = devices("n1") + COLUMNS.format(w="#wrong", more="  #iters")
    head = head.replace("time  algbw", "time  p99  algbw", 1)
    text = head + "  1073741824 268435456 float sum -1 11 99.9 97 181.5 0 12 96 180.1 0 20\n"
    text += FOOT.format(0, "OK", "150")
    assert values(read(text), "busbw_gbps") == [181.5, 180.1]


def test_the_oldest_rows_have_no_operation_and_an_error_instead_of_a_count():
    old = "  134217728  16777216   float   3298.6  20.34  20.34  0e+00  3070.3  21.86 21.86 1e-07\n"
    reading = read(old + FOOT.format(0, "OK", "6.7"), floors={"nccl_busbw_gbps": 20})
    assert reading.verdict is Verdict.PASS
    assert {m.placement: m.value for m in reading.measurements if m.name == "busbw_gbps"} == {
        "out": 20.34,
        "in": 21.86,
    }


def test_the_first_layout_has_no_marks_and_other_names():
    text = (
        "nThread 1 nGpus 2 minBytes 9 maxBytes 33554432 step: 1048576(bytes) validation: 1\n"
        "# Using devices\n#   Rank  0 on n1 device  0 [0x04] Tesla K80\n"
        "#   Rank  1 on n1 device  1 [0x05] Tesla K80\n"
        "#      bytes   N  type    op   time  algbw  busbw  res   time  algbw  busbw  res\n"
        "  134217728  33554432  float  sum  12.34  10.40  10.40  0e+00  12.26 10.60 10.60 2e-07\n"
        " Out of bounds values : 0 OK\n Avg bus bandwidth    : 10.5\n"
    )
    reading = read(text, floors={"nccl_busbw_gbps": 10.5}, ranks=2)
    assert reading.verdict is Verdict.PASS
    assert values(reading, "busbw_gbps_peak") == [10.6]


def test_lines_of_nccl_between_rows_and_footer_change_nothing():
    noise = "n1:20:21 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId f000 - COMPLETE\n"
    assert read(row() + noise + FOOT.format(0, "OK", "8")).verdict is Verdict.PASS


def test_values_nobody_checked_prove_nothing_about_data():
    reading = read(output(row(wrong=("N/A", "N/A"))))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {"verification_skipped"}
    assert not values(reading, "out_of_bounds")


def test_unchecked_values_that_reach_the_floor_prove_bandwidth_only():
    reading = read(output(row(wrong=("N/A", "N/A"))), floors={"nccl_busbw_gbps": 170})
    assert reading.verdict is Verdict.PASS
    assert reasons(reading) == {"verification_skipped"}
    assert "bandwidth only" in reading.why


def test_a_collective_without_an_in_place_form_is_not_called_unchecked():
    reading = read(output(row(wrong=("0", "N/A"), redop="none     -1")))
    assert reading.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("n1: Test NCCL failure common.cu:345 'unhandled system error'",
         "nccl_unhandled_system_error"),
        ("n1: Test NCCL failure all_reduce.cu:9 'internal error / '", "nccl_internal_error"),
        ("n1: Test NCCL failure common.cu:1 'remote process exited or there was a network error'",
         "nccl_remote_error"),
        ("n1: Test CUDA failure common.cu:941 'out of memory'", "cuda_out_of_memory"),
        ("n1: Test timeout (120s) common.cu:700", "timeout"),
        ("bash: all_reduce_perf: command not found", "did_not_run"),
        ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***", "timeout"),
        ("There are not enough slots available in the system", "did_not_run"),
    ],
)  # fmt: skip
def test_a_run_that_broke_accuses_nobody(sentence, reason):
    reading = read(sentence + "\n .. n1 pid 7: Test failure common.cu:393\n", exit_code=3)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert {reason, "did_not_run"} <= reasons(reading)
    assert all(f.kind is FindingKind.TOOL for f in reading.findings)


def test_a_memory_error_that_cuda_reports_is_the_hardwares():
    reading = read("n1: Test CUDA failure common.cu:9 'uncorrectable ECC error encountered'\n")
    assert reading.verdict is Verdict.FAIL
    assert reading.category is Category.MEMORY


@pytest.mark.parametrize("status", ["12", "IBV_WC_RETRY_EXC_ERR(12)"])
def test_a_transfer_that_was_never_answered_names_the_adapter(status):
    line = (
        "n1:7:9 [3] misc/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<5> with "
        f"status={status} opcode=0 len=0 vendor err 129 (Recv) hca mlx5_5\n"
    )
    reading = read(devices("n1", "n2") + line, exit_code=3)
    assert ("mlx5_5", "ib_retry_exceeded") in {(f.part, f.reason) for f in reading.findings}
    assert reading.verdict is Verdict.INCONCLUSIVE


def test_footers_that_are_fine_do_not_outweigh_a_launcher_that_failed():
    text = output(row()) + "mpirun detected that one or more processes exited with non-zero\n"
    assert read(text).verdict is Verdict.INCONCLUSIVE
    assert reasons(read(output(row()), exit_code=1)) == {"exit_code_contradicts_document"}


def test_a_version_that_says_when_it_concludes_must_have_said_so():
    start = "# Collective test starting: all_reduce_perf\n"
    assert reasons(read(start + output(row()))) == {"incomplete"}
    end = "# Collective test concluded: all_reduce_perf\n"
    assert read(start + output(row()) + end).verdict is Verdict.PASS


def test_a_run_without_rows_has_measured_nothing():
    reading = read(output())
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert "not_measured" in reasons(reading)


def test_each_of_two_runs_is_judged_by_itself():
    text = output(row(bus=182.0)) + output(row(bus=60.0))
    reading = read(text, floors={"nccl_busbw_gbps": 170})
    assert reading.verdict is Verdict.FAIL
    assert "several_runs" in reasons(reading)
    assert read(output(row()) + devices("n1", "n2")).verdict is Verdict.INCONCLUSIVE


def test_a_bandwidth_over_the_wrong_network_is_a_matter_of_configuration():
    noise = "n1:20:21 [0] NCCL INFO Using network Socket\n"
    reading = read(noise + output(row(bus=2.0)), floors={"nccl_busbw_gbps": 170}, network="IB")
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert ("network_not_as_wanted", FindingKind.CONFIGURATION) in {
        (f.reason, f.kind) for f in reading.findings
    }
    assert nccl_answers.network_used(noise) == "Socket"


DOCUMENT = {
    "version": 3,
    "env": ["SECRET_TOKEN=hunter2"],
    "config": {
        "devices": [
            {"rank": r, "group": 0, "hostname": "n1", "device": r, "device_hex": "0000:19:00"}
            for r in range(8)
        ]
    },
    "results": [
        {
            "size": 1024 * MIB,
            "redop": "sum",
            "out_of_place": {"time": 1.0, "alg_bw": 270.0, "bus_bw": 472.5, "nwrong": 0},
            "in_place": {"time": 1.0, "alg_bw": 271.0, "bus_bw": 474.25, "nwrong": 0},
            "experiment_name": "all_reduce",
        }
    ],
    "out_of_bounds": {"count": 0, "okay": "true"},
    "average_bus_bandwidth": {"bandwidth": 400.0, "okay": "unchecked"},
    "errors": [],
    "end_time": "2026-01-01 00:00:09",
}


def test_a_document_gives_what_the_text_gives_and_keeps_no_environment():
    reading = read(json.dumps(DOCUMENT), floors={"nccl_all_reduce_busbw_gbps": 460}, ranks=8)
    assert reading.verdict is Verdict.PASS
    assert values(reading, "busbw_gbps_peak") == [474.25]
    assert "hunter2" not in repr(reading)


def test_a_document_without_an_end_is_a_crash_and_an_infinity_no_number():
    crashed = {k: v for k, v in DOCUMENT.items() if k != "end_time"}
    assert reasons(read(json.dumps(crashed))) == {"incomplete"}
    bare = json.dumps(DOCUMENT).replace("472.5", "inf")
    assert reasons(read(bare)) == {"not_measured"}
    assert values(read(bare), "busbw_gbps") == [474.25]


def test_c07_nccl_tests_outputs():
    alone = "".join(
        row(size * MIB, bus=0.0, alg=alg) for size, alg in [(128, 212.0), (128, 320.0), (512, 1e6)]
    )
    header = "# nThread 1 nGpus 1 minBytes 134217728 maxBytes 2147483648 validation: 1\n"
    a = read(output(alone, head=header, average="0"), ranks=16, floors={"nccl_busbw_gbps": 300})
    assert a.verdict is Verdict.INCONCLUSIVE
    assert reasons(a) == {"single_rank", "rank_count_mismatch"}
    b = read(output(row(bus=0.0, alg=232.0), head=devices("w0", per_host=1), average="0"))
    assert (b.verdict, reasons(b)) == (Verdict.INCONCLUSIVE, {"single_rank"})
    rows = [row(bus=bus, alg=bus / 1.75) for bus in (93.46, 93.58, 94.26, 97.54, 95.1)]
    c = read(output(*rows, head="", average="95.3009"))
    assert c.verdict is Verdict.PASS
    assert values(c, "ranks") == [8]
    assert values(c, "busbw_gbps_peak") == [97.54]
    d = read("# Out of bounds values : 248 FAILED\n")
    assert (d.verdict, reasons(d)) == (Verdict.FAIL, {"out_of_bounds"})
    e = read("Test CUDA failure common.cu:941 'system not yet initialized'\n", exit_code=2)
    assert e.verdict is Verdict.INCONCLUSIVE
    assert reasons(e) == {"cuda_system_not_ready", "did_not_run"}


def test_c26_seven_of_eight_gpus_is_no_bandwidth_verdict():
    head = devices("vm-0", per_host=7) + devices("vm-1", per_host=8).split("devices\n", 1)[1]
    text = output(row(bus=130.71), head=head)
    reading = read(text, floors={"nccl_busbw_gbps": 150}, gpus_per_host=8)
    assert reading.verdict is Verdict.INCONCLUSIVE
    counted = [f for f in reading.findings if f.reason == "gpu_count_mismatch"]
    assert ["vm-0" in f.detail and "7" in f.detail and "8" in f.detail for f in counted] == [True]
    assert "bandwidth_below_floor" not in reasons(reading)


FAILING = [
    output(row(8 * MIB, bus=20.0), row(wrong=("0", "1")), wrong=1, word="FAILED"),
    output(row(), average="3.1 FAILED"),
    json.dumps(DOCUMENT | {"out_of_bounds": {"count": 2, "okay": "false"}}, indent=1),
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FAILING), st.floats(0, 1))
def test_no_prefix_of_a_failing_output_passes(text, share):
    assert read(text[: int(len(text) * share)]).verdict is not Verdict.PASS


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["# Avg bus bandwidth : ", "# Out of bounds values : ", "nan", "inf", "9" * 30, "OK\n",
             "FAILED\n", "\n", "  8 2 float sum -1 ", "1.0 ", "0 ", "{", '{"results": [', "}",
             "[1,0]<stdout>:", "# Rank 0 Pid 1 on a device 0 [", COLUMNS, "\x00", "é"]
        )
    )
)  # fmt: skip
def test_no_text_at_all_breaks_the_reader(pieces):
    reading = read("".join(pieces))
    assert reading.digest
    assert all(m.value >= 0 for m in reading.measurements)
