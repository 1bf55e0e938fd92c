"""Marks say whose they are."""

import pytest

from sickbay.domain.gate import is_ours, mark_of, withheld_mark


@pytest.mark.parametrize("mark", [mark_of("n001.abc"), withheld_mark("n001")])
def test_what_we_place_is_ours(mark):
    assert is_ours(mark)


@pytest.mark.parametrize(
    "mark", ["", "kernel update", "Sickbay:n001", " sickbay:n001", "by sickbay: n001", "sickbay"]
)
def test_what_only_resembles_ours_is_anothers(mark):
    assert not is_ours(mark)


def test_a_withheld_node_and_its_repair_have_marks_of_their_own():
    assert mark_of("n001") != withheld_mark("n001")
