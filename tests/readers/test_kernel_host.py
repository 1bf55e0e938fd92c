"""What a kernel log says beside the Xids, and the corpus of awkward lines."""

import pytest

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import kernel_log


def read(*lines):
    return kernel_log.read("".join(f"{line}\n" for line in lines), exit_code=None)


def found(reading):
    return {(f.part, f.reason) for f in reading.findings}


FAULTS = [
    ("pcieport 0000:16:01.0: AER: Uncorrectable (Fatal) error message received from 0000:17:00.0",
     "0000:17:00", "pcie_aer_fatal", Category.INTERCONNECT),
    ("nvidia 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
     "0000:17:00", "pcie_aer_fatal", Category.INTERCONNECT),
    ("pcieport 0000:16:01.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:17:00.0",
     "0000:17:00", "pcie_aer_uncorrected", Category.INTERCONNECT),
    ("pcieport 0000:16:01.0: DPC: containment event, status:0x1f01 source:0x0000",
     "0000:16:01", "pcie_link_contained", Category.INTERCONNECT),
    ("mlx5_core 0000:a1:00.0: poll_health:801:(pid 0): device's health compromised - reached miss",
     "0000:a1:00", "nic_firmware_fatal", Category.FABRIC),
    ("mlx5_core 0000:a1:00.1: Port module event: module 1, Cable unplugged",
     "0000:a1:00", "cable_unplugged", Category.FABRIC),
    ("mlx5_core 0000:a1:00.0: mlx5_pcie_event:301: Detected insufficient power on the PCIe slot",
     "0000:a1:00", "nic_power_insufficient", Category.FABRIC),
    ("I/O error, dev nvme4n1, sector 8 op 0x0:(READ) flags 0x80700", "nvme4n1", "io_error",
     Category.STORAGE),
    ("blk_update_request: critical medium error, dev sdc, sector 99", "sdc", "io_error",
     Category.STORAGE),
    ("Buffer I/O error on dev sdc1, logical block 7, async page read", "sdc1", "io_error",
     Category.STORAGE),
    ("nvme nvme4: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff", "nvme4",
     "nvme_controller_down", Category.STORAGE),
    ("EXT4-fs error (device nvme4n1p2): ext4_find_entry:1455: inode #2", "nvme4n1p2",
     "filesystem_error", Category.STORAGE),
    ("md/raid1:md0: Disk failure on sdb2, disabling device.", "sdb2", "disk_failed",
     Category.STORAGE),
    ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 1: b200000000070005", None,
     "mce_uncorrected", Category.HOST),
    ("EDAC MC2: 1 UE memory read error on DIMM_C1 (channel:1 slot:0 page:0x1)", "DIMM_C1",
     "memory_uncorrected", Category.HOST),
]  # fmt: skip


@pytest.mark.parametrize(("line", "part", "reason", "category"), FAULTS)
def test_a_fault_of_the_host_names_its_part_and_category(line, part, reason, category):
    reading = read(f"[    9.1] {line}")
    assert (reading.verdict, reading.category) == (Verdict.FAIL, category)
    assert found(reading) == {(part, reason)}


@pytest.mark.parametrize("line", [line for line, *_ in FAULTS])
def test_the_same_words_of_a_program_are_no_fault(line):
    assert read(f"Feb  3 11:02:09 gpu-17 monitor[7]: {line}").verdict is Verdict.PASS
    assert read(f"[    9.1] systemd[1]: message: {line}").hardware_findings() == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("pcieport 0000:16:01.0: AER: Corrected error received: 0000:17:00.0",
         "pcie_aer_corrected"),
        ("mce: [Hardware Error]: Machine check events logged", "mce_corrected"),
        ("EDAC MC0: 4 CE memory read error on DIMM_A1 (channel:0)", "memory_corrected"),
        ("Out of memory: Killed process 4122 (trainer) total-vm:912kB", "oom_kill"),
        ("__ratelimit: 44 callbacks suppressed", "lines_suppressed"),
    ],
)  # fmt: skip
def test_what_was_corrected_or_is_a_jobs_own_is_told_beside_a_pass(line, reason):
    reading = read(f"[    9.1] {line}")
    assert reading.verdict is Verdict.PASS
    assert [f.reason for f in reading.findings] == [reason]
    assert all(f.severity is Severity.INFO and f.treatment is None for f in reading.findings)


def test_a_driver_that_does_not_match_its_library_makes_every_gpu_unknown():
    reading = read(
        "[    9.1] NVRM: API mismatch: the client has the version 560.35, but",
        "[    9.1] NVRM: this kernel module has the version 570.86.  Please make sure",
    )
    assert (reading.verdict, reading.category) == (Verdict.INCONCLUSIVE, Category.SOFTWARE)
    (only,) = reading.findings
    assert (only.reason, only.kind) == ("driver_mismatch", FindingKind.CONFIGURATION)


def test_an_array_does_not_take_the_blame_of_its_disk():
    reading = read(
        "[    9.1] XFS (md5): log I/O error -5",
        "[    9.1] I/O error, dev nvme4n1, sector 8 op 0x0:(READ)",
    )
    blamed = [f.part for f in reading.hardware_findings() if f.severity is not Severity.INFO]
    assert blamed == ["nvme4n1"]


def test_a_virtual_disk_is_no_disk():
    assert read("[    9.1] I/O error, dev loop7, sector 0 op 0x0:(READ)").findings == ()


def test_what_pcie_says_of_a_lost_gpu_follows_from_the_loss():
    reading = read(
        "[    9.1] pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0",
        "[    9.2] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
    )
    assert reading.why.startswith("xid_79")
    grave = [f.reason for f in reading.findings if f.severity is not Severity.INFO]
    assert grave == ["xid_79"]


# --- links -------------------------------------------------------------------------------------


def carrier(name, *events):
    return [
        f"Feb  3 {clock} gpu-17 systemd-networkd[401]: {name}: {word} carrier"
        for clock, word in events
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (carrier("ib2", ("11:00:00", "lost"), ("11:00:05", "Gained")), set()),
        (carrier("ib2", ("11:00:00", "Lost"), ("11:00:05", "Gained"), ("11:40:00", "Lost"),
                 ("11:40:02", "Gained")), {("ib2", "link_flap")}),
        (carrier("ib2", ("01:00:00", "Lost"), ("01:00:05", "Gained"), ("11:40:00", "Lost"),
                 ("11:40:02", "Gained")), set()),
        (carrier("ib2", ("11:00:00", "Lost")), {("ib2", "link_down")}),
        (carrier("cali77ab", ("11:00:00", "Lost"), ("11:00:01", "Lost")), set()),
        (["[ 1.0] mlx5_core 0000:a1:00.0 ens7: Link down",
          "[ 2.0] mlx5_core 0000:a1:00.0 ens7: Link up",
          "[ 3.0] mlx5_core 0000:a1:00.0 ens7: Link down"], {("0000:a1:00", "link_flap")}),
        (["Feb  3 11:00:00 gpu-17 sshd[4]: ib2: lost carrier"], set()),
    ],
)  # fmt: skip
def test_a_link_flaps_when_it_goes_down_twice_within_an_hour(lines, expected):
    reading = read(*lines)
    assert found(reading) == expected
    assert reading.verdict is (Verdict.FAIL if expected else Verdict.PASS)


# --- switches ----------------------------------------------------------------------------------


def test_the_fabric_managers_word_on_a_switch():
    head = "[Feb 03 2026 11:02:09] [ERROR] [tid 12] detected NVSwitch"
    where = "on fid 0 on NVSwitch pci bus id 00000000:c7:00.0 physical id 2 port 5"
    warned = read(f"{head} non-fatal error 12033 {where}")
    assert warned.verdict is Verdict.PASS
    assert found(warned) == {("0000:c7:00", "nvswitch_nonfatal_12033")}
    assert warned.findings[0].severity is Severity.WARNING
    failed = read(f"{head} fatal error 24007 {where}")
    assert (failed.verdict, failed.category) == (Verdict.FAIL, Category.FABRIC)


# --- the GPU driver's sentences ----------------------------------------------------------------

THREE = (
    "NVRM: The NVIDIA GPU 0000:5d:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def test_a_sentence_over_three_lines_survives_its_heads_and_what_stands_between():
    lines = [f"Feb  3 11:02:09 gpu-17 kernel: {line}" for line in THREE]
    lines.insert(1, "Feb  3 11:02:09 gpu-17 kernel: usb 1-1: reset high-speed USB device")
    assert found(read(*lines)) == {("0000:5d:00", "gpu_lost")}


@pytest.mark.parametrize("kept", [1, 2])
def test_a_sentence_that_the_log_breaks_off_is_no_pass(kept):
    reading = read(*THREE[:kept])
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert found(reading) == {("0000:5d:00", "truncated")}


def test_a_gpu_that_is_announced_without_its_event_is_no_pass():
    line = "[ 1.0] NVRM: GPU at PCI:0000:5d:00: GPU-0f00"
    assert read(line).verdict is Verdict.INCONCLUSIVE
    assert read(line, "[ 1.1] NVRM: Xid (PCI:0000:5d:00): 13, pid=1, x").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("line", "part", "reason"),
    [
        ("NVRM: GPU 0000:5d:00.0: RmInitAdapter failed! (0x62:0x40:2393)", "0000:5d:00",
         "gpu_init_failed"),
        ("NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x1, requiring", None,
         "uvm_fatal"),
        ("NVRM: rm_ioctl: GPU lost from the bus [NV_ERR_GPU_IS_LOST]", None, "gpu_lost"),
    ],
)  # fmt: skip
def test_sentences_without_an_xid_still_ask_for_a_reboot(line, part, reason):
    (only,) = read(line).findings
    assert (only.part, only.reason, only.treatment) == (part, reason, Treatment.REBOOT)


def test_a_link_that_went_down_for_a_reason_nvidia_ignores_asks_for_nothing():
    def gb200(register):
        return read(
            f"NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x{register}"
            " 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
        )

    assert gb200("021405c6").verdict is Verdict.FAIL
    ignored = gb200("026405c6")
    assert ignored.verdict is Verdict.PASS
    assert [(f.reason, f.treatment) for f in ignored.findings] == [("xid_149", None)]


def test_the_driver_may_ask_for_more_than_the_code():
    fault = "NVRM: Xid (PCI:0000:5d:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC"
    asked = (
        "NVRM: Xid (PCI:0000:5d:00): 154, GPU recovery action changed from 0x0 (None) to 0x2"
        " (Node Reboot Required)"
    )
    assert [f.treatment for f in read(fault).findings] == [Treatment.RESET]
    assert [f.treatment for f in read(fault, asked).findings] == [Treatment.REBOOT]


# --- cases -------------------------------------------------------------------------------------


def test_c41_kernel_line_corpus():
    lines = [
        "NVRM: Xid (PCI:0000:cc:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp",
        "NVRM: Xid (PCI:0000:cd:00): 109, pid=9, name=worker, Ch 00000008, CTX SWITCH TIMEOUT",
        "NVRM: Xid (PCI:0002:01:00): 119, pid=8, name=nvc:[driver], waiting for RPC from GPU1 GSP!",
        "NVRM: Xid (PCI:0000:9c:00): 94, pid=7, name=python3, Contained ECC error",
        "NVRM: Xid (PCI:0000:45:00): 79, GPU has fallen off the bus",
        *THREE,
        "NVRM: GPU 0000:a2:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:45:00.0: GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0019:02:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0 0x0 0x0 0x0)",
        "NVRM: Xid (PCI:0018:02:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x8)",
        "NVRM: Xid (PCI:0000:dd:00): 45, pid=6, name=python3, Ch 01 caused by previous Xid 149",
        "NVRM: _fabricNotifyEvent: Unable to notify ImexSessionApi",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping",
        "XidCriticalError: Xid=69 on Device=GPU-00, the device will go unhealthy.",
    ]
    reading = read(*lines)
    said = {(f.part, f.reason): f for f in reading.findings}
    assert set(said) == {
        ("0000:cc:00", "xid_13"),
        ("0000:cd:00", "xid_109"),
        ("0002:01:00", "xid_119"),
        ("0000:9c:00", "xid_94"),
        ("0000:45:00", "xid_79"),
        ("0000:5d:00", "gpu_lost"),
        ("0000:a2:00", "gpu_lost"),
        ("0019:02:00", "xid_149"),
        ("0018:02:00", "xid_145"),
        ("0000:dd:00", "xid_149"),
        ("0000:dd:00", "xid_45"),
    }
    assert said["0000:cc:00", "xid_13"].kind is FindingKind.APPLICATION
    assert said["0000:cd:00", "xid_109"].treatment is Treatment.RESET
    assert said["0002:01:00", "xid_119"].treatment is Treatment.RESET
    assert said["0000:9c:00", "xid_94"].severity is Severity.WARNING
    assert said["0018:02:00", "xid_145"].severity is Severity.WARNING
    assert said["0018:02:00", "xid_145"].treatment is None
    assert said["0000:dd:00", "xid_45"].kind is FindingKind.APPLICATION
    assert reading.verdict is Verdict.FAIL


def test_c42_the_kernel_tells_a_remap_from_one_that_failed():
    remapped = read("NVRM: Xid (PCI:0000:3c:00): 63, pid=1, Row Remapper: New row marked")
    (pending,) = remapped.findings
    assert (pending.severity, pending.treatment) == (Severity.WARNING, Treatment.RESET)
    (failed,) = read("NVRM: Xid (PCI:0000:3c:00): 64, pid=1, Row Remapper: Failed").findings
    assert (failed.category, failed.treatment) == (Category.MEMORY, Treatment.SWAP)
