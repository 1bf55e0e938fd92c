"""The event log of a board: what stands, what is over, and what nobody knows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import ipmi_sel


def row(sensor, event, word="Asserted", *, number=1, more=""):
    return f" {number:3x} | 01/18/2023 | 14:49:30 | {sensor} | {event} | {word}{more}\n"


PRESENT = row("Power Supply #0xa1", "Presence detected")
FATAL = row("Critical Interrupt #0x90", "Bus Fatal Error", number=2)


def read(text, *, exit_code=None):
    return ipmi_sel.read(text, exit_code=exit_code)


def reasons(reading):
    return {(f.part, f.reason) for f in reading.findings}


@pytest.mark.parametrize(
    ("sensor", "event", "reason", "category"),
    [
        ("Critical Interrupt #0x90", "Bus Fatal Error", "bus_fatal_error", Category.HOST),
        ("Critical Interrupt PCIe", "PCI SERR", "bus_fatal_error", Category.HOST),
        ("Memory #0x02", "Uncorrectable ECC (@DIMM4B(CPU1))", "memory_uncorrected",
         Category.HOST),
        ("Processor CPU0", "IERR", "processor_error", Category.HOST),
        ("Processor CPU0", "Thermal Trip", "thermal_trip", Category.THERMAL),
        ("Power Supply PSU3", "Failure detected", "power_supply_failed", Category.HOST),
        ("Power Supply PSU3", "Power Supply AC lost", "power_supply_input_lost", Category.HOST),
        ("Drive Slot / Bay #0x21", "Drive Fault", "drive_fault", Category.STORAGE),
        ("Temperature Inlet", "Upper Critical going high", "thermal_critical", Category.THERMAL),
        ("Fan FAN_7", "Lower Non-recoverable going low ", "thermal_critical", Category.THERMAL),
        ("Voltage P12V", "Lower Critical going low ", "sensor_critical", Category.HOST),
    ],
)  # fmt: skip
def test_a_fault_that_stands_fails_by_its_kind(sensor, event, reason, category):
    reading = read(PRESENT + row(sensor, event, more=" | Reading 9 > Threshold 8"))
    assert (reading.verdict, reading.category) == (Verdict.FAIL, category)
    assert reason in {f.reason for f in reading.findings}


def test_an_event_that_was_deasserted_is_over():
    text = row("Temperature Inlet", "Upper Critical going high")
    assert read(
        text + row("Temperature Inlet", "Upper Critical going high", "Deasserted")
    ).verdict is (Verdict.PASS)
    again = text.replace("Asserted", "Deasserted") + text
    assert read(again).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("sensor", "event", "reason"),
    [
        ("Voltage #0x4d", "Upper Non-critical going high", "sensor_non_critical"),
        ("Memory DIMM", "Correctable ECC", "memory_corrected"),
        ("Power Supply", "Predictive failure", "predictive_failure"),
    ],
)
def test_what_is_no_fault_yet_is_a_warning_beside_a_pass(sensor, event, reason):
    reading = read(row(sensor, event) + PRESENT)
    assert reading.verdict is Verdict.PASS
    assert reading.why.endswith("warnings stand: 1")
    assert (reason, Severity.WARNING) in {(f.reason, f.severity) for f in reading.findings}
    faulty = read(row(sensor, event) + FATAL)
    assert (faulty.verdict, faulty.category) == (Verdict.FAIL, Category.HOST)


def test_what_followed_the_newest_warning_is_not_known_yet():
    newest = read(PRESENT + row("Voltage #0x4d", "Upper Non-critical going high"))
    assert newest.verdict is Verdict.INCONCLUSIVE
    assert ("Voltage", "newest_is_warning") in reasons(newest)


def test_what_nobody_knows_is_no_verdict():
    reading = read(row("Something new", "Flux went bad"))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert [(f.reason, f.kind) for f in reading.findings] == [
        ("sel_event_unknown", FindingKind.TOOL)
    ]


@pytest.mark.parametrize(
    ("sensor", "event"),
    [
        ("Event Logging Disabled #0x07", "Log area reset/cleared"),
        ("Drive Slot / Bay #0x21", "Drive Present"),
        ("System ACPI Power State", "S0/G0: working"),
        ("System Boot Initiated", "Initiated by power up"),
        ("System Firmware Progress #0x05", "Motherboard initialization"),
        ("System Event", "Timestamp Clock Sync"),
        ("OS Stop/Shutdown", "Run-time critical stop"),
    ],
)
def test_notes_are_kept_and_change_nothing(sensor, event):
    reading = read(row(sensor, event))
    assert reading.verdict is Verdict.PASS
    assert len(reading.findings) == 1


def test_a_record_of_the_vendor_is_a_note():
    assert read(PRESENT + "   b | OEM record dd | 000137 | 010203040506\n").verdict is Verdict.PASS


def test_an_empty_log_passes_and_a_silent_board_does_not():
    assert read("SEL has no entries\n").verdict is Verdict.PASS
    dead = read("Could not open device at /dev/ipmi0: No such file or directory\n", exit_code=1)
    assert (dead.verdict, reasons(dead)) == (Verdict.INCONCLUSIVE, {(None, "bmc_unreachable")})
    assert read("hello\n").verdict is Verdict.INCONCLUSIVE


def test_commas_and_the_other_tool_mean_the_same():
    commas = FATAL.replace(" | ", ",").replace("  2,", "2,").strip() + "\n"
    assert ("Critical Interrupt", "bus_fatal_error") in reasons(read(commas))
    head = "ID  | Date        | Time     | Name       | Type               | Event\n"
    rows = "7   | Jan-18-2023 | 14:49:30 | PCIe Err   | Critical Interrupt | {}\n"
    assert read(head + rows.format("Bus Fatal Error")).verdict is Verdict.FAIL
    hot = "8   | Jan-18-2023 | 14:50:30 | Inlet      | Temperature        | {}\n"
    above = "At or Above (>=) Upper Critical Threshold"
    asserted = hot.format(above + " ; Assertion Event")
    assert read(head + asserted).category is Category.THERMAL
    over = asserted + hot.format(above + " ; Deassertion Event")
    assert read(head + over).verdict is Verdict.PASS


def test_the_other_tool_may_show_a_state_beside_each_event():
    head = "ID | Date | Time | Name | Type | State | Event\n"
    row_of = "2  | PostInit | PostInit | PS2 Status | Power Supply | {} | {}\n"
    assert read(head + row_of.format("Nominal", "Presence detected")).verdict is Verdict.PASS
    failed = read(head + row_of.format("Critical", "Power Supply Failure detected"))
    assert "power_supply_failed" in {f.reason for f in failed.findings}


def test_uncorrectable_holds_the_word_correctable():
    reading = read(row("Processor #0x40", "Uncorrectable machine check exception"))
    assert reasons(reading) == {("Processor", "processor_error")}
    corrected = read(row("Processor #0x40", "Correctable machine check error") + PRESENT)
    assert corrected.verdict is Verdict.PASS
    assert ("Processor", "mce_corrected") in reasons(corrected)


def test_the_same_fault_many_times_is_one_finding():
    rows = "".join(FATAL.replace("14:49", f"14:{m:02}") for m in range(10, 40))
    assert len(read(rows).findings) == 1


def test_a_row_before_the_clock_was_set_is_a_row():
    text = "  3 | Pre-Init  |0000000013| Critical Interrupt #0x90 | Bus Fatal Error | Asserted\n"
    assert read(text).verdict is Verdict.FAIL


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(FATAL) - 1))
def test_no_prefix_of_a_failing_row_passes(at):
    assert read(FATAL[:at]).verdict is not Verdict.PASS
