"""What a kernel line means for the node."""

import pytest

from sickbay.domain.node import Treatment
from sickbay.scoring.xid import (
    XidGate,
    XidLine,
    gate_of,
    is_consequence,
    meaning_of,
    parse_line,
    recovery_code,
)


@pytest.mark.parametrize(
    ("text", "bus_id", "code", "pid"),
    [
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, Row Remapper", "0000:10:1c", 63, "1850"),
        ("Xid (PCI:0000:86:00): 94, pid='<unknown>', Contained\r", "0000:86:00", 94, ""),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained", "0000:01:00", 94, "7194"),
        ("NVRM: Xid (0000:3b:00): 48, An uncorrectable error", "0000:3b:00", 48, ""),
        ("NVRM: Xid (PCI:00000000:AF:00.0): 79, fallen", "0000:af:00", 79, ""),
        ("NVRM: GPU at PCI:0000:b3:00.0 has fallen off the bus.", "0000:b3:00", 79, ""),
    ],
)  # fmt: skip
def test_lines_with_a_device_are_read(text, bus_id, code, pid):
    line = parse_line(text)
    assert line is not None
    assert (line.bus_id, line.code, line.pid) == (bus_id, code, pid)


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress",
        "NVRM: Xid error: 32 somewhere",
        "NVRM: API mismatch: the client has the version 1",
        "",
    ],
)
def test_lines_without_an_xid_of_a_device_are_not_guessed(text):
    assert parse_line(text) is None


@pytest.mark.parametrize(
    ("code", "gate", "treatment"),
    [
        (13, XidGate.APPLICATION, None),
        (43, XidGate.APPLICATION, None),
        (45, XidGate.APPLICATION, None),
        (48, XidGate.FATAL, Treatment.RESET),
        (64, XidGate.FATAL, Treatment.SWAP),
        (79, XidGate.FATAL, Treatment.REBOOT),
        (94, XidGate.SOFT, Treatment.RESET),
        (95, XidGate.FATAL, Treatment.RESET),
        (119, XidGate.FATAL, Treatment.RESET),
        (154, XidGate.SUSPECT, None),
        (7, XidGate.UNKNOWN, None),
        (4711, XidGate.UNKNOWN, None),
    ],
)
def test_the_table(code, gate, treatment):
    assert meaning_of(code).gate is gate
    assert meaning_of(code).treatment is treatment


def test_xid_74_is_decided_by_its_registers():
    def line(first: str) -> XidLine:
        return XidLine("0000:01:00", 74, "", f"Xid (PCI:0000:01:00): 74, NVLink {first} 0x0 0x0")

    assert gate_of(line("0x10000")) is XidGate.FATAL
    assert gate_of(line("0x1")) is XidGate.NOTE
    assert gate_of(line("0x10")) is XidGate.SOFT
    assert gate_of(XidLine("", 74, "", "")) is XidGate.SUSPECT


def test_nvlink_five_follows_its_own_word():
    assert gate_of(XidLine("", 145, "", "145, RLW_RXDET Nonfatal XC0 i0")) is XidGate.SOFT
    assert gate_of(XidLine("", 149, "", "149, NETIR_LINK Fatal XC0 i0")) is XidGate.FATAL
    assert gate_of(XidLine("", 149, "", "")) is XidGate.SUSPECT


def test_154_carries_its_code_before_its_words():
    text = "154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"
    assert recovery_code(text) == 2
    assert recovery_code("154, something") is None


def test_consequences_need_their_cause():
    assert is_consequence(154, [79])
    assert is_consequence(171, [48])
    assert not is_consequence(171, [79])
    assert not is_consequence(94, [])
    assert not is_consequence(48, [79])
