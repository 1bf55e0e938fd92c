"""The eight promises, as far as the domain decides them, over any order of events.

One pool of eight nodes. The machine stands for everything that is not the domain: the scheduler's
marks and jobs, the workflows that carry messages, people, kills. It keeps its own log of what
happened and judges by that.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydantic import TypeAdapter

from sickbay.contracts.names import operation_id
from sickbay.domain import budget
from sickbay.domain import repair as repair_table
from sickbay.domain.budget_state import (
    Ask,
    BudgetPolicy,
    BudgetState,
    DecisionKind,
    Withheld,
)
from sickbay.domain.gate import is_ours, mark_of, withheld_mark
from sickbay.domain.health import UNKNOWN_HEALTH, Health, Standing
from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.power import PowerState, Pulse, Sight, may_power_off
from sickbay.domain.proof import CheckResult, covers, suite_for, suite_verdict
from sickbay.domain.reading import Verdict
from sickbay.domain.repair import (
    LADDER,
    NEXT_STEP,
    TABLE,
    TREATMENT_STAGES,
    Choice,
    Ending,
    Limits,
    Progress,
    Stage,
    StageOutcome,
    Suspect,
    advance,
    enter,
    suspect,
)
from sickbay.domain.standing import StandingRules, begin, restart_after_proof, step

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
SIZE = 8
GROUP = 2
RULES = StandingRules()
NODES = st.integers(0, SIZE - 1).map(lambda i: f"n{i}")
PEOPLE = st.sampled_from(["ann", "bob"])
CATEGORIES = st.sampled_from(list(Category))
VERDICTS = st.sampled_from([Verdict.PASS] * 4 + [Verdict.FAIL, Verdict.INCONCLUSIVE])
FOREIGN = st.sampled_from(["drain by ann", "sickbay", "other:sickbay:n1.1", "Sickbay:n2.1"])
POLICIES = st.builds(
    BudgetPolicy,
    allowance=st.integers(1, 3),
    cap=st.integers(1, 4),
    max_out=st.none() | st.integers(1, 3),
    storm_factor=st.sampled_from([1.0, 3.0]),
    settle_s=st.sampled_from([0.0, 20.0]),
)
LIMITS = st.builds(
    Limits,
    attempts_per_rung=st.integers(1, 2),
    inconclusive=st.integers(1, 3),
    proof_passes=st.integers(0, 3),
    available=st.sampled_from([LADDER, (Treatment.RESET, Treatment.REBOOT, Treatment.SWAP), ()]),
)
HEALTHS = st.one_of(
    st.just(UNKNOWN_HEALTH),
    st.just(Health(0.1, 0.3, Category.HOST, "min:host")),
    st.floats(0, 1).map(lambda v: Health(v, 1.0, Category.MEMORY, "min:memory")),
    CATEGORIES.map(lambda c: Health(0.0, 1.0, c, "hard_fail:xid_48")),
)
SIGHTS = st.builds(
    Sight,
    drained=st.just(False),
    page=st.sampled_from(Pulse),
    power=st.sampled_from(PowerState),
)
ACTED = frozenset({StageOutcome.DONE, StageOutcome.AMBIGUOUS, StageOutcome.FAILED})
HANDS = frozenset({StageOutcome.REPLACED, StageOutcome.WORK_DONE})
UNCLEAR = frozenset({StageOutcome.INCONCLUSIVE, StageOutcome.UNREACHABLE})
DESTRUCTIVE = frozenset(TREATMENT_STAGES) - {Stage.SWAP}
SUITES = {Stage.DIAGNOSE, Stage.PROVE}


@dataclass
class Running:
    """One repair as the machine sees it from outside: its own count of passes and acts."""

    id: str
    node: str
    trigger: Category
    hard: bool
    progress: Progress
    asked: Ask
    granted: bool = False
    closed: bool = False
    ordinal: int = 1
    passes: list = field(default_factory=list)
    acts: int = 0
    treated: bool = False
    swapped: bool = False
    failed: bool = False
    cleared: bool = False
    owner: str = "sickbay"

    def owed(self, limits: Limits) -> int:
        """Passes in a row, by the design: never zero; two after a swap, whatever the policy."""
        if self.swapped:
            return 2
        if self.cleared and not self.treated and not self.failed:
            return 1
        return max(1, min(2, limits.proof_passes))


class Promises(RuleBasedStateMachine):
    """Random health, outcomes, messages, people, kills and time."""

    @initialize(policy=POLICIES, limits=LIMITS)
    def start(self, policy, limits):
        self.policy, self.limits = policy, limits
        self.now = T0
        self.state = BudgetState("train", nodes_on_record=SIZE)
        self.tracks = {f"n{i}": begin(Standing.HEALTHY, since=T0) for i in range(SIZE)}
        self.health = dict.fromkeys(self.tracks, Health(1.0, 1.0, None, "min:memory"))
        self.marks = {node: set() for node in self.tracks}
        self.foreign = {node: set() for node in self.tracks}
        self.jobs = dict.fromkeys(self.tracks, "")
        self.repairs: dict[str, Running] = {}
        self.aborted: dict[str, str] = {}
        self.numbers = Counter()
        self.closures: list[datetime] = []
        self.operations: list[str] = []
        self.pages = 0

    # --- what carries the domain's decisions ----------------------------------------------------

    def turn(self):
        self.state, decisions = budget.decide(self.state, policy=self.policy, now=self.now)
        asked = self.carry_out(decisions)
        if asked:
            well = {r for r in asked if (self.health[r.partition(".")[0]].value or 0.0) > 0.8}
            self.state, told = budget.rechecked(self.state, asked, recovered=well, now=self.now)
            self.carry_out(told)
            self.turn()

    def carry_out(self, decisions):
        asked = []
        for one in decisions:
            if one.kind is DecisionKind.GRANT:
                self.repairs[one.node].granted = True
            elif one.kind is DecisionKind.WITHHOLD:
                self.marks[one.node].add(withheld_mark(one.node))
            elif one.kind is DecisionKind.END_WITHHOLD:
                self.marks[one.node].discard(withheld_mark(one.node))
            elif one.kind is DecisionKind.REFUSE:
                self.move(self.repairs[one.node], StageOutcome.WITHDRAWN)
            elif one.kind is DecisionKind.RECHECK:
                asked.append(one.repair_id)
            else:
                self.pages += 1
        return asked

    def move(self, repair, outcome):
        there = advance(repair.progress, outcome, limits=self.limits)
        repair.ordinal += 1
        if isinstance(there, Ending):
            self.end(repair, there)
        else:
            repair.progress = there

    def end(self, repair, ending):
        if ending is Ending.RETURNED:
            self.judge_return(repair)
        del self.repairs[repair.node]
        if ending is Ending.ABORTED and repair.closed:
            self.aborted[repair.node] = repair.owner
            return
        # Ours are taken away, and only those: whatever else stands stays.
        self.marks[repair.node] -= {
            m for m in self.marks[repair.node] if is_ours(m) and m == mark_of(repair.id)
        }
        closed_at = self.now if repair.closed else None
        self.state, told = budget.release(self.state, repair.id, closed_at=closed_at)
        self.carry_out(told)
        if ending is Ending.RETURNED:
            track = self.tracks[repair.node]
            self.tracks[repair.node] = restart_after_proof(track, at=self.now)
        self.turn()

    def judge_return(self, repair):
        """Promise 1: the owed passes, in a row, of suites that would have caught the trigger."""
        owed = repair.owed(self.limits)
        assert len(repair.passes) >= owed >= 1
        for suite in repair.passes[-owed:]:
            assert covers(suite, repair.trigger)

    # --- telemetry and time ---------------------------------------------------------------------

    @rule(node=NODES, health=HEALTHS, seconds=st.sampled_from([0, 15, 301, 601, 1801]))
    def observe(self, node, health, seconds):
        """One more health value, after a while in which it was so."""
        held = any(mark.startswith(f"sickbay:{node}.") for mark in self.marks[node])
        before = self.tracks[node]
        track = step(before, health, now=self.now, rules=RULES, held=held)
        self.now += timedelta(seconds=seconds)
        track = step(track, health, now=self.now, rules=RULES, held=held)
        self.tracks[node], self.health[node] = track, health
        unknown = health.value is None or (health.confidence < 0.5 and not health.is_hard_fail)
        if unknown:
            # Promise 2: unknown neither heals nor condemns.
            assert track.standing in {before.standing, Standing.UNKNOWN}
        if held and before.standing is Standing.QUARANTINED:
            assert track.standing is Standing.QUARANTINED
        self.consume(node, track, health)
        self.turn()

    @rule(node=NODES, category=CATEGORIES)
    def break_down(self, node, category):
        """A hard fail, and the permit if there is one to be had."""
        self.observe(node, Health(0.0, 1.0, category, "hard_fail:xid_48"), 0)
        repair = self.repairs.get(node)
        if repair is not None and repair.granted and not repair.closed:
            self.closes(repair)

    def consume(self, node, track, health):
        busy = node in self.repairs or node in self.aborted
        if track.standing is Standing.QUARANTINED and not busy and health.worst is not None:
            self.report(node, health)
        elif track.standing is Standing.UNKNOWN and not busy:
            row = Withheld(node, "no_fresh_data", hard=False, since=self.now)
            self.state = budget.withhold(self.state, row)
        else:
            self.state, told = budget.end_withhold(self.state, node)
            self.carry_out(told)

    def report(self, node, health):
        self.numbers[node] += 1
        name = f"{node}.{self.numbers[node]}"
        ask = Ask(
            repair_id=name,
            workflow_id=f"node-repair/{node}",
            node=node,
            group=f"g{int(node[1:]) // GROUP}",
            severity=Severity.MAJOR,
            hard=health.is_hard_fail,
            reason=health.reason,
            asked_at=self.now,
        )
        progress = Progress(
            part=f"GPU-{node}",
            slot="gpu0",
            categories=(health.worst,),
            evidence=("kernel_log", "nvidia_smi"),
        )
        self.repairs[node] = Running(name, node, health.worst, ask.hard, progress, ask)
        self.state = budget.ask(self.state, ask)

    @rule(seconds=st.sampled_from([1, 20, 599, 1800, 3600, 3601]))
    def pass_time(self, seconds):
        self.now += timedelta(seconds=seconds)
        self.turn()

    @rule(node=NODES)
    def start_job(self, node):
        """Only behind an open gate."""
        if not self.marks[node] and not self.foreign[node]:
            self.jobs[node] = "j1"

    @rule(node=NODES)
    def end_job(self, node):
        self.jobs[node] = ""

    # --- the loop -------------------------------------------------------------------------------

    def at_work(self):
        return sorted(n for n, r in self.repairs.items() if r.closed)

    @precondition(lambda self: any(r.granted and not r.closed for r in self.repairs.values()))
    @rule(data=st.data(), observed=st.sampled_from([False] * 5 + [True]))
    def close_gate(self, data, observed):
        waiting = sorted(n for n, r in self.repairs.items() if r.granted and not r.closed)
        repair = self.repairs[data.draw(st.sampled_from(waiting))]
        if observed:
            # Promise 8: in observe mode nothing closes, and nothing is tried.
            self.move(repair, StageOutcome.OBSERVED)
            assert repair.node not in self.repairs
            assert mark_of(repair.id) not in self.marks[repair.node]
            return
        self.closes(repair)

    def closes(self, repair):
        self.marks[repair.node].add(mark_of(repair.id))
        repair.closed = True
        self.closures.append(self.now)
        self.state, told = budget.gate_closed(self.state, repair.id, at=self.now)
        self.carry_out(told)
        self.move(repair, StageOutcome.GRANTED)
        self.turn()

    @precondition(lambda self: self.at_work())
    @rule(data=st.data(), stages=st.integers(1, 6))
    def perform(self, data, stages):
        """The next stages of one repair, with any outcome they can have."""
        repair = self.repairs[data.draw(st.sampled_from(self.at_work()))]
        for _ in range(stages):
            if self.repairs.get(repair.node) is repair:
                self.perform_one(repair, data)

    def perform_one(self, repair, data):
        stage = repair.progress.stage
        if stage in SUITES and data.draw(st.integers(0, 5)):
            self.run_suite(repair, data)
        elif stage in DESTRUCTIVE and data.draw(st.integers(0, 5)):
            self.act(repair, data)
        elif stage is Stage.DRAIN:
            self.settle(repair, StageOutcome.BLOCKED if self.jobs[repair.node] else
                        StageOutcome.DRAINED)  # fmt: skip
        else:
            suites = {StageOutcome.PASSED, StageOutcome.NOT_CONFIRMED}
            mine = {o for s, o in TABLE if s is stage}
            told = sorted(mine if stage is Stage.RETURN else mine - suites - ACTED)
            if told:
                self.settle(repair, data.draw(st.sampled_from(told)))

    def run_suite(self, repair, data):
        """Diagnosis and proof run the suite of all failing categories; the rule judges it."""
        suite = suite_for(*repair.progress.categories)
        odd, how = data.draw(st.sampled_from(suite.checks)), data.draw(VERDICTS)
        results = [CheckResult(c, how if c is odd else Verdict.PASS, why="") for c in suite.checks]
        verdict = suite_verdict(results)
        diagnosis = repair.progress.stage is Stage.DIAGNOSE
        if verdict is Verdict.INCONCLUSIVE:
            self.settle(repair, StageOutcome.INCONCLUSIVE)
        elif verdict is Verdict.FAIL:
            part = data.draw(st.sampled_from(["", "GPU-x", repair.progress.part]))
            rung = data.draw(st.none() | st.sampled_from(LADDER))
            found = Suspect("gpu1", part, data.draw(CATEGORIES), rung)
            repair.progress = suspect(repair.progress, found, evidence=("dcgm",))
            repair.failed = True
            self.settle(repair, StageOutcome.CONFIRMED if diagnosis else StageOutcome.FAILED)
        elif diagnosis:
            repair.cleared = True
            self.settle(repair, StageOutcome.NOT_CONFIRMED)
        else:
            self.settle(repair, StageOutcome.PASSED, passed=suite)

    def act(self, repair, data):
        """Promise 6: an act needs a drained node or two witnesses, and happens under one id."""
        stage, node = repair.progress.stage, repair.node
        drained = not self.jobs[node]
        leave = may_power_off(
            replace(data.draw(SIGHTS), drained=drained, marked=True,
                    jobs=(self.jobs[node],) if self.jobs[node] else ()),
            silent=stage is Stage.POWER_CYCLE and data.draw(st.booleans()),
        )  # fmt: skip
        if not leave.given:
            assert not drained
            self.settle(repair, StageOutcome.BLOCKED)
            return
        assert drained or leave.witness == "worker silent, power off"
        assert TREATMENT_STAGES[stage] in self.limits.available
        self.operations.append(operation_id(repair.id, repair.ordinal, str(stage)))
        repair.acts += 1
        self.settle(repair, data.draw(st.sampled_from(sorted(ACTED))))

    def settle(self, repair, outcome, *, passed=None):
        """Report an outcome to the table, and see that unclear and observed lead to nothing."""
        before, stage = repair.progress, repair.progress.stage
        self.book(repair, stage, outcome, passed)
        self.move(repair, outcome)
        after = repair.progress
        if outcome in UNCLEAR:
            allowed = {stage, Stage.NEEDS_HUMAN}
            if outcome is StageOutcome.UNREACHABLE:
                allowed.add(Stage.POWER_CYCLE)
            assert after.stage in allowed
            assert after.attempts == before.attempts
        if outcome is StageOutcome.OBSERVED:
            assert after.stage is Stage.NEEDS_HUMAN
            assert after.attempts == before.attempts

    def book(self, repair, stage, outcome, passed):
        treated = stage in TREATMENT_STAGES and outcome in ACTED | HANDS
        repair.acts += treated and stage is Stage.SWAP
        repair.treated |= treated
        repair.swapped |= treated and stage is Stage.SWAP
        failed = stage in SUITES and outcome in {StageOutcome.FAILED, StageOutcome.CONFIRMED}
        newer = (stage, outcome) == (Stage.RETURN, StageOutcome.BLOCKED)
        repair.failed |= failed
        if passed is not None:
            repair.passes.append(passed)
        elif treated or failed or newer or outcome in UNCLEAR:
            repair.passes.clear()

    # --- people ---------------------------------------------------------------------------------

    @precondition(lambda self: self.at_work())
    @rule(data=st.data(), by=PEOPLE, order=st.sampled_from(["skip", "release", "abort"]))
    def order(self, data, by, order):
        repair = self.repairs[data.draw(st.sampled_from(self.at_work()))]
        repair.owner = by
        if order == "skip":
            missing = {s for s in DESTRUCTIVE if TREATMENT_STAGES[s] not in self.limits.available}
            no_targets = {Stage.PERMIT, Stage.RETURN, Stage.DRAIN, *missing}
            there = data.draw(st.sampled_from([s for s in Stage if s not in no_targets]))
            repair.progress = enter(replace(repair.progress, passes=0), there)
            repair.passes.clear()
            repair.ordinal += 1
        else:
            self.end(repair, Ending.ABORTED if order == "abort" else Ending.RELEASED_BY_PERSON)

    @rule(node=NODES, mark=FOREIGN, there=st.booleans())
    def administrator(self, node, mark, there):
        """Another closes a gate for reasons of their own, or opens it."""
        assert not is_ours(mark)
        for marks in (self.marks[node], self.foreign[node]):
            (marks.add if there else marks.discard)(mark)

    @rule(by=st.none() | PEOPLE)
    def freeze(self, by):
        self.state = budget.freeze(self.state, by=by)
        self.turn()

    # --- kills ----------------------------------------------------------------------------------

    @rule()
    def kill_everything(self):
        """Promise 7: what is kept is all there is, and every message may come a second time."""
        kept = TypeAdapter(BudgetState)
        self.state = kept.validate_json(kept.dump_json(self.state))
        progress = TypeAdapter(Progress)
        for repair in self.repairs.values():
            repair.progress = progress.validate_json(progress.dump_json(repair.progress))
        before = self.state
        for repair in self.repairs.values():
            self.state = budget.ask(self.state, repair.asked)
            if repair.closed:
                self.state, told = budget.gate_closed(self.state, repair.id, at=self.now)
                assert self.carry_out(told) == []
        assert self.state == before
        self.turn()

    # --- what holds at every moment -------------------------------------------------------------

    @invariant()
    def no_window_holds_more_closures_and_no_cap_is_passed(self):
        """Promise 3."""
        window = timedelta(seconds=self.policy.window_s)
        for end in self.closures:
            inside = sum(end - window < at <= end for at in self.closures)
            assert inside <= self.policy.allowed(SIZE)
        shut = [n for n, marks in self.marks.items() if any(is_ours(m) for m in marks)]
        assert len(shut) <= self.policy.closures(SIZE)
        out = [*self.at_work(), *self.aborted]
        groups = Counter(int(node[1:]) // GROUP for node in out)
        assert max(groups.values(), default=0) <= 1
        assert len(out) <= self.policy.out_at_once(SIZE)

    @invariant()
    def every_closed_gate_has_an_owner_and_a_next_step(self):
        """Promise 4."""
        placed = {w.node: w for w in self.state.withheld if w.placed}
        for node, marks in self.marks.items():
            for mark in filter(is_ours, marks):
                if mark == withheld_mark(node):
                    assert placed[node].reason
                elif node in self.aborted and node not in self.repairs:
                    assert self.aborted[node] in {"ann", "bob"}
                else:
                    repair = self.repairs[node]
                    assert mark == mark_of(repair.id)
                    assert NEXT_STEP[repair.progress.stage]
                    assert any(stage is repair.progress.stage for stage, _ in TABLE)
        self.who_waits_is_looked_at_again_or_was_paged()

    def who_waits_is_looked_at_again_or_was_paged(self):
        if self.state.queue:
            wake = budget.next_wake(self.state, policy=self.policy, now=self.now)
            assert self.state.paged or wake is not None
        assert not self.state.paged or self.pages

    @invariant()
    def the_marks_of_others_stand_as_they_left_them(self):
        """Promise 5."""
        for node, marks in self.marks.items():
            assert {m for m in marks if not is_ours(m)} == self.foreign[node]

    @invariant()
    def an_attempt_is_one_act_under_an_id_of_its_own(self):
        """Promise 6."""
        assert len(self.operations) == len(set(self.operations))
        for repair in self.repairs.values():
            counted = sum(a.count for a in repair.progress.attempts)
            assert counted == repair.acts


def test_the_eight_promises_hold_for_any_order_of_events():
    run_state_machine_as_test(
        Promises,
        settings=settings(max_examples=80, stateful_step_count=50, deadline=None),
    )


def one_pass_is_enough(*_):
    return Stage.RETURN


def climbs_on_an_unclear_answer(*_):
    return Stage.RESET


@pytest.mark.parametrize(
    ("choice", "wrong"),
    [(Choice.PROVEN, one_pass_is_enough), (Choice.RETRY, climbs_on_an_unclear_answer)],
)
def test_the_machine_can_tell_a_broken_table_from_ours(monkeypatch, choice, wrong):
    monkeypatch.setitem(repair_table._CHOICES, choice, wrong)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Promises,
            settings=settings(
                max_examples=300,
                stateful_step_count=50,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )
