"""A proof contains the check that would have caught the fault, and unclear is no pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.node import Category, Treatment
from sickbay.domain.proof import (
    PAIR,
    PAIR_EVIDENCE,
    Check,
    CheckName,
    CheckResult,
    Suite,
    SuiteResult,
    covers,
    is_stress,
    owes_pair,
    passes_owed,
    suite_for,
    suite_verdict,
    without_pair,
)
from sickbay.domain.reading import Finding, FindingKind, Verdict

CATEGORIES = st.lists(st.sampled_from(list(Category)), unique=True, min_size=1, max_size=4)
DIAG = Check(CheckName.DCGM_DIAG, tests=("memory",))
P, F, I = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE  # noqa: E741 - a table below


def result(verdict, findings=()):
    return CheckResult(DIAG, verdict, why="", findings=findings)


@given(CATEGORIES)
def test_a_suite_covers_every_category_it_was_made_for(categories):
    suite = suite_for(*categories)
    assert covers(suite, *categories)
    assert all(covers(suite, one) for one in categories)


@given(CATEGORIES, st.sampled_from(list(Category)))
def test_the_suite_of_more_categories_contains_that_of_fewer(categories, more):
    assert covers(suite_for(*categories, more), *categories)


@pytest.mark.parametrize(
    ("suite_of", "category"),
    [
        (Category.COMPUTE, Category.MEMORY),
        (Category.MEMORY, Category.THERMAL),
        (Category.COMPUTE, Category.FABRIC),
        (Category.THERMAL, Category.INTERCONNECT),
    ],
)
def test_another_categorys_suite_is_no_cover(suite_of, category):
    assert not covers(suite_for(suite_of), category)


@given(CATEGORIES)
def test_what_the_node_runs_alone_is_all_but_the_pair_and_the_pair_is_the_fabrics(categories):
    suite = suite_for(*categories)
    assert (PAIR in suite.checks) == (Category.FABRIC in categories)
    assert set(suite.checks) - set(without_pair(suite).checks) <= {PAIR}
    assert PAIR not in without_pair(suite).checks
    assert suite.checks[-1] == PAIR or PAIR not in suite.checks, "what needs a neighbour comes last"


@given(CATEGORIES)
def test_without_its_pair_check_a_suite_no_longer_covers_the_fabric_and_covers_all_else(categories):
    alone = without_pair(suite_for(*categories))
    assert not covers(alone, Category.FABRIC)
    assert covers(alone, *(c for c in categories if c is not Category.FABRIC))


def test_the_pair_check_is_owed_by_the_trigger_or_by_what_found_the_fault():
    trigger_first = (Category.FABRIC, Category.MEMORY)
    assert owes_pair(trigger_first, evidence=("person",))
    assert not owes_pair(trigger_first[::-1], evidence=("person", "dcgm"))
    assert owes_pair(trigger_first[::-1], evidence=("person", PAIR_EVIDENCE))
    assert not owes_pair((), evidence=())


@pytest.mark.parametrize(
    ("category", "measured"),
    [
        (Category.INTERCONNECT, [CheckName.NVBANDWIDTH, CheckName.NCCL_NODE]),
        (Category.FABRIC, [CheckName.NCCL_NODE, CheckName.NCCL_PAIR]),
        (Category.PERFORMANCE, [CheckName.NVBANDWIDTH]),
        (Category.MEMORY, []),
        (Category.COMPUTE, []),
    ],
)
def test_bandwidth_is_measured_where_it_is_in_doubt(category, measured):
    names = [c.name for c in suite_for(category).checks]
    wanted = {CheckName.NVBANDWIDTH, CheckName.NCCL_NODE, CheckName.NCCL_PAIR}
    assert [n for n in names if n in wanted] == measured


def test_an_empty_suite_covers_nothing():
    assert not covers(Suite("nothing", ()), Category.MEMORY)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([P, P], P),
        ([P, F], F),
        ([I, F], F),
        ([P, I], I),
        ([I], I),
        ([], I),
    ],
)
def test_a_suite_passes_only_when_every_check_ran_and_passed(verdicts, expected):
    assert suite_verdict([result(v) for v in verdicts]) is expected


@pytest.mark.parametrize(
    ("treatment", "confirmed", "policy", "owed"),
    [
        (None, False, 2, 1),
        (None, False, 0, 1),
        (None, None, 1, 2),
        (None, True, 1, 1),
        (Treatment.RESET, True, 2, 2),
        (Treatment.RESET, True, 1, 1),
        (Treatment.RESET, True, 0, 1),
        (Treatment.RESET, True, 9, 2),
        (Treatment.SWAP, True, 0, 2),
        (Treatment.SWAP, False, 1, 2),
    ],
)
def test_passes_owed(treatment, confirmed, policy, owed):
    assert passes_owed(treatment=treatment, confirmed=confirmed, policy_passes=policy) == owed


def test_a_label_names_the_tests_and_a_suite_all_findings():
    assert DIAG.label == "dcgm_diag:memory"
    assert Check(CheckName.GPU_STATE).label == "gpu_state"
    found = Finding("gpu0", "xid_79", severity="major", kind=FindingKind.HARDWARE)
    suite = SuiteResult("s", F, (result(P), result(F, (found,)), result(F, (found,))))
    assert suite.findings() == (found, found)


def test_only_suites_that_load_the_whole_node_are_stress_runs():
    stress = {c for c in Category if is_stress(suite_for(c))}
    assert stress == {
        Category.COMPUTE,
        Category.INTERCONNECT,
        Category.PERFORMANCE,
        Category.THERMAL,
    }
    assert not is_stress(suite_for())
