import pytest

from sickbay.domain.node import Category, Treatment
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import kernel_log


def read(text):
    return kernel_log.read(text, exit_code=None)


def hardware(reading):
    return {(f.part, f.reason, f.treatment) for f in reading.hardware_findings()}


@pytest.mark.parametrize(
    ("name", "blamed"),
    [
        ("log_154_new_wording_r610.txt",
         {("0000:01:00", "xid_79", Treatment.REBOOT), ("0000:0d:00", "xid_154", Treatment.RESET)}),
        ("log_48_63_94_dbe_row_remap_chain.txt", {("0000:52:00", "xid_48", Treatment.RESET)}),
        ("log_79_dump_154_node_reboot_dmesgT.txt", {("0000:02:00", "xid_79", Treatment.REBOOT)}),
        ("log_79_without_pid_plus_154_and_uvm_fatal.txt",
         {("0000:04:00", "xid_79", Treatment.REBOOT)}),
        ("log_consumer_31_62_45_cascade.txt", {("0000:0a:00", "xid_62", Treatment.RESET)}),
        ("log_kmsg_fallen_off_bus_without_xid.txt",
         {("0000:b3:00", "gpu_lost", Treatment.REBOOT)}),
        ("log_dmesg_gb200_nvlink5_149_154_drain_then_reset.txt",
         {("0009:01:00", "xid_149", Treatment.RESET), ("0008:01:00", "xid_149", Treatment.RESET),
          ("0018:01:00", "xid_154", Treatment.RESET), ("0019:01:00", "xid_154", Treatment.RESET)}),
        ("log_gb200_nonfatal_and_fatal.txt",
         {("0008:01:00", "xid_149", Treatment.RESET), ("0018:01:00", "xid_149", Treatment.RESET),
          ("0008:01:00", "xid_145", None), ("0018:01:00", "xid_145", None)}),
        ("log_gb_45_caused_by_previous.txt", {("0000:dc:00", "xid_149", Treatment.RESET)}),
        ("log_sxid_79_with_nvswitch_20034.txt", {("0000:91:00", "xid_79", Treatment.REBOOT)}),
    ],
)  # fmt: skip
def test_one_incident_blames_one_part(real, name, blamed):
    reading = read(real(name))
    assert reading.verdict is Verdict.FAIL
    assert hardware(reading) == blamed


def test_errors_of_jobs_are_kept_apart_from_a_contained_memory_error(real):
    reading = read(real("log_akash_vm_h100_43_31_94.txt"))
    assert {(f.part, f.reason) for f in reading.hardware_findings()} == {("0000:00:08", "xid_94")}
    jobs = {(f.part, f.reason) for f in reading.findings if f.kind is FindingKind.APPLICATION}
    assert jobs == {("0000:00:05", "xid_43"), ("0000:00:07", "xid_31")}
    assert reading.category is Category.MEMORY


def test_a_gpu_instance_is_the_same_gpu(real):
    reading = read(real("log_mig_94_contained_gpu_instance.txt"))
    assert {f.part for f in reading.findings} == {"0000:01:00"}
    assert len(reading.findings) == 1


def test_errors_of_jobs_alone_do_not_fail():
    reading = read("NVRM: Xid (PCI:0000:1a:00): 31, pid=7, name=python, Ch 8, MMU Fault")
    assert reading.verdict is Verdict.PASS
    assert not reading.hardware_findings()


def test_a_reboot_wanted_by_all_after_one_was_lost_blames_only_the_lost_one():
    text = "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n" + "\n".join(
        f"NVRM: Xid (PCI:0000:{bus}:00): 154, GPU recovery action changed from 0x0 (None)"
        " to 0x2 (Node Reboot Required)"
        for bus in ("1a", "3b", "5d")
    )
    assert hardware(read(text)) == {("0000:1a:00", "xid_79", Treatment.REBOOT)}


def test_a_recovery_action_taken_back_is_none():
    text = (
        "NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (x)\n"
        "NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x1 (x) to 0x0 (None)\n"
    )
    assert read(text).verdict is Verdict.PASS


def test_a_code_nobody_described_is_no_verdict():
    reading = read("NVRM: Xid (PCI:0000:1a:00): 9999, something new")
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reading.findings[0].kind is FindingKind.TOOL


def test_a_fatal_switch_event_alone_fails_the_fabric_and_is_no_xid():
    text = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
    reading = read(text)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.FABRIC)
    assert [(f.part, f.reason) for f in reading.findings] == [("0000:06:00", "sxid_20034")]


def test_a_switch_event_that_is_not_fatal_is_a_warning_beside_a_pass():
    reading = read("nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress")
    assert reading.verdict is Verdict.PASS
    assert [(f.reason, f.severity) for f in reading.findings] == [("sxid_12028", "warning")]


@pytest.mark.parametrize(
    "line",
    [
        "<6>4,1234,567890,-;NVRM: Xid (PCI:0000:86:00): 95, pid='<unknown>', Uncontained",
        "May 19 07:08:57 host kernel: [680111.6] NVRM: Xid (PCI:00000000:86:00.0): 95, x\r",
        "Xid (0000:86:00): 95, x",
    ],
)
def test_every_spelling_of_a_line_is_read(line):
    assert {f.part for f in read(line).hardware_findings()} == {"0000:86:00"}


def test_lines_without_a_device_are_not_guessed():
    assert not read("NVRM: Xid : 32, something\nNVRM: Xid error: 79").findings


def test_silence_passes_only_when_there_was_text():
    assert read("").verdict is Verdict.INCONCLUSIVE
    assert read("[1.0] Linux version 6.8").verdict is Verdict.PASS
