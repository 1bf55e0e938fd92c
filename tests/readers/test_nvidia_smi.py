import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.contracts.steps import Outcome
from sickbay.domain.node import Category, Part, PartKind, Treatment
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import nvidia_smi

IN_USE = (
    "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client\n"
)
LOST = (
    "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. "
    "Reboot the system to recover this GPU\n"
)


def gpu(bus="00000000:1A:00.0", uuid="GPU-a", serial="165", **fields):
    said = {
        "action": "None",
        "dram": "0",
        "sram": "0",
        "pending": "No",
        "failure": "No",
        "temp": "31 C",
        "thermal": "Not Active",
        "status": "Success",
        "persistence": "Enabled",
    } | fields
    return f"""<gpu id="{bus}"><uuid>{uuid}</uuid><serial>{serial}</serial>
    <persistence_mode>{said["persistence"]}</persistence_mode>
    <gpu_recovery_action>{said["action"]}</gpu_recovery_action>
    <clocks_event_reasons><clocks_event_reason_hw_thermal_slowdown>{said["thermal"]}
</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <ecc_errors><volatile><sram_uncorrectable_parity>{said["sram"]}</sram_uncorrectable_parity>
    <dram_uncorrectable>{said["dram"]}</dram_uncorrectable></volatile>
    <aggregate><dram_uncorrectable>9</dram_uncorrectable></aggregate></ecc_errors>
    <remapped_rows><remapped_row_unc>1</remapped_row_unc>
    <remapped_row_pending>{said["pending"]}</remapped_row_pending>
    <remapped_row_failure>{said["failure"]}</remapped_row_failure></remapped_rows>
    <temperature><gpu_temp>{said["temp"]}</gpu_temp></temperature>
    <fabric><state>Completed</state><status>{said["status"]}</status></fabric></gpu>"""


def document(*gpus, attached=None):
    count = len(gpus) if attached is None else attached
    body = "\n".join(gpus)
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log><attached_gpus>{count}</attached_gpus>{body}</nvidia_smi_log>\n"
    )


def state(text, *, exit_code=0, expected=()):
    return nvidia_smi.read_state(text, exit_code=exit_code, expected=expected)


def part(slot, uuid, bus):
    return Part(slot, PartKind.GPU, uuid, "s" + slot, bus)


def test_gpus_without_a_standing_fault_pass_whatever_their_lifetime_counters_say():
    reading = state(document(gpu(), gpu("00000000:3B:00.0", "GPU-b")))
    assert reading.verdict is Verdict.PASS
    measured = {(m.name, m.part): m.value for m in reading.measurements}
    assert measured["dram_uncorrectable_aggregate", "0000:1a:00"] == 9


@pytest.mark.parametrize(
    ("fields", "reason", "category", "treatment"),
    [
        ({"pending": "Yes"}, "row_remap_pending", Category.MEMORY, Treatment.RESET),
        ({"failure": "Yes"}, "row_remap_failure", Category.MEMORY, Treatment.SWAP),
        ({"dram": "2"}, "ecc_uncorrectable", Category.MEMORY, Treatment.RESET),
        ({"sram": "1"}, "sram_uncorrectable", Category.MEMORY, Treatment.RESET),
        ({"action": "Reset"}, "recovery_action_reset", Category.COMPUTE, Treatment.RESET),
        ({"action": "Reboot"}, "recovery_action_reboot", Category.COMPUTE, Treatment.REBOOT),
        ({"action": "OS Reboot"}, "recovery_action_reboot", Category.COMPUTE, Treatment.REBOOT),
        ({"thermal": "Active"}, "thermal_slowdown", Category.THERMAL, None),
        ({"temp": "[GPU requires reset]"}, "gpu_requires_reset", Category.COMPUTE,
         Treatment.RESET),
        ({"status": "Insufficient Resources"}, "fabric_status_insufficient_resources",
         Category.INTERCONNECT, None),
    ],
)  # fmt: skip
def test_a_standing_fault_names_part_category_and_first_treatment(
    fields, reason, category, treatment
):
    reading = state(document(gpu(**fields), gpu("00000000:3B:00.0", "GPU-b")))
    assert reading.verdict is Verdict.FAIL
    found = [(f.part, f.reason, f.category, f.treatment) for f in reading.hardware_findings()]
    assert found == [("0000:1a:00", reason, category, treatment)]


@pytest.mark.parametrize("fields", [{"action": "Unknown Error"}, {"dram": "Unknown Error"}])
def test_a_field_that_cannot_be_read_is_no_zero(fields):
    assert state(document(gpu(**fields))).verdict is Verdict.INCONCLUSIVE


def test_persistence_mode_is_configuration_and_passes():
    reading = state(document(gpu(persistence="Disabled")))
    assert reading.verdict is Verdict.PASS
    assert [(f.reason, f.kind) for f in reading.findings] == [
        ("persistence_mode_off", FindingKind.CONFIGURATION)
    ]


def test_a_gpu_on_record_that_is_not_shown_is_lost():
    expected = (part("gpu0", "GPU-a", "0000:1a:00"), part("gpu1", "GPU-b", "00000000:3B:00.0"))
    reading = state(document(gpu()), expected=expected)
    assert reading.verdict is Verdict.FAIL
    (lost,) = reading.hardware_findings()
    assert (lost.part, lost.reason, lost.treatment) == ("0000:3b:00", "gpu_lost", Treatment.REBOOT)


def test_a_new_part_in_the_same_place_is_not_lost():
    expected = (part("gpu0", "GPU-old", "0000:1a:00"),)
    assert state(document(gpu()), expected=expected).verdict is Verdict.PASS


def test_fewer_gpus_listed_than_attached_is_no_pass():
    assert state(document(gpu(), attached=8)).verdict is Verdict.INCONCLUSIVE


@given(share=st.floats(0.0, 0.99))
def test_a_cut_document_is_never_a_verdict(share):
    text = document(gpu(dram="1"))
    expected = (part("gpu0", "GPU-a", "0000:1a:00"), part("gpu1", "GPU-b", "0000:3b:00"))
    cut = text[: int(len(text.rstrip()) * share)]
    assert state(cut, expected=expected).verdict is Verdict.INCONCLUSIVE


def test_an_exit_status_beside_a_clean_document_is_no_pass():
    assert state(document(gpu()), exit_code=15).verdict is Verdict.INCONCLUSIVE


def test_text_form_reads_like_the_xml(real):
    reading = state(real("query_remap_pending_ecc_unknown.txt"), exit_code=None)
    assert reading.verdict is Verdict.FAIL
    (found,) = reading.hardware_findings()
    assert (found.part, found.reason) == ("0000:52:00", "row_remap_pending")
    assert state(real("query_page_retirement.txt"), exit_code=None).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("spelling", "bus"),
    [
        ("GPU 0000:02:00.0: GPU is lost. Reboot the system to recover this GPU", "0000:02:00"),
        ("GPU0000:07:00.0: Unknown Error", "0000:07:00"),
        ("GPU 000:BA:80.0: Unknown Error", "0000:ba:80"),
        ("gpu 0000:18:00.0: Unknown Error", "0000:18:00"),
    ],
)
def test_a_gpu_without_a_handle_is_lost_in_every_spelling(spelling, bus):
    text = f"Unable to determine the device handle for {spelling}\n"
    reading = state(text, exit_code=15)
    assert reading.verdict is Verdict.FAIL
    (lost,) = reading.hardware_findings()
    assert (lost.part, lost.reason, lost.treatment) == (bus, "gpu_lost", Treatment.REBOOT)


@pytest.mark.parametrize(
    ("text", "exit_code", "reason"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "driver_mismatch"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9,
         "driver_unreachable"),
        ("No devices were found", 6, "no_devices"),
        ("", 0, "tool_error"),
    ],
)  # fmt: skip
def test_a_tool_that_cannot_answer_is_inconclusive(text, exit_code, reason):
    reading = state(text, exit_code=exit_code, expected=(part("gpu0", "GPU-a", "0000:1a:00"),))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert [f.reason for f in reading.findings] == [reason]


def test_a_list_with_a_hole_keeps_its_indices_and_its_lost_gpu():
    text = (
        "Unable to determine the device handle for gpu 0000:18:00.0: Unknown Error\n"
        "GPU 1: NVIDIA H200 (UUID: GPU-fe82a153-ce00-b539-9b03-6e836b6dba53)\n"
    )
    reading = nvidia_smi.read(text, exit_code=0)
    assert [f.part for f in reading.hardware_findings()] == ["0000:18:00"]


# --- reset -------------------------------------------------------------------------------------


def test_a_reset_that_was_done_says_nothing_of_health():
    text = "All done.\nGPU 00000000:1A:00.0 was successfully reset.\n"
    assert nvidia_smi.read_reset(text, exit_code=0).outcome is Outcome.SUCCEEDED
    assert nvidia_smi.read(text, exit_code=0).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("text", "exit_code", "outcome"),
    [
        (IN_USE, 255, Outcome.PERMANENT),
        (LOST, 15, Outcome.PERMANENT),
        ("Unable to reset GPU", 255, Outcome.PERMANENT),
        ("", 0, Outcome.AMBIGUOUS),
        ("", 137, Outcome.AMBIGUOUS),
        ("", None, Outcome.AMBIGUOUS),
        ("GPU 00000000:1A:00.0 was successfully reset.", 255, Outcome.AMBIGUOUS),
    ],
)
def test_a_reset_is_done_refused_or_not_to_be_known(text, exit_code, outcome):
    assert nvidia_smi.read_reset(text, exit_code=exit_code).outcome is outcome


def test_a_refused_reset_is_no_statement_about_the_hardware():
    reading = nvidia_smi.read(IN_USE, exit_code=255)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert [(f.part, f.reason) for f in reading.findings] == [
        ("0000:1a:00", "reset_refused_in_use")
    ]


# --- links -------------------------------------------------------------------------------------


def links(*gpus):
    lines = []
    for index, states in enumerate(gpus):
        lines.append(f"GPU {index}: NVIDIA H200 (UUID: GPU-{index})")
        lines += [f"\t Link {n}: {'26.562 GB/s' if up else '<inactive>'}" for n, up in states]
    return "\n".join(lines)


UP = [(n, True) for n in range(4)]


def test_links_that_are_up_pass():
    reading = nvidia_smi.read_nvlink(links(UP, UP), exit_code=0, gpus=2)
    assert reading.verdict is Verdict.PASS
    assert {m.value for m in reading.measurements} == {26.562}


def test_one_link_down_blames_its_gpu():
    reading = nvidia_smi.read_nvlink(links(UP, [*UP[:3], (3, False)]), exit_code=0)
    assert reading.verdict is Verdict.FAIL
    (down,) = reading.hardware_findings()
    assert (down.part, down.reason, down.treatment) == ("1", "nvlink_down", Treatment.RESET)


def test_all_links_inactive_fail_only_where_links_are_expected():
    text = (
        "GPU 6: NVIDIA A100-SXM4-80GB (UUID: GPU-f1)\n"
        "NVML: Unable to retrieve NVLink information as all links are inactive\n"
    )
    assert nvidia_smi.read_nvlink(text, exit_code=0).verdict is Verdict.INCONCLUSIVE
    expected = nvidia_smi.read_nvlink(text, exit_code=0, links_per_gpu=12)
    assert expected.verdict is Verdict.FAIL


def test_links_that_are_not_shown_are_not_up():
    assert nvidia_smi.read_nvlink(links(UP, UP[:2]), exit_code=0).verdict is Verdict.INCONCLUSIVE
    assert nvidia_smi.read_nvlink(links(UP), exit_code=0, gpus=8).verdict is Verdict.INCONCLUSIVE


@given(text=st.text(max_size=200))
def test_no_other_text_is_a_pass(text):
    assert nvidia_smi.read(text, exit_code=0).verdict is not Verdict.PASS
