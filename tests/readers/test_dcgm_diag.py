import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.node import Category, Treatment
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import dcgm_diag
from sickbay.readers.dcgm_errors import DCGM_ERRORS
from sickbay.readers.dcgm_meaning import finding_of

PASSES = {
    "software": [(0, "Pass", None, ""), (1, "Pass", None, "")],
    "memory": [(0, "Pass", None, ""), (1, "Pass", None, "")],
}


def read(text, *, exit_code=None, **more):
    return dcgm_diag.read(text, exit_code=exit_code, **more)


def reasons(reading, *, kind=None):
    return {(f.part, f.reason) for f in reading.findings if kind is None or f.kind is kind}


def test_a_level_3_run_of_3x_passes_and_says_that_a_test_was_skipped(real):
    reading = read(real("diag3_level3_pass.json"))
    assert reading.verdict is Verdict.PASS
    assert (None, "eud_skipped") in reasons(reading)
    measured = {(m.name, m.part): m.value for m in reading.measurements}
    assert measured["h2d_gbps", "0"] == 13.11
    assert measured["d2h_gbps", "0"] == 13.15
    assert measured["gflops", "0"] == 11103.02
    assert measured["power_w", "0"] == 70


def test_a_level_1_run_without_gpu_ids_passes(real):
    reading = read(real("diag3_level1_pass.json"))
    assert reading.verdict is Verdict.PASS
    assert not reading.findings


@pytest.mark.parametrize("exit_code", [205, 226])
def test_an_exit_status_that_contradicts_the_document_never_passes(real, exit_code):
    reading = read(real("diag3_level1_pass.json"), exit_code=exit_code)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {(None, "exit_code_contradicts_document")}


def test_upper_case_layout_blames_only_the_gpus_that_failed(real):
    reading = read(real("nvvs_upper_case.json"))
    assert reading.verdict is Verdict.FAIL
    assert reading.category is Category.PERFORMANCE
    blamed = {part for part, _ in reasons(reading, kind=FindingKind.HARDWARE)}
    assert blamed == {"0", "2", "3"}
    assert ("0", "ecc_disabled") in reasons(reading, kind=FindingKind.CONFIGURATION)


@pytest.mark.parametrize("name", ["diag4_persistence_only.json", "diag4_level1_persistence.json"])
def test_persistence_mode_alone_is_no_hardware_fault(real, name):
    reading = read(real(name), exit_code=226)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert {f.kind for f in reading.findings} == {FindingKind.CONFIGURATION}
    assert {f.reason for f in reading.findings} == {"persistence_mode_off"}


def test_persistence_mode_beside_passing_hardware_tests_passes(diag4):
    sentence = "Persistence Mode: Persistence mode for GPU 0 is disabled."
    tests = {"software": [(0, "Fail", 29, sentence)], "memory": [(0, "Pass", None, "")]}
    reading = read(diag4(tests), exit_code=226, wanted=("software", "memory"))
    assert reading.verdict is Verdict.PASS
    assert ("0", "persistence_mode_off") in reasons(reading)


def test_an_error_line_before_the_document_keeps_both(real):
    reading = read(real("diag4_after_an_error_line.txt"))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert {(None, "hostengine_unreachable"), ("0", "persistence_mode_off")} <= reasons(reading)


def test_text_around_a_passing_document_is_no_obstacle(diag4):
    text = f"Executing in pod x on host y\n{diag4(PASSES)}\nbye\n"
    assert read(text, exit_code=0).verdict is Verdict.PASS


def test_two_documents_are_refused(real):
    reading = read(real("diag4_two_documents.txt"))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {(None, "two_documents")}


@given(share=st.floats(0.0, 0.995))
def test_a_document_that_was_cut_never_passes_and_never_fails(diag4, share):
    whole = diag4(PASSES | {"pcie": [(0, "Fail", 52, "Found faulty memory elements on GPU 0.")]})
    assert read(whole[: int(len(whole) * share)]).verdict is Verdict.INCONCLUSIVE


@given(text=st.text(alphabet=st.sampled_from('{}[]":, PasFil\n|+-GPU0123'), max_size=300))
def test_no_other_text_ever_passes(text):
    assert read(text, exit_code=0).verdict is not Verdict.PASS


def test_skips_only_say_nothing(diag4):
    tests = {"memory": [(0, "Skip", None, ""), (1, "Skip", None, "")]}
    assert read(diag4(tests), exit_code=0).verdict is Verdict.INCONCLUSIVE


def test_a_wanted_test_without_a_result_keeps_the_run_from_passing(diag4):
    reading = read(diag4(PASSES), exit_code=0, wanted=("software", "memory", "pcie"))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert (None, "pcie_not_run") in reasons(reading)


def test_a_gpu_that_was_not_tested_keeps_the_run_from_passing(diag4):
    reading = read(diag4(PASSES), exit_code=0, wanted=("software", "memory"), gpus=8)
    assert reading.verdict is Verdict.INCONCLUSIVE


def test_a_busy_gpu_is_no_broken_gpu(diag4):
    sentence = "Unable to create CUDA context: 'all CUDA-capable devices are busy or unavailable'"
    reading = read(diag4({"memory": [(0, "Fail", 66, sentence)]}), exit_code=226)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {("0", "cuda_context_busy")}


def test_a_hardware_test_that_fails_without_a_word_fails(diag4):
    reading = read(diag4({"memory": [(1, "Fail", None, "")]}), exit_code=226)
    assert reading.verdict is Verdict.FAIL
    assert ("1", "diag_failed") in reasons(reading)


def test_loss_of_one_gpu_does_not_blame_the_ones_that_are_asked_to_reboot(diag4):
    tests = {
        "software": [
            (3, "Fail", 120, "GPU 3 has fallen off the bus."),
            (0, "Fail", 126, "Node reboot required"),
        ]
    }
    reading = read(diag4(tests), exit_code=205)
    assert reasons(reading, kind=FindingKind.HARDWARE) == {("3", "gpu_lost")}
    assert reading.hardware_findings()[0].treatment is Treatment.REBOOT


def test_a_part_is_named_by_its_bus_id_when_the_serial_is_known(diag4):
    groups = [{"entity_group": "GPU", "entities": [{"entity_id": 1, "serial_num": "165"}]}]
    tests = {"memory": [(1, "Fail", 52, "Found 3 faulty memory elements on GPU 1.")]}
    text = diag4(tests, entity_groups=groups)
    reading = read(text, exit_code=205, bus_ids={"165": "0000:5d:00"})
    assert reading.hardware_findings()[0].part == "0000:5d:00"


@pytest.mark.parametrize(
    ("exit_code", "reason"),
    [(235, "hostengine_unreachable"), (217, "diag_already_running"), (137, "diag_killed")],
)
def test_an_exit_status_without_a_document_is_inconclusive(exit_code, reason):
    reading = read("", exit_code=exit_code)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert (None, reason) in reasons(reading)


def test_an_exit_status_of_an_error_spoils_a_passing_document(diag4):
    assert read(diag4(PASSES), exit_code=203).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Error: unable to establish a connection to the specified host: localhost",
         "hostengine_unreachable"),
        ("GPU 0's MIG configuration is incompatible with the diagnostic because", "mig_enabled"),
        ('Error: requested test "x" was not found among possible test choices.',
         "test_not_available"),
        ("The memory copy utilization for the GPU: 2 is greater than 10%.",
         "nvbandwidth_interference"),
    ],
)  # fmt: skip
def test_error_sentences_are_inconclusive_and_named(text, reason):
    reading = read(text)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reason in {f.reason for f in reading.findings}


def test_text_tables(real):
    busy = read(real("diag3_table_busy.txt"))
    assert busy.verdict is Verdict.INCONCLUSIVE
    assert ("0", "cuda_context_busy") in reasons(busy)
    assert {m.part for m in busy.measurements if m.name == "h2d_gbps"} == {"1"}
    cut = read(real("diag4_table_cut.txt"))
    assert cut.verdict is Verdict.INCONCLUSIVE
    assert reasons(cut) == {(None, "truncated")}
    pending = read(real("diag2_table_remap_pending.txt"))
    assert pending.verdict is Verdict.FAIL
    assert pending.hardware_findings()[0].treatment is Treatment.RESET


@pytest.mark.parametrize(
    ("number", "treatment", "category"),
    [
        (80, Treatment.SWAP, Category.MEMORY),
        (85, Treatment.RESET, Category.MEMORY),
        (4, Treatment.RESET, Category.MEMORY),
        (120, Treatment.REBOOT, Category.COMPUTE),
        (126, Treatment.REBOOT, Category.COMPUTE),
        (125, Treatment.RESET, Category.COMPUTE),
        (118, Treatment.SWAP, Category.MEMORY),
        (46, None, Category.INTERCONNECT),
        (10, None, Category.THERMAL),
    ],
)
def test_the_first_treatment_follows_the_error_id(number, treatment, category):
    finding = finding_of("text", test="memory", part="0", error_id=number)
    assert finding.kind is FindingKind.HARDWARE
    assert (finding.treatment, finding.category) == (treatment, category)


@given(number=st.sampled_from([n for n, row in DCGM_ERRORS.items() if row[1] == "config"]))
def test_what_dcgm_calls_configuration_is_never_hardware_but_for_the_pcie_width(number):
    finding = finding_of("text", test="software", part="0", error_id=number)
    assert (finding.kind is FindingKind.HARDWARE) == (number == 46)


@given(number=st.sampled_from(sorted(DCGM_ERRORS)))
def test_every_hardware_finding_has_a_category_and_no_other_has_a_treatment(number):
    finding = finding_of("text", test="pcie", part="0", error_id=number)
    assert (finding.category is not None) == (finding.kind is FindingKind.HARDWARE)
    assert finding.treatment is None or finding.kind is FindingKind.HARDWARE
