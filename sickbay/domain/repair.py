"""The repair's table: which stage follows which outcome, and why.

`next_stage()` is the whole policy of the loop. The workflow performs a stage, reports its outcome
here, and goes where this module says. A failed proof climbs one rung; inconclusive never does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.proof import passes_owed


class Stage(StrEnum):
    """Where a repair is."""

    PERMIT = "permit"
    DRAIN = "drain"
    DIAGNOSE = "diagnose"
    RESET = "reset"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    REFLASH = "reflash"
    SWAP = "swap"
    PROVE = "prove"
    RETURN = "return"
    NEEDS_HUMAN = "needs_human"


class Ending(StrEnum):
    """How a repair ended. Only `returned` is a proven return."""

    RETURNED = "returned"
    WITHDRAWN = "withdrawn"
    STALE = "stale"
    OBSERVED = "observed"
    ABORTED = "aborted"
    RELEASED_BY_PERSON = "released_by_person"


class StageOutcome(StrEnum):
    """How one stage ended."""

    GRANTED = "granted"
    WITHDRAWN = "withdrawn"
    STALE = "stale"
    OBSERVED = "observed"
    DRAINED = "drained"
    BLOCKED = "blocked"
    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not_confirmed"
    INCONCLUSIVE = "inconclusive"
    UNREACHABLE = "unreachable"
    DONE = "done"
    FAILED = "failed"
    AMBIGUOUS = "ambiguous"
    REPLACED = "replaced"
    WORK_DONE = "work_done"
    CANNOT_FIX = "cannot_fix"
    PASSED = "passed"
    RETURNED = "returned"
    RESUMED = "resumed"


class Choice(StrEnum):
    """A row of the table whose answer depends on what was already tried."""

    TREAT = "the first rung left, else needs_human"
    OUT_OF_BAND = "power_cycle where it is available, else retry up to the limit, then needs_human"
    RETRY = "the same stage up to the limit, then needs_human"
    PROVEN = "return when the owed passes are in a row, else prove again"
    RESUME = "the stage that asked for a person"


LADDER = (
    Treatment.RESET,
    Treatment.REBOOT,
    Treatment.POWER_CYCLE,
    Treatment.REFLASH,
    Treatment.SWAP,
)
TREATMENT_STAGES: Mapping[Stage, Treatment] = {Stage(t.value): t for t in LADDER}
BOOTS = frozenset({Treatment.REBOOT, Treatment.POWER_CYCLE})
HARDWARE_ACTS = tuple(t for t in LADDER if t is not Treatment.SWAP)
_DCGM = "dcgm"


def _treatment_rows() -> dict[tuple[Stage, StageOutcome], Stage | Ending | Choice]:
    rows: dict[tuple[Stage, StageOutcome], Stage | Ending | Choice] = {}
    for treatment in HARDWARE_ACTS:
        stage = Stage(treatment.value)
        rows[stage, StageOutcome.DONE] = Stage.PROVE
        rows[stage, StageOutcome.AMBIGUOUS] = Stage.PROVE
        rows[stage, StageOutcome.FAILED] = Choice.TREAT
        rows[stage, StageOutcome.BLOCKED] = Stage.DRAIN
        rows[stage, StageOutcome.UNREACHABLE] = Choice.OUT_OF_BAND
        rows[stage, StageOutcome.OBSERVED] = Stage.NEEDS_HUMAN
    return rows


TABLE: Mapping[tuple[Stage, StageOutcome], Stage | Ending | Choice] = {
    (Stage.PERMIT, StageOutcome.GRANTED): Stage.DRAIN,
    (Stage.PERMIT, StageOutcome.WITHDRAWN): Ending.WITHDRAWN,
    (Stage.PERMIT, StageOutcome.STALE): Ending.STALE,
    (Stage.PERMIT, StageOutcome.OBSERVED): Ending.OBSERVED,
    (Stage.PERMIT, StageOutcome.FAILED): Choice.RETRY,
    (Stage.DRAIN, StageOutcome.DRAINED): Stage.DIAGNOSE,
    (Stage.DRAIN, StageOutcome.BLOCKED): Stage.DRAIN,
    (Stage.DRAIN, StageOutcome.OBSERVED): Stage.NEEDS_HUMAN,
    (Stage.DIAGNOSE, StageOutcome.CONFIRMED): Choice.TREAT,
    (Stage.DIAGNOSE, StageOutcome.NOT_CONFIRMED): Stage.PROVE,
    (Stage.DIAGNOSE, StageOutcome.INCONCLUSIVE): Choice.RETRY,
    (Stage.DIAGNOSE, StageOutcome.UNREACHABLE): Choice.OUT_OF_BAND,
    (Stage.DIAGNOSE, StageOutcome.OBSERVED): Stage.NEEDS_HUMAN,
    (Stage.DIAGNOSE, StageOutcome.BLOCKED): Stage.DRAIN,
    **_treatment_rows(),
    (Stage.REFLASH, StageOutcome.CANNOT_FIX): Stage.NEEDS_HUMAN,
    (Stage.SWAP, StageOutcome.REPLACED): Stage.PROVE,
    (Stage.SWAP, StageOutcome.WORK_DONE): Stage.PROVE,
    (Stage.SWAP, StageOutcome.CANNOT_FIX): Stage.NEEDS_HUMAN,
    (Stage.SWAP, StageOutcome.OBSERVED): Stage.NEEDS_HUMAN,
    (Stage.PROVE, StageOutcome.BLOCKED): Stage.DRAIN,
    (Stage.PROVE, StageOutcome.PASSED): Choice.PROVEN,
    (Stage.PROVE, StageOutcome.FAILED): Choice.TREAT,
    (Stage.PROVE, StageOutcome.INCONCLUSIVE): Choice.RETRY,
    (Stage.PROVE, StageOutcome.UNREACHABLE): Choice.OUT_OF_BAND,
    (Stage.PROVE, StageOutcome.OBSERVED): Stage.NEEDS_HUMAN,
    (Stage.RETURN, StageOutcome.RETURNED): Ending.RETURNED,
    (Stage.RETURN, StageOutcome.FAILED): Choice.RETRY,
    (Stage.RETURN, StageOutcome.BLOCKED): Stage.PROVE,
    (Stage.NEEDS_HUMAN, StageOutcome.RESUMED): Choice.RESUME,
}

NEXT_STEP: Mapping[Stage, str] = {
    Stage.PERMIT: "wait for a permit of the pool's budget",
    Stage.DRAIN: "wait until the node runs no job",
    Stage.DIAGNOSE: "run the suite of the failing category",
    Stage.RESET: "reset the part, then prove",
    Stage.REBOOT: "reboot the node, then prove",
    Stage.POWER_CYCLE: "power-cycle the node out of band, then prove",
    Stage.REFLASH: "flash the wanted firmware, then prove",
    Stage.SWAP: "a technician replaces the part and reports its serial",
    Stage.PROVE: "run the proof",
    Stage.RETURN: "take our hold away",
    Stage.NEEDS_HUMAN: "a person decides: resume, skip, abort or release",
}


@dataclass(frozen=True)
class Suspect:
    """What a failing suite points at: a slot, the key its part is counted under, a first rung."""

    slot: str | None
    part: str
    category: Category | None
    treatment: Treatment | None


@dataclass(frozen=True)
class Attempt:
    """How often a treatment was tried on one part for one category, within the policy's memory."""

    part: str
    category: str
    treatment: Treatment
    count: int


@dataclass(frozen=True)
class Limits:
    """What bounds the ladder: attempts per rung and part, treatments there are, retries, passes."""

    attempts_per_rung: int
    inconclusive: int
    proof_passes: int
    available: tuple[Treatment, ...]

    def most(self, treatment: Treatment) -> int:
        """Attempts of one rung on one part; the same image is never flashed twice."""
        return 1 if treatment is Treatment.REFLASH else self.attempts_per_rung


@dataclass(frozen=True)
class Progress:
    """Everything `next_stage()` looks at. `part` is the key attempts are counted under."""

    stage: Stage = Stage.PERMIT
    resume_to: Stage = Stage.DIAGNOSE
    severity: Severity = Severity.MAJOR
    part: str = ""
    slot: str | None = None
    categories: tuple[Category, ...] = ()
    first_treatment: Treatment | None = None
    last_treatment: Treatment | None = None
    beyond: Treatment | None = None
    attempts: tuple[Attempt, ...] = ()
    evidence: tuple[str, ...] = ()
    confirmed: bool | None = None
    passes: int = 0
    failed_suites: int = 0
    inconclusive: int = 0
    fresh_boot_owed: bool = False
    swapped: bool = False

    @property
    def category(self) -> str:
        """The category attempts are counted under: the trigger's."""
        return str(self.categories[0]) if self.categories else "unknown"

    def owed(self, limits: Limits) -> int:
        """Passes in a row that end this quarantine."""
        return passes_owed(
            treatment=Treatment.SWAP if self.swapped else self.last_treatment,
            confirmed=self.confirmed,
            policy_passes=limits.proof_passes,
        )

    def tried(self, treatment: Treatment) -> int:
        """How often `treatment` was tried on this part for this category."""
        return sum(
            a.count
            for a in self.attempts
            if (a.part, a.category, a.treatment) == (self.part, self.category, treatment)
        )


def next_stage(progress: Progress, outcome: StageOutcome, *, limits: Limits) -> Stage | Ending:
    """Where the repair goes when the present stage ended with `outcome`.

    Raises:
        KeyError: the table has no row for this stage and outcome.
    """
    row = TABLE[progress.stage, outcome]
    if not isinstance(row, Choice):
        return row
    return _CHOICES[row](progress, limits)


def advance(progress: Progress, outcome: StageOutcome, *, limits: Limits) -> Progress | Ending:
    """Count the outcome and move: the progress in the next stage, or the ending."""
    counted = count(progress, outcome)
    there = next_stage(counted, outcome, limits=limits)
    return there if isinstance(there, Ending) else enter(counted, there)


def enter(progress: Progress, stage: Stage) -> Progress:
    """The progress moved to `stage`, remembering where a person would send it back to."""
    if stage is progress.stage:
        return progress
    asks_person = stage is Stage.NEEDS_HUMAN
    return replace(
        progress,
        stage=stage,
        resume_to=progress.stage if asks_person else progress.resume_to,
        inconclusive=0,
    )


def count(progress: Progress, outcome: StageOutcome) -> Progress:
    """The progress with this outcome booked: attempts, passes in a row, failures."""
    p, stage = progress, progress.stage
    if stage in TREATMENT_STAGES and outcome in _TRIED:
        return _treated(p, TREATMENT_STAGES[stage])
    match stage, outcome:
        case Stage.PROVE, StageOutcome.PASSED:
            return replace(p, passes=p.passes + 1, inconclusive=0)
        case Stage.RETURN, StageOutcome.BLOCKED:
            return replace(p, passes=0)
        case Stage.PROVE, StageOutcome.FAILED:
            return replace(p, passes=0, failed_suites=p.failed_suites + 1, confirmed=True)
        case Stage.DIAGNOSE, StageOutcome.CONFIRMED:
            return replace(p, confirmed=True, passes=0, failed_suites=p.failed_suites + 1)
        case Stage.DIAGNOSE, StageOutcome.NOT_CONFIRMED:
            return replace(p, confirmed=bool(p.failed_suites))
        case _, StageOutcome.INCONCLUSIVE | StageOutcome.UNREACHABLE:
            return replace(p, inconclusive=p.inconclusive + 1, passes=0)
        case _, StageOutcome.FAILED:
            return replace(p, inconclusive=p.inconclusive + 1)
    return p


def suspect(progress: Progress, found: Suspect, *, evidence: tuple[str, ...]) -> Progress:
    """The progress after a failing suite: another part is treated from its own first rung."""
    categories = progress.categories
    if found.category and found.category not in categories:
        categories = (*categories, found.category)
    kinds = tuple(dict.fromkeys((*progress.evidence, *evidence)))
    p = replace(progress, categories=categories, evidence=kinds)
    if not found.part:
        return p
    if found.part == progress.part:
        return replace(p, first_treatment=_higher(p.first_treatment, found.treatment))
    fresh = progress.part and progress.last_treatment is not None
    return replace(
        p,
        part=found.part,
        slot=found.slot,
        first_treatment=found.treatment,
        last_treatment=None if fresh else progress.last_treatment,
    )


def _higher(one: Treatment | None, other: Treatment | None) -> Treatment | None:
    known = [t for t in (one, other) if t in LADDER]
    return max(known, key=LADDER.index, default=None)


_TRIED = frozenset(
    {
        StageOutcome.DONE,
        StageOutcome.AMBIGUOUS,
        StageOutcome.FAILED,
        StageOutcome.REPLACED,
        StageOutcome.WORK_DONE,
    }
)


def _treated(p: Progress, treatment: Treatment) -> Progress:
    counted = Attempt(p.part, p.category, treatment, 1)
    return replace(
        p,
        attempts=(*p.attempts, counted),
        last_treatment=treatment,
        passes=0,
        fresh_boot_owed=treatment in BOOTS,
        swapped=p.swapped or treatment is Treatment.SWAP,
    )


def choose_treatment(progress: Progress, *, limits: Limits) -> Treatment | None:
    """The first rung left on the ladder, None when a person must decide.

    Starts at the rung the finding names, beyond what this repair already tried, and beyond the last
    rung of a repair whose probation this fault broke. A missing rung is passed over, except that a
    wanted reflash that cannot be done is never turned into a swap.
    """
    first = progress.first_treatment if progress.first_treatment in LADDER else Treatment.RESET
    if first is Treatment.REFLASH and Treatment.REFLASH not in limits.available:
        return None
    tried = [t for t in (progress.last_treatment, progress.beyond) if t in LADDER]
    start = max([LADDER.index(first), *(min(LADDER.index(t) + 1, len(LADDER) - 1) for t in tried)])
    for rung in LADDER[start:]:
        if rung in limits.available and progress.tried(rung) < limits.most(rung):
            return rung
    return None


def _treat(progress: Progress, limits: Limits) -> Stage:
    rung = choose_treatment(progress, limits=limits)
    if rung is None:
        return Stage.NEEDS_HUMAN
    return _swap_or_rerun(progress) if rung is Treatment.SWAP else Stage(rung.value)


def _swap_or_rerun(progress: Progress) -> Stage:
    """A DCGM failure alone never opens a swap: rerun it and have a second kind of evidence."""
    others = {kind for kind in progress.evidence if kind != _DCGM}
    rerun_needed = 2
    if len(others) > 1 or (others and progress.failed_suites >= rerun_needed):
        return Stage.SWAP
    return Stage.DIAGNOSE if progress.failed_suites < rerun_needed else Stage.NEEDS_HUMAN


def _out_of_band(progress: Progress, limits: Limits) -> Stage:
    power = Treatment.POWER_CYCLE
    left = (
        progress.stage is not Stage.POWER_CYCLE
        and power in limits.available
        and progress.tried(power) < limits.most(power)
    )
    return Stage.POWER_CYCLE if left else _retry(progress, limits)


def _retry(progress: Progress, limits: Limits) -> Stage:
    return progress.stage if progress.inconclusive < limits.inconclusive else Stage.NEEDS_HUMAN


def _proven(progress: Progress, limits: Limits) -> Stage:
    return Stage.RETURN if progress.passes >= progress.owed(limits) else Stage.PROVE


def _resume(progress: Progress, _limits: Limits) -> Stage:
    return progress.resume_to


_CHOICES = {
    Choice.TREAT: _treat,
    Choice.OUT_OF_BAND: _out_of_band,
    Choice.RETRY: _retry,
    Choice.PROVEN: _proven,
    Choice.RESUME: _resume,
}
