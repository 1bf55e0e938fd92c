"""dcgmi's text tables, links and counters, what wrappers log, and a page of dcgm-exporter."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.node import Treatment
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import dcgm_diag, dcgm_exporter, dcgm_health, dcgm_nvlink

END = "+---------------------------+------------------------------------------------+\n"
HEAD = (
    f"Successfully ran diagnostic for group.\n{END}"
    "| Diagnostic                | Result                                         |\n"
    "+===========================+================================================+\n"
)


def line(name, value):
    return f"| {name:<25} | {value:<46} |\n"


def found(reading):
    return {(f.part, f.reason) for f in reading.findings}


# --- the text table of a diagnostic ------------------------------------------------------------


def diag(*rows, end=END):
    deployment = "|-----  Deployment  --------+------------------------------------------------|\n"
    hardware = "+-----  Hardware  ----------+------------------------------------------------+\n"
    software = line("software", "Pass") + line("", "GPU0: Pass") + line("", "GPU1: Pass")
    return HEAD + deployment + software + hardware + "".join(line(*r) for r in rows) + end


def test_a_whole_table_of_passes_is_a_pass():
    reading = dcgm_diag.read(
        diag(("memory", "Pass"), ("", "GPU0: Pass"), ("", "GPU1: Pass")), exit_code=0
    )
    assert reading.verdict is Verdict.PASS


def test_a_gpu_that_fails_in_a_table_is_the_one_named():
    text = diag(
        ("memory", "Fail"),
        ("", "GPU0: Pass"),
        ("", "GPU1: Fail"),
        ("Warning: GPU1", "Detected a faulty memory cell in GPU 1"),
    )
    reading = dcgm_diag.read(text, exit_code=None)
    assert reading.verdict is Verdict.FAIL
    assert {f.part for f in reading.hardware_findings()} == {"1"}


def test_a_hardware_test_that_fails_without_a_word_still_fails():
    reading = dcgm_diag.read(diag(("Diagnostic", "Fail - GPUs: 1")), exit_code=None)
    assert [(f.part, f.reason) for f in reading.hardware_findings()] == [("1", "diag_failed")]


def test_a_warning_explains_the_verdict_above_it():
    text = diag(
        ("PCIe", "Fail - GPU: 0"),
        ("Warning", "GPU 0 Error using CUDA API: devices are busy or unavailable"),
    )
    reading = dcgm_diag.read(text, exit_code=None)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert found(reading) == {("0", "cuda_context_busy")}


@pytest.mark.parametrize(
    ("links", "kind", "verdict"),
    [
        (0, FindingKind.CONFIGURATION, Verdict.INCONCLUSIVE),
        (12, FindingKind.HARDWARE, Verdict.FAIL),
    ],
)
def test_a_link_that_is_down_means_what_the_class_says(links, kind, verdict):
    text = line("PCIe", "Fail - All") + line("Warning", "GPU 0's NvLink link 0 is currently down")
    reading = dcgm_diag.read(text, exit_code=None, links_per_gpu=links)
    assert reading.verdict is verdict
    assert {f.kind for f in reading.findings if f.reason == "nvlink_down"} == {kind}


@given(share=st.floats(0.0, 0.999))
def test_a_cut_table_never_passes(share):
    text = diag(("memory", "Pass"), ("", "GPU0: Pass"), ("pcie", "Fail"), ("", "GPU0: Fail"))
    cut = text[: int((len(text) - len(END)) * share)]
    assert dcgm_diag.read(cut, exit_code=None).verdict is not Verdict.PASS


# --- cases -------------------------------------------------------------------------------------


def test_c29_a_test_that_did_not_run_is_not_a_pass(diag4):
    aborted = (
        "[[ DCGM ]] DCGM process terminated with errors. Other processes might run. ABORT\n"
        "[[ DCGM ]] SUCCESS\n"
    )
    skipped = diag4(
        {
            "software": [(0, "Pass", None, "")],
            "memory": [(0, "Skip", None, "")],
            "pcie": [(0, "Skip", None, "")],
        }
    )
    no_memory = diag4({"memory": [(3, "Pass", 56, "could not allocate the minimum amount")]})
    record = json.dumps(
        {
            "test": "memory",
            "gpu": 3,
            "status": "PASS",
            "errors": [{"code": "DCGM_FR_MEMORY_ALLOC", "detail": "could not allocate enough"}],
        }
    )
    warned = json.dumps(
        {"test": "software", "gpu": 0, "status": "WARN", "error_code": 29, "detail": "disabled"}
    )
    for text in (aborted, skipped, no_memory, record, warned):
        reading = dcgm_diag.read(text, exit_code=0)
        assert reading.verdict is Verdict.INCONCLUSIVE
        assert reading.hardware_findings() == ()
    assert found(dcgm_diag.read(aborted, exit_code=0)) == {(None, "did_not_run")}
    assert (None, "did_not_run") in found(dcgm_diag.read(skipped, exit_code=0))
    assert found(dcgm_diag.read(record, exit_code=None)) == {("3", "memory_allocation")}
    (setting,) = dcgm_diag.read(warned, exit_code=None).findings
    assert (setting.reason, setting.kind) == ("persistence_mode_off", FindingKind.CONFIGURATION)


def test_c30_a_test_that_disturbs_the_test_blames_nobody_and_erases_nothing(diag4):
    text = diag4(
        {
            "memory": [(0, "Pass", None, ""), (1, "Pass", None, "")],
            "nvbandwidth": [
                (1, "Fail", None, "The memory copy utilization for the GPU: 1 is greater than 10%")
            ],
            "diagnostic": [
                (0, "Fail", 40, "There were thermal violations totaling 0.0 seconds at 30.0")
            ],
        }
    )
    reading = dcgm_diag.read(text, exit_code=226)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert found(reading) == {("1", "nvbandwidth_interference"), ("0", "nothing_measured")}


# --- health ------------------------------------------------------------------------------------


def test_a_line_that_names_an_error_is_read_by_dcgms_own_table():
    text = "ErrorCode:DCGM_FR_PENDING_ROW_REMAP GPU:2 a remap is pending\n"
    (only,) = dcgm_health.read(text, exit_code=None).findings
    assert (only.part, only.reason, only.treatment) == ("2", "row_remap_pending", Treatment.RESET)


def test_the_text_table_of_the_watch():
    def health(*rows, end=END):
        return f"{END}| Health Monitor Report     |\n{HEAD}" + "".join(line(*r) for r in rows) + end

    healthy = health(("Overall Health", "Healthy"))
    assert dcgm_health.read(healthy, exit_code=0).verdict is Verdict.PASS
    assert dcgm_health.read(healthy[:-3], exit_code=0).verdict is not Verdict.PASS
    failing = health(
        ("Overall Health", "Failure"),
        ("GPU", ""),
        ("-> 4", "Failure"),
        ("-> Memory system", "Failure"),
        ("", "A DBE was detected on GPU 4"),
    )
    reading = dcgm_health.read(failing, exit_code=0)
    assert [(f.part, f.reason) for f in reading.hardware_findings()] == [("4", "ecc_uncorrectable")]


# --- links -------------------------------------------------------------------------------------

KEY = "\nKey: Up=U, Down=D, Disabled=X, Not Supported=_\n"


def links(*gpus):
    body = "".join(
        f"    gpuId {n}:\n        {' '.join(letters)}\n" for n, letters in enumerate(gpus)
    )
    return f"|  NvLink Link Status  |\nGPUs:\n{body}NvSwitches:\n    No NvSwitches found.\n{KEY}"


@pytest.mark.parametrize(
    ("gpus", "wanted", "down", "verdict"),
    [
        (("UUUU", "UUUU"), None, set(), Verdict.PASS),
        (("UUUU", "UUDU"), None, {"1"}, Verdict.FAIL),
        (("DDDD", "DDDD"), None, set(), Verdict.INCONCLUSIVE),
        (("DDDD", "DDDD"), 4, {"0", "1"}, Verdict.FAIL),
        (("DDDD", "DDDD"), 0, set(), Verdict.PASS),
        (("UU__", "UU__"), 4, set(), Verdict.INCONCLUSIVE),
        (("UUUX", "UUUU"), None, set(), Verdict.PASS),
    ],
)
def test_links_are_down_where_they_are_fitted(gpus, wanted, down, verdict):
    reading = dcgm_nvlink.read(links(*gpus), exit_code=0, links_per_gpu=wanted)
    assert reading.verdict is verdict
    assert {f.part for f in reading.hardware_findings()} == down


def test_the_unused_ports_of_a_switch_are_no_links_of_a_gpu():
    text = links("UUUU").replace("    No NvSwitches found.", "    physicalId 0:\n        X D U U")
    assert dcgm_nvlink.read(text, exit_code=0).verdict is Verdict.PASS


@given(share=st.floats(0.0, 0.999))
def test_cut_links_never_pass(share):
    text = links("UUUU", "UUDU")
    assert dcgm_nvlink.read(text[: int(len(text) * share)], exit_code=None).verdict is not (
        Verdict.PASS
    )


def test_counters_are_totals_in_every_spelling():
    document = json.dumps(
        {
            "body": {
                f"Link {n}": {"children": {"CRC FLIT Error": {"value": "3"}}} for n in range(4)
            },
            "header": ["NVLINK Error Counts", "GPU 6"],
        }
    )
    text = "| NVLINK Error Counts  |\n| GPU 6 |\n" + "".join(
        line(f"Link {n}", "") + line("-> CRC FLIT Error", "3") for n in range(4)
    )
    for output in (document, text + END):
        reading = dcgm_nvlink.read(output, exit_code=0)
        assert reading.verdict is Verdict.INCONCLUSIVE
        assert [(m.name, m.part, m.value) for m in reading.measurements] == [
            ("nvlink_crc_flit_errors", "6", 12.0)
        ]
    clean = dcgm_nvlink.read(document.replace('"3"', '"0"'), exit_code=0)
    assert clean.verdict is Verdict.PASS
    blank = dcgm_nvlink.read(document.replace('"3"', '"9223372036854775794"'), exit_code=0)
    assert (blank.verdict, blank.measurements) == (Verdict.INCONCLUSIVE, ())


# --- a page of the exporter --------------------------------------------------------------------


def page(**metrics):
    return "".join(
        f'DCGM_FI_DEV_{name}{{gpu="3",UUID="GPU-9",pci_bus_id="00000000:9B:00.0"}} {value}\n'
        for name, value in metrics.items()
    )


@pytest.mark.parametrize(
    ("metrics", "reason", "verdict"),
    [
        ({"ROW_REMAP_FAILURE": 1}, "row_remap_failure", Verdict.FAIL),
        ({"ROW_REMAP_PENDING": 1}, "row_remap_pending", Verdict.FAIL),
        ({"GPU_RECOVERY_ACTION": 2}, "recovery_action_reboot", Verdict.FAIL),
        ({"GPU_RECOVERY_ACTION": 77}, "recovery_action_unknown", Verdict.INCONCLUSIVE),
        ({"ECC_DBE_VOL_TOTAL": 1}, "ecc_uncorrectable", Verdict.FAIL),
        ({"XID_ERRORS": 120}, "xid_120", Verdict.INCONCLUSIVE),
        ({"XID_ERRORS": 31}, "xid_31", Verdict.PASS),
    ],
)
def test_a_state_fails_and_the_last_event_never_does(metrics, reason, verdict):
    reading = dcgm_exporter.read(page(**metrics), exit_code=None)
    assert (reading.verdict, found(reading)) == (verdict, {("0000:9b:00", reason)})


def test_a_lifetimes_total_is_a_number_and_no_fault():
    reading = dcgm_exporter.read(page(ECC_DBE_AGG_TOTAL=7, ROW_REMAP_FAILURE=0), exit_code=None)
    assert reading.verdict is Verdict.PASS
    assert [(m.name, m.value) for m in reading.measurements] == [
        ("ecc_uncorrectable_aggregate", 7.0)
    ]


@pytest.mark.parametrize(
    "value",
    [
        "9223372036854775794",
        "9223372036854776000",
        "9.223372036854776e+18",
        "140737488355328",
        "2147483634",
        "NaN",
        "N/A",
        "",
    ],
)
def test_c09_a_blank_is_no_number_and_no_fault(value):
    text = page(MEMORY_TEMP=value, ROW_REMAP_PENDING=value, GPU_RECOVERY_ACTION=value)
    reading = dcgm_exporter.read(text, exit_code=None)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reading.measurements == ()
    assert reading.hardware_findings() == ()


def test_a_slice_of_a_gpu_is_not_the_gpu():
    text = 'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3",UUID="GPU-9",GPU_I_ID="1"} 1\n'
    assert dcgm_exporter.read(text, exit_code=None).verdict is Verdict.INCONCLUSIVE
