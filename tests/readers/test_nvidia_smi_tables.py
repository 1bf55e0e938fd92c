"""The plain table, CSV, blocks of `-q`, NVML's words and counts of a class."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.node import Category, Treatment
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import nvidia_smi

FRAME = "+-----------------------------------------+----------------------+----------------------+"


def row(index, bus, *, ecc="0", power="71W / 700W", temp="31C", persistence="On", mig="Disabled"):
    return [
        f"|   {index}  NVIDIA H100 80GB HBM3        {persistence:>3} | {bus} Off | {ecc:>20} |",
        f"| N/A   {temp:>4}    P0   {power:>12}     |    593MiB / 81559MiB |     0%      Default |",
        f"|                                         |                      | {mig:>20} |",
        FRAME,
    ]


def table(*rows, processes=True):
    lines = [FRAME, "| GPU  Name   Persistence-M | Bus-Id   Disp.A | Volatile Uncorr. ECC |", FRAME]
    lines += [line for one in rows for line in one]
    if processes:
        lines += ["| Processes:                              |", FRAME]
    return "\n".join(lines) + "\n"


def read(text, *, exit_code=None, **expected):
    return nvidia_smi.read(text, exit_code=exit_code, **expected)


def found(reading):
    return {(f.part, f.reason) for f in reading.findings}


def test_a_clean_table_passes_and_gives_its_readings_by_index():
    reading = read(table(row(0, "00000000:1A:00.0"), row(1, "00000000:3B:00.0")))
    assert reading.verdict is Verdict.PASS
    measured = {(m.name, m.part): (m.value, m.unit) for m in reading.measurements}
    assert measured["temp_c", "1"] == (31.0, "C")
    assert measured["power_w", "0"] == (71.0, "W")


@pytest.mark.parametrize(
    ("fields", "reason", "verdict"),
    [
        ({"ecc": "3"}, "ecc_uncorrectable", Verdict.FAIL),
        ({"ecc": "Off"}, "ecc_disabled", Verdict.PASS),
        ({"persistence": "Off"}, "persistence_mode_off", Verdict.PASS),
        ({"mig": "Enabled"}, "mig_enabled", Verdict.PASS),
        ({"power": "ERR! / 700W"}, "unreadable", Verdict.INCONCLUSIVE),
        ({"temp": "ERR!"}, "unreadable", Verdict.INCONCLUSIVE),
    ],
)
def test_a_row_of_the_table_is_judged_by_the_same_rules(fields, reason, verdict):
    bad = row(1, "00000000:3B:00.0", **fields)
    reading = read(table(row(0, "00000000:1A:00.0"), bad))
    assert (reading.verdict, found(reading)) == (verdict, {("0000:3b:00", reason)})


def test_an_error_in_the_place_of_a_number_is_no_number():
    reading = read(table(row(0, "00000000:1A:00.0", power="ERR! / 700W")))
    assert "power_w" not in {m.name for m in reading.measurements}


@given(share=st.floats(0.05, 0.95))
def test_a_cut_table_never_passes(share):
    text = table(row(0, "00000000:1A:00.0"), row(1, "00000000:3B:00.0", ecc="2"), processes=False)
    cut = text[: int(len(text) * share)]
    if not cut.rstrip().endswith("+"):
        assert read(cut).verdict is not Verdict.PASS


# --- CSV ---------------------------------------------------------------------------------------


def test_rows_are_read_by_the_names_of_their_columns():
    text = (
        "index, pci.bus_id, temperature.gpu, remapped_rows.pending, remapped_rows.failure\n"
        "0, 00000000:1A:00.0, 31, No, No\n"
        "1, 00000000:3B:00.0, 44, Yes, No\n"
    )
    reading = read(text)
    assert found(reading) == {("0000:3b:00", "row_remap_pending")}
    assert {(m.part, m.value) for m in reading.measurements if m.name == "temp_c"} == {
        ("0000:1a:00", 31.0),
        ("0000:3b:00", 44.0),
    }


@pytest.mark.parametrize(
    ("column", "value", "reason", "verdict"),
    [
        ("ecc.errors.uncorrected.volatile.total", "2", "ecc_uncorrectable", Verdict.FAIL),
        ("ecc.errors.uncorrected.volatile.sram", "1", "sram_uncorrectable", Verdict.FAIL),
        ("ecc.errors.uncorrected.aggregate.total", "9", "state_not_shown", None),
        ("retired_pages.pending", "Yes", "page_retirement_pending", Verdict.FAIL),
        ("clocks_throttle_reasons.hw_thermal_slowdown", "Active", "thermal_slowdown",
         Verdict.FAIL),
        ("gpu_recovery_action", "[Unknown Error]", "unreadable", Verdict.INCONCLUSIVE),
        ("gpu_recovery_action", "Sing a song", "recovery_action_unknown", Verdict.INCONCLUSIVE),
        ("gpu_recovery_action", "[GPU requires reset]", "gpu_requires_reset", Verdict.FAIL),
        ("temperature.gpu", "31", "state_not_shown", Verdict.INCONCLUSIVE),
        ("ecc.mode.current", "Disabled", "ecc_disabled", Verdict.INCONCLUSIVE),
    ],
)  # fmt: skip
def test_a_column_is_judged_as_the_same_field_elsewhere(column, value, reason, verdict):
    reading = read(f"index, {column}\n4, {value}\n")
    if verdict is None:
        # A lifetime's total is a number and no fault.
        assert reading.hardware_findings() == ()
        return
    assert reading.verdict is verdict
    assert ("4", reason) in found(reading)


@pytest.mark.parametrize(
    ("printed", "reason", "treatment"),
    [
        ("Reset", "recovery_action_reset", Treatment.RESET),
        ("GPU_RESET", "recovery_action_reset", Treatment.RESET),
        ("PF FLR", "recovery_action_reset", Treatment.RESET),
        ("Drain P2P", "recovery_action_drain_p2p", Treatment.RESET),
        ("Drain and Reset", "recovery_action_drain_and_reset", Treatment.RESET),
        ("reboot", "recovery_action_reboot", Treatment.REBOOT),
        ("OS Reboot", "recovery_action_reboot", Treatment.REBOOT),
    ],
)
def test_rows_without_a_head_are_read_where_they_tell_an_action(printed, reason, treatment):
    reading = read(f"0, None\n5, {printed}\n6, None\n")
    assert [(f.part, f.reason, f.treatment) for f in reading.hardware_findings()] == [
        ("5", reason, treatment)
    ]


def test_c27_a_recovery_action_is_read_whatever_else_says_healthy():
    text = "".join(f"{n}, {'Reset' if n == 1 else 'None'}\n" for n in range(8))
    (only,) = read(text, gpus=8).hardware_findings()
    assert (only.part, only.reason, only.treatment) == (
        "1",
        "recovery_action_reset",
        Treatment.RESET,
    )


def test_flags_may_be_numbers():
    text = (
        "gpu_bus_id, remapped_rows.correctable, remapped_rows.pending, remapped_rows.failure\n"
        "00000000:1A:00.0, 1, 1, 0\n00000000:3B:00.0, 0, 0, 1\n00000000:5D:00.0, 0, 0, 0\n"
    )
    assert found(read(text)) == {
        ("0000:1a:00", "row_remap_pending"),
        ("0000:3b:00", "row_remap_failure"),
    }


def test_rows_nobody_can_name_say_nothing():
    assert read("0, 31, 71.3\n1, 33, 70.2\n").verdict is Verdict.INCONCLUSIVE


def test_a_sentence_between_the_rows_spoils_the_list():
    lost = "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error"
    reading = read(f"index, gpu_recovery_action\n0, None\n{lost}\n2, None\n")
    assert reading.verdict is Verdict.FAIL
    assert ("0000:3b:00", "gpu_lost") in found(reading)


# --- blocks of -q ------------------------------------------------------------------------------


def block(pending, failure):
    return (
        "GPU 00000000:1A:00.0\n"
        "    Remapped Rows\n"
        "        Correctable Error                 : 0\n"
        "        Uncorrectable Error               : 4\n"
        f"        Pending                           : {pending}\n"
        f"        Remapping Failure Occurred        : {failure}\n"
    )


def test_c42_row_remapping_pending_failed_and_not_there():
    (pending,) = read(block("Yes", "No")).hardware_findings()
    assert (pending.reason, pending.treatment) == ("row_remap_pending", Treatment.RESET)
    (failed,) = read(block("No", "Yes")).hardware_findings()
    assert (failed.reason, failed.treatment) == ("row_remap_failure", Treatment.SWAP)
    assert read(block("No", "No")).verdict is Verdict.PASS
    absent = read("GPU 00000000:1A:00.0\n    Remapped Rows                         : N/A\n")
    assert absent.verdict is Verdict.INCONCLUSIVE
    assert absent.hardware_findings() == ()


@pytest.mark.parametrize(
    "text",
    [
        block("No", "No").rsplit("        Remapping", 1)[0],
        "GPU 00000000:1A:00.0\n    Fabric\n        State                 : Completed\n",
        "GPU 00000000:1A:00.0\n    Retired Pages\n        Single Bit ECC        : 0\n",
        "GPU 00000000:1A:00.0\n    ECC Errors\n        Volatile\n           SRAM Correctable : 0\n",
    ],
)
def test_a_block_without_its_decisive_field_is_no_clean_one(text):
    reading = read(text)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert "incomplete" in {f.reason for f in reading.findings}


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("Summary : Healthy", Verdict.PASS),
        ("Summary : Unhealthy", Verdict.FAIL),
        ("Degraded Bandwidth : True", Verdict.FAIL),
        ("Degraded Bandwidth : False", Verdict.PASS),
        ("Degraded Bandwidth : N/A", Verdict.PASS),
    ],
)
def test_a_fabric_that_is_set_up_may_still_be_sick(said, verdict):
    text = (
        "GPU 00000000:1A:00.0\n    Fabric\n        State : Completed\n        Status : Success\n"
        f"        Health\n            {said}\n"
    )
    assert read(text).verdict is verdict


def test_words_that_are_neither_yes_nor_no_are_no_no():
    assert read(block("Maybe", "No")).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("kept", [40, 200, 10_000])
def test_a_document_that_a_lost_gpu_ended_says_which_one(kept):
    """The tool ends at the first GPU it cannot reach: in the middle, or instead of a document."""
    head = "<?xml version='1.0'?>\n<nvidia_smi_log>\n<attached_gpus>8</attached_gpus>\n" + (
        "<gpu id='00000000:1A:00.0'><uuid>GPU-a</uuid></gpu>\n" * 3
    )
    lost = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot\n"
    for text in (head[:kept] + "\n" + lost, lost + head[:kept], lost):
        reading = read(text, exit_code=15, gpus=8)
        assert reading.verdict is Verdict.FAIL
        assert [(f.part, f.reason) for f in reading.hardware_findings()] == [
            ("0000:3b:00", "gpu_lost")
        ]


# --- sentences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "part", "reason", "verdict"),
    [
        ("Unable to determine the device handle for GPU 0000:3B:00.0: GPU requires reset", None,
         "0000:3b:00", "gpu_requires_reset", Verdict.FAIL),
        ("Unable to determine the device handle for GPU 0000:3B:00.0: Insufficient Permissions",
         4, "0000:3b:00", "no_permission", Verdict.INCONCLUSIVE),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", None, None, "gpu_lost", Verdict.FAIL),
        ("NVML: GPU requires reset/restart", None, None, "gpu_requires_reset", Verdict.FAIL),
        ("pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded", None, None, "driver_unreachable",
         Verdict.INCONCLUSIVE),
        ("pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found", None, None,
         "nvml_unavailable", Verdict.INCONCLUSIVE),
        ("WARNING: infoROM is corrupted at gpu 0000:3B:00.0", 14, "0000:3b:00",
         "corrupt_inforom", Verdict.FAIL),
        ("Terminating early due to previous errors.", 15, None, "gpu_lost", Verdict.FAIL),
        ("Terminating early due to previous errors.", 8, None, "power_cable_missing",
         Verdict.FAIL),
        ("Terminating early due to previous errors.", 12, None, "nvml_unavailable",
         Verdict.INCONCLUSIVE),
        ("Terminating early due to previous errors.", 18, None, "driver_mismatch",
         Verdict.INCONCLUSIVE),
        ("Terminating early due to previous errors.", 99, None, "tool_error",
         Verdict.INCONCLUSIVE),
        ("The following GPUs could not be reset:\n  GPU 00000000:3B:00.0: Unknown Error", 255,
         "0000:3b:00", "reset_failed", Verdict.INCONCLUSIVE),
        ("GPU Reset couldn't run because GPU 00000000:3B:00.0 is the primary GPU.", 255,
         "0000:3b:00", "reset_refused_primary", Verdict.INCONCLUSIVE),
    ],
)  # fmt: skip
def test_a_sentence_or_a_code_means_one_thing(text, code, part, reason, verdict):
    reading = read(f"{text}\n", exit_code=code)
    assert (reading.verdict, found(reading)) == (verdict, {(part, reason)})


# --- counts ------------------------------------------------------------------------------------


def listed(*numbers):
    return "".join(f"GPU {n}: NVIDIA H100 (UUID: GPU-0000000{n}-0000)\n" for n in numbers)


@pytest.mark.parametrize(
    ("text", "reasons", "verdict"),
    [
        (listed(0, 1, 2), set(), Verdict.PASS),
        (listed(0, 1), {"gpu_missing"}, Verdict.FAIL),
        (listed(0, 1, 2, 3), {"class_mismatch"}, Verdict.INCONCLUSIVE),
        ("Attached GPUs : 2\n" + block("No", "No") * 2, {"gpu_missing"}, Verdict.FAIL),
        (block("No", "No"), {"gpus_not_listed"}, Verdict.INCONCLUSIVE),
    ],
)
def test_a_class_says_how_many_there_must_be(text, reasons, verdict):
    reading = read(text, gpus=3)
    assert {f.reason for f in reading.findings} == reasons
    assert reading.verdict is verdict


def test_a_number_left_out_of_a_list_is_a_gpu_not_shown():
    assert read(listed(0, 2)).verdict is Verdict.INCONCLUSIVE


def test_configuration_is_kept_apart():
    reading = read(table(row(0, "00000000:1A:00.0", persistence="Off", mig="Enabled")))
    assert {f.kind for f in reading.findings} == {FindingKind.CONFIGURATION}
    assert reading.category is None or reading.category is not Category.COMPUTE
