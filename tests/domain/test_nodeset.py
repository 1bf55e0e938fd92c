"""Hostlists: what is written is what is meant, and what is shown can be pasted back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.nodeset import expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[001-003,007]", ("n001", "n002", "n003", "n007")),
        ("a, b", ("a", "b")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n1,n1", ("n1",)),
    ],
)
def test_a_hostlist_expands(text, names):
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[3-1]", "n[a-b]", "n[[1]]"])
def test_nonsense_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        expand(text)


names = st.builds(lambda p, n, w: f"{p}{n:0{w}d}", st.sampled_from("nab"), st.integers(0, 300),
                  st.sampled_from([1, 3, 4]))  # fmt: skip


@given(st.sets(names, max_size=40))
def test_folding_then_expanding_gives_the_same_names(found):
    assert set(expand(fold(found))) == found
