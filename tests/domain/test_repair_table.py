"""The repair's table: every row leads somewhere named, and nothing returns without its proof."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.domain.node import Category, Treatment
from sickbay.domain.repair import (
    LADDER,
    NEXT_STEP,
    TABLE,
    TREATMENT_STAGES,
    Attempt,
    Choice,
    Ending,
    Limits,
    Progress,
    Stage,
    StageOutcome,
    Suspect,
    advance,
    choose_treatment,
    enter,
    next_stage,
    suspect,
)

ALL = LADDER
SHIPPED = (Treatment.RESET, Treatment.REBOOT, Treatment.SWAP)
LIMITS = Limits(attempts_per_rung=2, inconclusive=3, proof_passes=2, available=SHIPPED)
BROKEN = Progress(
    stage=Stage.DIAGNOSE,
    part="GPU-1",
    slot="gpu0",
    categories=(Category.COMPUTE,),
    evidence=("kernel_log", "nvidia_smi"),
)


def outcomes_of(stage):
    return sorted(o for s, o in TABLE if s is stage)


# --- the table ----------------------------------------------------------------------------------


def test_every_stage_has_rows_and_a_next_step_for_people():
    assert {stage for stage, _ in TABLE} == set(Stage) == set(NEXT_STEP)


def test_every_row_leads_to_a_stage_an_ending_or_a_named_choice():
    assert {type(there) for there in TABLE.values()} <= {Stage, Ending, Choice}


@pytest.mark.parametrize(("stage", "outcome"), sorted(TABLE), ids=str)
@pytest.mark.parametrize("available", [(), SHIPPED, ALL], ids=["none", "shipped", "all"])
def test_every_row_can_be_followed_from_any_progress(stage, outcome, available):
    limits = replace(LIMITS, available=available)
    for known in (Progress(), BROKEN, replace(BROKEN, failed_suites=5, swapped=True)):
        there = advance(replace(known, stage=stage), outcome, limits=limits)
        assert isinstance(there, Progress | Ending)


def test_only_the_return_ends_in_returned_and_only_a_proof_leads_to_the_return():
    to_returned = {row for row, there in TABLE.items() if there is Ending.RETURNED}
    assert to_returned == {(Stage.RETURN, StageOutcome.RETURNED)}
    assert Stage.RETURN not in TABLE.values()
    proven = {row for row, there in TABLE.items() if there is Choice.PROVEN}
    assert proven == {(Stage.PROVE, StageOutcome.PASSED)}


def test_a_row_that_is_not_in_the_table_is_an_error_not_a_guess():
    with pytest.raises(KeyError):
        next_stage(Progress(stage=Stage.DRAIN), StageOutcome.PASSED, limits=LIMITS)


@pytest.mark.parametrize("stage", Stage, ids=str)
def test_unclear_leads_to_the_same_stage_out_of_band_or_a_person(stage):
    allowed = {stage, Stage.NEEDS_HUMAN, Stage.POWER_CYCLE}
    for outcome in (StageOutcome.INCONCLUSIVE, StageOutcome.UNREACHABLE):
        if (stage, outcome) not in TABLE:
            continue
        for tries in range(5):
            for available in (SHIPPED, ALL):
                progress = replace(BROKEN, stage=stage, inconclusive=tries)
                limits = replace(LIMITS, available=available)
                assert next_stage(progress, outcome, limits=limits) in allowed


def test_what_was_observed_only_ends_or_asks_a_person():
    there = {row: to for row, to in TABLE.items() if row[1] is StageOutcome.OBSERVED}
    assert set(there.values()) == {Ending.OBSERVED, Stage.NEEDS_HUMAN}


def test_a_power_cycle_that_reaches_nobody_ends_at_a_person():
    progress, limits = replace(BROKEN, stage=Stage.POWER_CYCLE), replace(LIMITS, available=ALL)
    for _ in range(LIMITS.inconclusive):
        progress = advance(progress, StageOutcome.UNREACHABLE, limits=limits)
        assert isinstance(progress, Progress)
    assert progress.stage is Stage.NEEDS_HUMAN


# --- any sequence of outcomes -------------------------------------------------------------------


class Shadow:
    """What must hold, counted apart from the code under test."""

    def __init__(self):
        self.in_a_row = 0
        self.swapped = False
        self.treated = False
        self.failed = False
        self.not_confirmed = False

    def see(self, stage, outcome):
        if stage in TREATMENT_STAGES and outcome in {
            StageOutcome.DONE,
            StageOutcome.AMBIGUOUS,
            StageOutcome.FAILED,
            StageOutcome.REPLACED,
            StageOutcome.WORK_DONE,
        }:
            self.in_a_row, self.treated = 0, True
            self.swapped |= stage is Stage.SWAP
        elif stage is Stage.PROVE and outcome is StageOutcome.PASSED:
            self.in_a_row += 1
        elif stage is Stage.RETURN:
            # A scheduler that does not answer is no failed proof; a newer finding is.
            self.in_a_row *= outcome is not StageOutcome.BLOCKED
        elif outcome is StageOutcome.NOT_CONFIRMED:
            self.not_confirmed = True
        elif stage in {Stage.DIAGNOSE, Stage.PROVE} and outcome in {
            StageOutcome.FAILED,
            StageOutcome.CONFIRMED,
            StageOutcome.INCONCLUSIVE,
            StageOutcome.UNREACHABLE,
        }:
            self.in_a_row = 0
            self.failed |= outcome in {StageOutcome.FAILED, StageOutcome.CONFIRMED}

    def owed(self, limits):
        if self.not_confirmed and not self.treated and not self.failed:
            return 1
        return 2 if self.swapped else max(1, min(2, limits.proof_passes))


STARTS = st.builds(
    Progress,
    stage=st.just(Stage.PERMIT),
    part=st.sampled_from(["", "GPU-1", "n001"]),
    categories=st.sampled_from([(), (Category.MEMORY,), (Category.COMPUTE,)]),
    first_treatment=st.none() | st.sampled_from(list(Treatment)),
    beyond=st.none() | st.sampled_from(LADDER),
    evidence=st.sampled_from([(), ("dcgm",), ("telemetry",), ("kernel_log", "dcgm")]),
)
BOUNDS = st.builds(
    Limits,
    attempts_per_rung=st.integers(1, 3),
    inconclusive=st.integers(1, 4),
    proof_passes=st.integers(0, 3),
    available=st.sampled_from([SHIPPED, ALL, (Treatment.RESET,), ()]),
)
FOUND = st.builds(
    Suspect,
    slot=st.just("gpu0"),
    part=st.sampled_from(["", "GPU-1", "GPU-2"]),
    category=st.none() | st.sampled_from([Category.MEMORY, Category.FABRIC]),
    treatment=st.none() | st.sampled_from(LADDER),
)


def walk(data, progress, limits, *, kinds=("dcgm", "nvidia_smi"), people=True):
    """Random outcomes until an ending: yields (stage, outcome, progress after or ending)."""
    for _ in range(40):
        stage = progress.stage
        if stage is Stage.NEEDS_HUMAN and not people:
            return
        outcome = data.draw(st.sampled_from(outcomes_of(stage)))
        if stage in {Stage.DIAGNOSE, Stage.PROVE} and outcome in {
            StageOutcome.CONFIRMED,
            StageOutcome.FAILED,
        }:
            seen = data.draw(st.sampled_from([(), *((kind,) for kind in kinds), kinds]))
            progress = suspect(progress, data.draw(FOUND), evidence=seen)
        there = advance(progress, outcome, limits=limits)
        yield stage, outcome, there
        if isinstance(there, Ending):
            return
        progress = there


@settings(max_examples=150, deadline=None)
@given(data=st.data(), start=STARTS, limits=BOUNDS)
def test_nothing_reaches_the_return_without_the_owed_passes_in_a_row(data, start, limits):
    shadow = Shadow()
    for stage, outcome, there in walk(data, start, limits):
        shadow.see(stage, outcome)
        if stage is Stage.PROVE and isinstance(there, Progress) and there.stage is Stage.RETURN:
            assert shadow.in_a_row >= shadow.owed(limits) >= 1
        if there is Ending.RETURNED:
            assert shadow.in_a_row >= 1


@settings(max_examples=80, deadline=None)
@given(data=st.data(), start=STARTS, limits=BOUNDS)
def test_no_rung_is_tried_more_often_than_its_limit_unless_a_person_says_so(data, start, limits):
    for _, _, there in walk(data, start, limits, people=False):
        if isinstance(there, Progress):
            keys = [(a.part, a.category, a.treatment) for a in there.attempts]
            assert all(keys.count(key) <= limits.attempts_per_rung for key in keys)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), start=STARTS, limits=BOUNDS)
def test_a_failure_that_only_dcgm_saw_never_opens_a_swap(data, start, limits):
    alone = replace(start, evidence=("dcgm",))
    for _, _, there in walk(data, alone, limits, kinds=("dcgm",)):
        assert not (isinstance(there, Progress) and there.stage is Stage.SWAP)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), start=STARTS, limits=BOUNDS)
def test_a_repair_never_climbs_on_an_unclear_answer(data, start, limits):
    before = start
    for stage, outcome, there in walk(data, start, limits):
        if outcome in {StageOutcome.INCONCLUSIVE, StageOutcome.UNREACHABLE}:
            assert isinstance(there, Progress)
            assert there.stage in {stage, Stage.NEEDS_HUMAN, Stage.POWER_CYCLE}
            assert there.attempts == before.attempts
        before = there if isinstance(there, Progress) else before


@settings(max_examples=80, deadline=None)
@given(data=st.data(), start=STARTS, limits=BOUNDS)
def test_only_available_treatments_are_ever_next(data, start, limits):
    for _, _, there in walk(data, start, limits):
        if isinstance(there, Progress) and there.stage in TREATMENT_STAGES:
            assert TREATMENT_STAGES[there.stage] in limits.available


# --- the ladder ---------------------------------------------------------------------------------


def after(*outcomes, progress=BROKEN, limits=LIMITS):
    for outcome in outcomes:
        moved = advance(progress, outcome, limits=limits)
        assert isinstance(moved, Progress)
        progress = moved
    return progress


def tried(treatment, count, part="GPU-1", category="compute"):
    return Attempt(part, category, treatment, count)


def test_c21_a_reset_that_does_not_hold_is_not_tried_a_third_time():
    """[fault, reset, fault, reset, fault] over repairs, with two tries a rung."""
    once = replace(BROKEN, attempts=(tried(Treatment.RESET, 1),))
    assert choose_treatment(once, limits=LIMITS) is Treatment.RESET
    twice = replace(BROKEN, attempts=(tried(Treatment.RESET, 1), tried(Treatment.RESET, 1)))
    assert choose_treatment(twice, limits=LIMITS) is Treatment.REBOOT


@pytest.mark.parametrize(
    "other", [tried(Treatment.RESET, 9, part="GPU-2"), tried(Treatment.RESET, 9, category="fabric")]
)
def test_attempts_belong_to_a_part_and_a_category(other):
    assert choose_treatment(replace(BROKEN, attempts=(other,)), limits=LIMITS) is Treatment.RESET


def test_when_every_rung_is_used_up_a_person_decides():
    spent = replace(BROKEN, attempts=tuple(tried(t, 2) for t in LADDER))
    assert choose_treatment(spent, limits=LIMITS) is None
    assert after(StageOutcome.CONFIRMED, progress=spent).stage is Stage.NEEDS_HUMAN


@pytest.mark.parametrize(
    ("first", "available", "expected"),
    [
        (None, SHIPPED, Treatment.RESET),
        (Treatment.RESTART_APP, SHIPPED, Treatment.RESET),
        (Treatment.REBOOT, SHIPPED, Treatment.REBOOT),
        (Treatment.POWER_CYCLE, SHIPPED, Treatment.SWAP),
        (Treatment.REFLASH, SHIPPED, None),  # wrong firmware is no reason to buy a part
        (Treatment.REFLASH, ALL, Treatment.REFLASH),
        (Treatment.SWAP, SHIPPED, Treatment.SWAP),
    ],
)
def test_the_finding_names_the_first_rung(first, available, expected):
    limits = replace(LIMITS, available=available)
    assert choose_treatment(replace(BROKEN, first_treatment=first), limits=limits) is expected


def test_a_fault_in_probation_starts_beyond_the_last_rung_and_stays_at_the_top():
    beyond = replace(BROKEN, beyond=Treatment.RESET)
    assert choose_treatment(beyond, limits=LIMITS) is Treatment.REBOOT
    top = replace(BROKEN, beyond=Treatment.SWAP)
    assert choose_treatment(top, limits=LIMITS) is Treatment.SWAP


def test_each_failed_proof_climbs_one_rung_and_ends_at_a_swap():
    p = after(StageOutcome.CONFIRMED)
    assert p.stage is Stage.RESET
    p = after(StageOutcome.DONE, StageOutcome.FAILED, progress=p)
    assert p.stage is Stage.REBOOT
    p = after(StageOutcome.DONE, StageOutcome.FAILED, progress=p)
    assert p.stage is Stage.SWAP


def test_after_a_swap_two_passes_are_owed_whatever_the_policy():
    low = replace(LIMITS, proof_passes=0)
    p = replace(BROKEN, stage=Stage.SWAP, confirmed=True)
    p = after(StageOutcome.REPLACED, StageOutcome.PASSED, progress=p, limits=low)
    assert p.stage is Stage.PROVE
    assert after(StageOutcome.PASSED, progress=p, limits=low).stage is Stage.RETURN


def test_one_pass_is_the_least_a_policy_can_ask_for():
    low = replace(LIMITS, proof_passes=0)
    p = after(StageOutcome.CONFIRMED, StageOutcome.DONE, limits=low)
    assert p.owed(low) == 1


def test_an_unclear_proof_starts_the_row_again():
    p = after(StageOutcome.CONFIRMED, StageOutcome.DONE, StageOutcome.PASSED)
    p = after(StageOutcome.INCONCLUSIVE, StageOutcome.PASSED, progress=p)
    assert (p.stage, p.passes) == (Stage.PROVE, 1)


@pytest.mark.parametrize("treatment", [Treatment.REBOOT, Treatment.POWER_CYCLE])
def test_a_boot_owes_a_fresh_boot_and_other_treatments_do_not(treatment):
    for one, owed in ((treatment, True), (Treatment.RESET, False)):
        p = replace(BROKEN, stage=Stage(one.value))
        assert after(StageOutcome.DONE, progress=p).fresh_boot_owed is owed


def test_a_person_sends_the_repair_back_to_where_it_stopped():
    p = replace(BROKEN, stage=Stage.PROVE)
    p = after(*[StageOutcome.INCONCLUSIVE] * 3, progress=p)
    assert (p.stage, p.resume_to) == (Stage.NEEDS_HUMAN, Stage.PROVE)
    p = after(StageOutcome.RESUMED, progress=p)
    assert (p.stage, p.inconclusive) == (Stage.PROVE, 0)


def test_entering_the_same_stage_keeps_what_was_counted():
    p = replace(BROKEN, inconclusive=2)
    assert enter(p, Stage.DIAGNOSE) == p


def test_a_swap_needs_a_second_kind_of_evidence_or_a_second_failure():
    top = replace(BROKEN, first_treatment=Treatment.SWAP, failed_suites=0)
    two_kinds = replace(top, evidence=("dcgm", "kernel_log", "nvidia_smi"))
    assert after(StageOutcome.CONFIRMED, progress=two_kinds).stage is Stage.SWAP
    one_kind = replace(top, evidence=("dcgm", "kernel_log"))
    p = after(StageOutcome.CONFIRMED, progress=one_kind)
    assert p.stage is Stage.DIAGNOSE
    assert after(StageOutcome.CONFIRMED, progress=p).stage is Stage.SWAP


def test_another_part_is_treated_from_its_own_first_rung():
    p = replace(BROKEN, last_treatment=Treatment.REBOOT, attempts=(tried(Treatment.RESET, 2),))
    found = Suspect("gpu1", "GPU-2", Category.MEMORY, Treatment.RESET)
    moved = suspect(p, found, evidence=("dcgm",))
    assert (moved.part, moved.slot) == ("GPU-2", "gpu1")
    assert choose_treatment(moved, limits=LIMITS) is Treatment.RESET
    assert moved.categories == (Category.COMPUTE, Category.MEMORY)
