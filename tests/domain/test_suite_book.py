"""The suites as data: what ships fits its times and judges what it must; a wrong book is told."""

import re
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.check import Check, CheckName
from sickbay.domain.node import Category
from sickbay.domain.proof import covers, limits_s, suite_for
from sickbay.domain.suite_book import SHIPPED, Purpose, parse_suites
from sickbay.errors import UsageError

TEXT = resources.files("sickbay.domain").joinpath("suites.toml").read_text(encoding="utf-8")
CATEGORIES = st.lists(st.sampled_from(list(Category)), unique=True, max_size=4)


def seconds(suite):
    return sum(SHIPPED.limit_s(check) for check in suite.checks)


def test_the_quick_suite_takes_three_minutes_at_most_and_a_standard_one_twenty():
    assert seconds(suite_for(purpose=Purpose.ADMIT)) <= 180
    assert max(seconds(suite_for(c, purpose=p)) for c in Category
               for p in (Purpose.DIAGNOSE, Purpose.PROVE)) <= 1200  # fmt: skip


@pytest.mark.parametrize("category", Category)
def test_each_category_is_judged_and_where_it_fails_under_load_the_node_is_loaded(category):
    judges = [c for c in suite_for(category).checks if c.name in SHIPPED.judging(category)]
    assert judges
    assert not SHIPPED.categories[category].under_load or any(map(SHIPPED.loads, judges))


@given(CATEGORIES, st.sampled_from(list(Purpose)))
def test_a_burn_in_covers_all_that_one_node_can_show_and_every_suite_keeps_the_order(chosen, why):
    suite = suite_for(*chosen, purpose=why)
    places = [SHIPPED.order.index(check.name) for check in suite.checks]
    assert places == sorted(set(places))
    if why is Purpose.BURN_IN:
        assert covers(suite, *(c for c in Category if c is not Category.FABRIC))


@pytest.mark.parametrize(
    ("reason", "check"),
    [
        ("nvlink_down", CheckName.NVLINK_STATE),
        ("link_down", CheckName.INFINIBAND),
        ("eio", CheckName.STORAGE),
        ("data_corruption", CheckName.STORAGE),
        ("disk_full", CheckName.HOST),
        ("xid_79", CheckName.KERNEL_LOG),
        ("row_remap_pending", CheckName.GPU_STATE),
    ],
)
def test_the_book_says_which_check_would_have_caught_a_reason(reason, check):
    assert check in SHIPPED.catching(reason)


def test_a_reason_that_no_check_finds_is_caught_by_none():
    assert SHIPPED.catching("person_says_so") == ()


@given(CATEGORIES, st.floats(min_value=1e-6, max_value=1))
def test_every_check_has_a_limit_that_a_tool_can_keep_however_fast_fleet_time_runs(chosen, scale):
    suite = suite_for(*chosen)
    limits = limits_s(suite, scale=scale)
    assert len(limits) == len(suite.checks)
    for limit, check in zip(limits, suite.checks, strict=True):
        assert 60 <= limit <= max(60, SHIPPED.limit_s(check))


def test_a_test_of_dcgm_that_the_book_does_not_know_gets_the_longest_limit():
    unknown = Check(CheckName.DCGM_DIAG, tests=("software", "brand_new"))
    assert SHIPPED.limit_s(unknown) == max(SHIPPED.diag_limits_s.values())


@pytest.mark.parametrize(
    ("pattern", "instead", "told"),
    [
        (r'"nccl_pair",\n\]\n\n\[levels.quick', "\n]\n\n[levels.quick", "name nccl_pair once"),
        (r"most_s = 180", "most_s = 100", "may take"),
        (r"most_s = 1200", "most_s = 600", "may take"),
        (r'admit = "quick"', 'admit = "fast"', "purposes.admit"),
        (r"\[checks.storage\]\nlimit_s = 120", "[checks.storage]\nlimit_s = -120", "time limit"),
        (r'judges = \["storage"\]', 'judges = ["host"]', "loads the node"),
        (r"\[categories.thermal\]", "[categories.warmth]", "warmth"),
        (r"memtest = 4\n", "", "memtest has no level"),
        (r"4 = 9000\n", "", "level 4 has no time limit"),
        (r"^loads = \[\"disk\"\]", 'load = ["disk"]', "unknown key 'load'"),
        (r"\A", "nonsense = 1\n", "unknown key 'nonsense'"),
        (r"\A", "= ", "is not TOML"),
        (r"most_s = 180", 'most_s = "long"', "cannot be read"),
        (r"\[collectors\]\ncompute = \[", "[collectors]\ncomputer = [", "computer"),
    ],
)
def test_a_book_that_breaks_a_rule_is_refused_with_the_place(pattern, instead, told):
    text, count = re.subn(pattern, lambda _: instead, TEXT, count=1, flags=re.MULTILINE)
    assert count == 1
    with pytest.raises(UsageError, match=re.escape(told)) as refused:
        parse_suites(text, name="mine.toml")
    assert refused.value.message.startswith("mine.toml: ")
