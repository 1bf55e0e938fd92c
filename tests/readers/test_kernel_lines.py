"""Every spelling of a log line is read; what is not the kernel's word is nobody's finding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.reading import Verdict
from sickbay.readers import kernel_log
from sickbay.readers.kernel_lines import FABRIC_MANAGER, KERNEL, parse

LOST = "NVRM: Xid (PCI:0000:3d:00): 79, pid=77, name=trainer, GPU has fallen off the bus."

SPELLINGS = {
    "bare": LOST,
    "dmesg": f"[  812.004512] {LOST}",
    "dmesg -T": f"[Tue Feb  3 11:02:09 2026] {LOST}",
    "dmesg -r": f"<3>[  812.004512] {LOST}",
    "dmesg -x": f"kern  :err   : [  812.004512] {LOST}",
    "dmesg iso": f"2026-02-03T11:02:09,004512+01:00 {LOST}",
    "dmesg -x iso": f"kern  :err   : 2026-02-03T11:02:09,004512+01:00 {LOST}",
    "with a thread": f"[  812.004512] [  T1099] {LOST}",
    "kmsg": f"3,2201,812004512,-;{LOST}",
    "kmsg with its level": f"<3>3,2201,812004512,-,caller=T1099;{LOST}",
    "syslog": f"Feb  3 11:02:09 gpu-17 kernel: {LOST}",
    "syslog with uptime": f"Feb  3 11:02:09 gpu-17 kernel: [  812.004512] {LOST}",
    "syslog iso": f"2026-02-03T11:02:09.004512+01:00 gpu-17 kernel: {LOST}",
    "journal iso": f"2026-02-03T11:02:09+0100 gpu-17 kernel: {LOST}",
    "localised": f"2月 03 11:02:09 gpu-17 kernel: {LOST}",
    "without a date": f"kernel: {LOST}",
    "numbered": f"12  {LOST}",
    "carriage return": f"[  812.004512] {LOST}\r",
    "journal json": (
        '{"__REALTIME_TIMESTAMP":"1770112929004512","_TRANSPORT":"kernel",'
        f'"SYSLOG_IDENTIFIER":"kernel","MESSAGE":"{LOST}"}}'
    ),
}

FORGED = {
    "a program's line": f"Feb  3 11:02:09 gpu-17 python[412]: {LOST}",
    "a program's line without a pid": f"Feb  3 11:02:09 gpu-17 trainer: {LOST}",
    "a program that calls itself kernel": f"Feb  3 11:02:09 gpu-17 kernel[412]: {LOST}",
    "a record that a process wrote": f"12,2201,812004512,-;{LOST}",
    "a level of user space": f"<12>[  812.004512] {LOST}",
    "a facility of user space": f"user  :warn  : [  812.004512] {LOST}",
    "a quoted line": f"> {LOST}",
    "a line in quotes": f'"{LOST}"',
    "in an audit record": f'[  812.004512] audit: type=1400 comm="{LOST}"',
    "in the victim's name": (
        "[  812.004512] NVRM: Xid (PCI:0000:3d:00): 31, pid=77, name=Xid (PCI:0000:3d:00): 79, "
        "GPU has fallen off the bus., Ch 00000010"
    ),
    "journal json of a process": (
        f'{{"_TRANSPORT":"syslog","SYSLOG_IDENTIFIER":"kernel","MESSAGE":"{LOST}"}}'
    ),
    "another tool's opinion": "XidCriticalError: Xid=79 on Device=GPU-0a, will go unhealthy.",
    "over several lines": f"Feb  3 11:02:09 gpu-17 trainer[412]: I saw this:\n  {LOST}\n{LOST}",
}


def read(text):
    return kernel_log.read(f"{text}\n", exit_code=None)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_line_is_the_same_event(spelling):
    reading = read(SPELLINGS[spelling])
    assert reading.verdict is Verdict.FAIL
    assert [(f.part, f.reason) for f in reading.findings] == [("0000:3d:00", "xid_79")]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_recognised_as_a_log(spelling):
    assert kernel_log.recognises(f"{SPELLINGS[spelling]}\n") is (spelling != "numbered")


@pytest.mark.parametrize("forgery", FORGED)
def test_what_the_kernel_did_not_say_blames_nobody(forgery):
    reading = read(FORGED[forgery])
    assert reading.hardware_findings() == ()
    assert reading.verdict is Verdict.PASS


def test_many_bare_lines_are_all_the_kernels():
    assert read("NVRM: nothing\n" * 500 + LOST).verdict is Verdict.FAIL


def test_after_many_lines_of_a_program_a_bare_line_is_nobodys():
    text = "Feb  3 11:02:09 gpu-17 trainer[412]: output:\n" + "more\n" * 500 + LOST
    assert read(text).verdict is Verdict.PASS


def test_a_time_is_comparable_within_one_log():
    def seconds(*raw):
        first, second = (parse(one).at_s for one in raw)
        return second - first

    assert seconds("[   10.5] a", "[   12.0] b") == 1.5
    assert seconds("6,1,10500000,-;a", "6,2,12000000,-;b") == 1.5
    assert seconds("Feb  3 11:02:09 n kernel: a", "Feb  3 12:02:10 n kernel: b") == 3601
    assert seconds("2026-02-03T11:02:09+01:00 n kernel: a", "2026-02-04T11:02:09Z n kernel: b") == (
        86_400
    )


def test_the_fabric_managers_own_file_is_its_own_word():
    line = parse("[Feb 03 2026 11:02:09] [ERROR] [tid 12] detected NVSwitch fatal error 7 on x")
    assert (line.program, line.message.split()[0]) == (FABRIC_MANAGER, "detected")


@given(raw=st.text(max_size=300))
def test_any_line_has_a_message(raw):
    line = parse(raw)
    assert line.program
    assert line.program != KERNEL or line.message in raw


@given(raw=st.text(max_size=400))
def test_any_text_is_read(raw):
    assert kernel_log.read(raw, exit_code=0).verdict in set(Verdict)
