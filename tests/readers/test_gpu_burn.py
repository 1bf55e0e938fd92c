"""gpu-burn: warm-up is no fault, a wrong result is, and only the whole closing list passes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.domain.node import Category
from sickbay.domain.reading import Verdict
from sickbay.readers import gpu_burn


def progress(*rates, errors=(0, 0), share=50.0):
    done = " - ".join(f"2261 ({rate} Gflop/s)" for rate in rates)
    wrong = " - ".join(str(e) for e in errors)
    return f"{share}%  proc'd: {done}   errors: {wrong}   temps: 55 C - 61 C \n"


def closing(*words):
    rows = "".join(f"\tGPU {i}: {word}\n" for i, word in enumerate(words))
    return f"done\n\nTested {len(words)} GPUs:\n{rows}"


def read(text, *, exit_code=None, **asked):
    return gpu_burn.read(text, exit_code=exit_code, **asked)


def reasons(reading):
    return {(f.part, f.reason) for f in reading.findings}


WARM = progress(0, 0) + progress(7150, 0) + progress(16942, 17093, share=100.0)


def test_rows_of_nought_are_the_warm_up():
    reading = read(WARM + closing("OK", "OK"), gpus=2)
    assert reading.verdict is Verdict.PASS
    assert {(m.name, m.part, m.value) for m in reading.measurements} >= {
        ("gflops", "0", 16942),
        ("gflops", "1", 17093),
        ("errors", "1", 0),
        ("temp_c", "1", 61),
    }


@pytest.mark.parametrize("separator", ["\n", "\r", "\r\n"])
def test_lines_may_be_parted_by_carriage_returns(separator):
    text = (WARM + closing("OK", "FAULTY")).replace("\n", separator)
    reading = read(text)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.COMPUTE)
    assert reasons(reading) == {("1", "gpu_faulty")}


def test_a_wrong_result_fails_before_the_end_and_against_the_list():
    wrong = WARM + progress(9, 9, errors=(0, "12  (WARNING!)"))
    assert reasons(read(wrong)) == {("1", "compute_errors"), (None, "incomplete")}
    assert read(wrong).verdict is Verdict.FAIL
    assert read(wrong + closing("OK", "OK")).verdict is Verdict.FAIL


def test_a_process_that_died_says_nothing_of_its_gpu():
    died = progress(9, 9).replace("errors: 0 - 0", "errors: 0  (DIED!)- 7  (WARNING!)")
    assert {("0", "gpu_process_died"), ("1", "compute_errors")} <= reasons(read(WARM + died))
    text = WARM + progress(9, 9, errors=(0, "0  (DIED!)")) + "No clients are alive!  Aborting\n"
    reading = read(text, exit_code=124)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert ("1", "gpu_process_died") in reasons(reading)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'Couldn\'t init a GPU test: Error in "setting device": out of memory\n',
            "cuda_out_of_memory",
        ),
        (WARM, "incomplete"),
        (progress(0, 0) + closing("OK", "OK"), "not_measured"),
        ("bash: gpu_burn: command not found\n", "did_not_run"),
    ],
)
def test_a_burn_that_was_none_is_no_verdict(text, reason):
    reading = read(text)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reason in {f.reason for f in reading.findings}


def test_a_count_that_overflowed_is_many_errors_and_no_number():
    text = WARM + progress(9, 9, errors=(0, "-524288000  (WARNING!)")) + closing("OK", "FAULTY")
    reading = read(text, exit_code=0)
    assert reasons(reading) == {("1", "compute_errors")}
    assert ("errors", "1") not in {(m.name, m.part) for m in reading.measurements}


def test_the_list_is_no_word_about_the_gpu_of_a_process_that_died():
    died = progress(0, 9).replace("errors: 0 - 0", "errors: 1641686072  (DIED!)- 0")
    reading = read(died + closing("FAULTY", "OK"))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {("0", "gpu_process_died"), ("0", "not_measured")}


def test_ok_is_no_word_about_a_gpu_that_did_no_work():
    reading = read(progress(9, 0) + closing("OK", "OK"))
    assert (reading.verdict, reasons(reading)) == (Verdict.INCONCLUSIVE, {("1", "not_measured")})


def test_fewer_gpus_than_the_class_has_is_no_pass():
    assert reasons(read(WARM + closing("OK", "OK"), gpus=8)) == {(None, "gpu_count_mismatch")}


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(WARM + closing("OK", "OK", "FAULTY")) - 1))
def test_no_prefix_of_a_failing_output_passes(at):
    assert read((WARM + closing("OK", "OK", "FAULTY"))[:at]).verdict is not Verdict.PASS
