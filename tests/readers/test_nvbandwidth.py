"""nvbandwidth: matrices in text and document, errors, and what a cut text must not become."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.domain.node import Category
from sickbay.domain.reading import Verdict
from sickbay.readers import nvbandwidth

HEAD = (
    "nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\nCUDA Runtime Version: 12060\n\n"
    "Device 0: NVIDIA H100 (00000000:1B:00)\nDevice 1: NVIDIA H100 (00000000:3b:00)\n\n"
)
NOTE = "NOTE: The reported results may not reflect the full capabilities of the platform.\n"
INTO = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)"
BETWEEN = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"


def case(name, description, *rows, total="0.00"):
    width = max(len(r) for r in rows)
    lines = [f"Running {name}.", description, "".join(f"{i:10}" for i in range(width))]
    lines += [f"{i:2}" + "".join(f"{value:>10}" for value in row) for i, row in enumerate(rows)]
    return "\n".join([*lines, "", f"SUM {name} {total}", "", ""])


H2D = case("host_to_device_memcpy_ce", INTO, ("55.30", "54.90"))
D2D = case("device_to_device_memcpy_read_ce", BETWEEN, ("N/A", "276.07"), ("276.19", "N/A"))
CORRUPT = (
    "Running device_to_device_memcpy_read_ce.\n"
    " Invalid value when checking the pattern at 0x7f0000000000\n Current offset : 64\n"
    "ASSERT in expression h_errorFlag == 0\n"
)


def read(text, *, exit_code=None, **asked):
    return nvbandwidth.read(text, exit_code=exit_code, **asked)


def reasons(reading):
    return {f.reason for f in reading.findings}


def cells(reading, name):
    return {(m.part, m.peer): m.value for m in reading.measurements if m.name == name}


def document(*cases, **more):
    return json.dumps({"nvbandwidth": {"testcases": list(cases), "version": "v0.8"} | more})


def passed(name, *rows, description=INTO):
    return {
        "name": name,
        "status": "Passed",
        "bandwidth_description": description + " ",
        "bandwidth_matrix": [list(r) for r in rows],
    }


def test_cells_come_from_the_matrix_with_their_parts():
    reading = read(HEAD + H2D + D2D + NOTE)
    assert reading.verdict is Verdict.PASS
    assert cells(reading, "host_to_device_memcpy_ce") == {("0", None): 55.3, ("1", None): 54.9}
    assert cells(reading, "device_to_device_memcpy_read_ce") == {
        ("0", "1"): 276.07,
        ("1", "0"): 276.19,
    }


def test_older_and_newer_layouts_mean_the_same():
    unnamed = "Device 0: NVIDIA L40S\nDevice 1: NVIDIA L40S\n\n"
    waiving = "\nWaiving device_to_device_memcpy_write_ce.\n"
    reading = read(unnamed + H2D + waiving, gpus=2)
    assert reading.verdict is Verdict.PASS
    assert "1 waived" in reading.why
    assert reasons(read(unnamed + waiving)) == {"not_applicable"}
    out = case("device_to_host_memcpy_ce", INTO.replace("CPU(row)", "GPU(row)").replace(
        "GPU(column)", "CPU(column)"), ("25.97", "26.00"))  # fmt: skip
    newer = out + "COEFFICIENT_OF_VARIATION device_to_host_memcpy_ce 0.02\n"
    assert cells(read(newer), "device_to_host_memcpy_ce") == {("0", None): 25.97, ("1", None): 26.0}
    floor = {"d2h_gbps": 25.99}
    assert [f.part for f in read(unnamed + newer, floors=floor).findings] == ["0"]


def test_a_part_under_the_floor_fails_by_its_bus_id():
    reading = read(HEAD + H2D + D2D + NOTE, floors={"h2d_gbps": 55.0, "p2p_gbps": 270})
    assert reading.verdict is Verdict.FAIL
    assert reading.category is Category.PERFORMANCE
    assert [f.part for f in reading.findings] == ["0000:3b:00"]
    assert read(HEAD + H2D + D2D + NOTE, floors={"h2d_gbps": 48.0}).verdict is Verdict.PASS


def test_a_pair_under_the_floor_names_the_row_and_says_the_pair():
    slow = case("device_to_device_memcpy_read_ce", BETWEEN, ("0.00", "276.0"), ("90.1", "0.00"))
    reading = read(slow, floors={"nvbandwidth_device_to_device_memcpy_read_ce_gbps": 235})
    assert [(f.part, "from 1 to 0" in f.detail) for f in reading.findings] == [("1", True)]


def test_latencies_keep_their_unit_and_have_no_floor():
    text = case(
        "host_device_latency_sm", "memory latency SM CPU(row) <-> GPU(column) (ns)", ("649",)
    )
    reading = read(text, floors={"host_device_latency_sm_gbps": 9000})
    assert reading.verdict is Verdict.PASS
    assert [m.unit for m in reading.measurements] == ["ns"]


def test_wrong_values_fail_whatever_was_measured_before():
    reading = read(HEAD + H2D + CORRUPT, exit_code=1, floors={"h2d_gbps": 100})
    assert reading.verdict is Verdict.FAIL
    assert reasons(reading) == {"data_corruption"}
    assert reading.category is Category.INTERCONNECT


def test_wrong_values_are_found_in_a_document_that_names_them_at_its_top():
    text = document(
        {"name": "device_local_copy", "status": "Running"},
        error="ASSERT in expression h_errorFlag == 0 in verify()",
    )
    reading = read(text, exit_code=1)
    assert reasons(reading) == {"data_corruption"}
    assert reading.category is Category.MEMORY


def test_a_document_is_found_among_lines_with_braces():
    text = "noise {\nmore {{{}}}}}\n" + document(passed("host_to_device_memcpy_ce", ("26.3",)))
    reading = read(text + "\nWARNING: }}} {\n")
    assert reading.verdict is Verdict.PASS
    assert cells(reading, "host_to_device_memcpy_ce") == {("0", None): 26.3}


def test_the_total_of_a_test_in_both_directions_is_its_last_matrix():
    rows = [("N/A", "1"), ("2", "N/A")] * 2 + [("N/A", "500.5"), ("501.5", "N/A")]
    name = "device_to_device_bidirectional_memcpy_read_ce"
    reading = read(document(passed(name, *rows, description=BETWEEN)))
    assert cells(reading, name) == {("0", "1"): 500.5, ("1", "0"): 501.5}


def test_matrices_of_both_directions_in_text_have_names_of_their_own():
    head = "Running device_to_device_bidirectional_memcpy_read_ce.\n"
    body = "".join(
        f"memcpy CE GPU(row) <-> GPU(column) {half} bandwidth (GB/s)\n"
        f"  0 1\n0 N/A {v}\n1 {v} N/A\n\n"
        for half, v in [("Read1", "200.00"), ("Read2", "201.00"), ("Total", "401.00")]
    )
    names = {m.name.rsplit("_", 1)[1]: m.value for m in read(head + body).measurements}
    assert names == {"read1": 200.0, "read2": 201.0, "total": 401.0}


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "0.00"])
def test_a_cell_without_a_positive_number_is_not_measured(value):
    reading = read(case("host_to_device_memcpy_ce", INTO, ("55.30", value)))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {"not_measured"}


def test_waived_tests_do_not_apply_and_alone_prove_nothing():
    waived = {"name": "device_to_device_memcpy_read_ce", "status": "Waived"}
    assert read(document(waived, passed("h", ("9.9",)))).verdict is Verdict.PASS
    assert reasons(read(document(waived))) == {"not_applicable"}
    assert reasons(read("Running device_to_device_memcpy_read_ce.\nWaived: \n")) == {
        "not_applicable"
    }


@pytest.mark.parametrize(
    ("line", "reason", "verdict"),
    [
        ("[CUDA_ERROR_OUT_OF_MEMORY] out of memory in expression f", "cuda_out_of_memory",
         Verdict.INCONCLUSIVE),
        ("[CUDA_ERROR_SYSTEM_NOT_READY] system not yet initialized in expression cuInit(0)",
         "cuda_system_not_ready", Verdict.INCONCLUSIVE),
        ("[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC error encountered in expression g",
         "cuda_ecc_uncorrectable", Verdict.FAIL),
        ("NVML_ERROR: [Driver Not Loaded] in expression nvmlInit()", "nvml_unavailable",
         Verdict.INCONCLUSIVE),
        ("ERROR: Testcase gpu_to_moon not found!", "test_not_available", Verdict.INCONCLUSIVE),
        ("Error: something else", "tool_error", Verdict.INCONCLUSIVE),
    ],
)  # fmt: skip
def test_an_error_is_told_apart_from_a_fault(line, reason, verdict):
    reading = read(HEAD + "Running host_to_device_memcpy_ce.\n" + line + "\n", exit_code=1)
    assert reason in reasons(reading)
    assert reading.verdict is verdict


def test_the_worse_of_two_states_of_one_name_counts():
    name = "host_to_device_memcpy_ce"
    text = document({"name": name, "status": "Running"}, {"name": name, "status": "Error"})
    assert read(text).verdict is Verdict.INCONCLUSIVE


def test_what_was_asked_for_must_have_been_measured():
    text = HEAD + H2D + NOTE
    assert reasons(read(text, wanted=["device_local_copy"])) == {"incomplete"}
    assert read(text, wanted=["host_to_device_memcpy_ce"], gpus=2).verdict is Verdict.PASS
    missing = read(text, gpus=8, floors={"h2d_gbps": 100})
    assert reasons(missing) == {"gpu_count_mismatch"}


def test_two_tests_without_the_tools_last_words_are_no_whole_run_until_the_status_says_so():
    assert reasons(read(HEAD + H2D + D2D)) == {"incomplete"}
    assert read(HEAD + H2D + D2D, exit_code=0).verdict is Verdict.PASS
    assert read(HEAD + H2D).verdict is Verdict.PASS


def test_labels_of_launchers_are_taken_off():
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in (HEAD + H2D + NOTE).splitlines())
    assert cells(read(text), "host_to_device_memcpy_ce") == {("0", None): 55.3, ("1", None): 54.9}


def test_an_exit_status_contradicts_a_fine_document():
    assert reasons(read(HEAD + H2D + NOTE, exit_code=1)) == {"exit_code_contradicts_document"}


def test_c31_nvbandwidth_outputs():
    a = read(
        case("host_to_device_memcpy_ce", INTO, ("337.55", "2142.4"), ("2142.4", "337.55"),
             total="337.55") + "Waived:\nWaived:\n" +
        case("host_to_device_bidirectional_memcpy_ce", INTO, ("160.02",)) + "Waived:\n"
    )  # fmt: skip
    assert a.verdict is Verdict.PASS
    assert sum(cells(a, "host_to_device_memcpy_ce").values()) == pytest.approx(4959.90)
    b = read(D2D)
    assert min(cells(b, "device_to_device_memcpy_read_ce").values()) == 276.07
    c = read(CORRUPT)
    assert (c.verdict, reasons(c)) == (Verdict.FAIL, {"data_corruption"})
    d = read("nvbandwidth Version: v0.7\nCUDA Runtime Version: 12040\n", exit_code=0)
    assert (d.verdict, reasons(d)) == (Verdict.INCONCLUSIVE, {"incomplete"})


SLOW = case("device_to_device_memcpy_write_ce", BETWEEN, ("N/A", "276.0"), ("90.1", "N/A"))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(
        [SLOW, HEAD + CORRUPT, document({"name": "x", "status": "Running"}, error="h_errorFlag")]
    ),
    st.floats(0, 1),
)
def test_no_prefix_of_a_failing_output_passes(text, share):
    cut = text[: int(len(text) * share)]
    assert read(cut, floors={"p2p_gbps": 235}).verdict is not Verdict.PASS


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["Running x.\n", INTO + "\n", BETWEEN + "\n", "0 1\n", "0 N/A\n", "1 9e99 nan\n", "{",
             '{"nvbandwidth": {', '"testcases": [[], {"bandwidth_matrix": [[1], 2, []]}]', "}}",
             "Waived:\n", HEAD, NOTE, "SUM x nan\n", "\x00", "é", "9" * 400]
        )
    )
)  # fmt: skip
def test_no_text_at_all_breaks_the_reader(pieces):
    assert read("".join(pieces)).digest
