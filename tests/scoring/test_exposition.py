"""A page becomes numbers; blanks, words and foreign lines never do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.signal import Absence
from sickbay.readers.exposition import PageReader, number

TEMP, CLOCK = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK"
LABELS = 'gpu="3",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",device="nvidia3",modelName="H200"'


def reader():
    return PageReader(frozenset({TEMP, CLOCK}))


def test_a_part_is_keyed_by_its_uuid_and_keeps_its_address():
    (part,) = reader().read(
        f"# HELP x\n# TYPE x gauge\n{TEMP}{{{LABELS}}} 61\n{CLOCK}{{{LABELS}}} 1980\n"
    )
    assert (part.uuid, part.index, part.bus_id) == ("GPU-a", "3", "0000:1a:00")
    assert part.values == {TEMP: 61.0, CLOCK: 1980.0}


@pytest.mark.parametrize(
    ("text", "absence"),
    [
        ("9223372036854775792", Absence.MISSING),
        ("9223372036854775794", Absence.UNSUPPORTED),
        ("9223372036854775795", Absence.UNREADABLE),
        ("9.223372036854775808e18", Absence.MISSING),
        ("2147483632", Absence.MISSING),
        ("2147483634", Absence.UNSUPPORTED),
        ("140737488355330.0", Absence.UNSUPPORTED),
        ("NaN", Absence.MISSING),
        ("+Inf", Absence.MISSING),
        ("[N/A]", Absence.UNSUPPORTED),
        ("ERR!", Absence.UNREADABLE),
        ("", Absence.MISSING),
        ("hot", Absence.MISSING),
    ],
)
def test_c09_blanks_are_absences(text, absence):
    assert number(" " + text) is absence


def test_a_timestamp_after_the_value_is_no_value():
    assert number(" 61 1733000000000") == 61.0


def test_c38_the_three_absences_stay_apart():
    page = f"{TEMP}{{{LABELS}}} 9223372036854775794\n"
    (part,) = reader().read(page)
    assert part.values == {}
    assert part.absent == {TEMP: Absence.UNSUPPORTED}
    assert CLOCK not in part.absent


def test_slices_strangers_and_unknown_metrics_are_left_out():
    page = (
        f'{TEMP}{{{LABELS},GPU_I_ID="3"}} 61\n'
        f"DCGM_FI_OTHER{{{LABELS}}} 1\n"
        f'{TEMP}{{gpu="1"}} 61\nnode_load1 0.5\n{TEMP} 3\n'
    )
    assert reader().read(page) == ()


@given(st.text(max_size=400))
def test_no_page_makes_the_reader_stumble(text):
    read = reader()
    assert read.read(text) == read.read(text)
