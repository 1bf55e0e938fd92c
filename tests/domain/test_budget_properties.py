"""Whatever is asked, granted, closed, given back, and whenever: the promises of the budget hold."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sickbay.domain import budget
from sickbay.domain.budget_state import (
    Ask,
    BudgetPolicy,
    BudgetState,
    DecisionKind,
    Withheld,
)
from sickbay.domain.node import Severity

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
NODES = st.integers(0, 11)
SEVERITIES = st.sampled_from(list(Severity))
POLICIES = st.builds(
    BudgetPolicy,
    allowance=st.integers(1, 3),
    cap=st.integers(1, 5),
    max_out=st.none() | st.integers(1, 4),
    storm_factor=st.sampled_from([1.0, 3.0]),
    cooldown_s=st.sampled_from([600.0, 1800.0]),
)


class PoolOfTwelve(RuleBasedStateMachine):
    """A pool of twelve nodes in four groups, and its own log of what was truly closed and when."""

    @initialize(policy=POLICIES)
    def begin(self, policy):
        self.policy = policy
        self.state = BudgetState("train", nodes_on_record=12)
        self.now = T0
        self.repairs = Counter()
        self.closures = []
        self.pages = []
        self.granted = []

    def decide(self):
        self.state, decisions = budget.decide(self.state, policy=self.policy, now=self.now)
        asked = [d.repair_id for d in decisions if d.kind is DecisionKind.RECHECK]
        for one in decisions:
            if one.kind is DecisionKind.GRANT:
                self.granted.append(one.repair_id)
                assert not self.state.frozen_by
            if one.kind is DecisionKind.PAGE:
                self.pages.append(self.now)
        if asked:
            # Every third node is found well again: it leaves the queue, and is told so.
            well = {r for r in asked if int(r[1:].split(".")[0]) % 3 == 0}
            self.state, told = budget.rechecked(self.state, asked, recovered=well, now=self.now)
            assert {d.repair_id for d in told if d.kind is DecisionKind.REFUSE} == well
            self.decide()

    @rule(number=NODES, hard=st.booleans(), severity=SEVERITIES, again=st.booleans())
    def ask(self, number, hard, severity, again):
        node = f"n{number}"
        if not again:
            busy = {p.node for p in self.state.permits} | {a.node for a in self.state.queue}
            if node in busy:
                return
            self.repairs[node] += 1
        request = Ask(
            repair_id=f"{node}.{self.repairs[node]}",
            workflow_id=f"node-repair/{node}",
            node=node,
            group=f"g{number // 3}",
            severity=severity,
            hard=hard,
            reason="min:memory" if number % 2 else "r",
            asked_at=self.now,
        )
        ended = request.repair_id in self.granted and request.repair_id not in {
            p.repair_id for p in self.state.permits
        }
        if self.repairs[node] and not ended:
            self.state = budget.ask(self.state, request)
        self.decide()

    @rule(seconds=st.sampled_from([1, 59, 300, 601, 1801, 3599, 3600, 3601]))
    def pass_time(self, seconds):
        self.now += timedelta(seconds=seconds)
        self.decide()

    @precondition(lambda self: self.state.permits)
    @rule(data=st.data())
    def close(self, data):
        permit = data.draw(st.sampled_from(self.state.permits))
        if permit.repair_id not in {repair for repair, _ in self.closures}:
            self.closures.append((permit.repair_id, self.now))
        self.state, _ = budget.gate_closed(self.state, permit.repair_id, at=self.now)
        self.decide()

    @precondition(lambda self: self.state.permits)
    @rule(data=st.data())
    def give_back(self, data):
        permit = data.draw(st.sampled_from(self.state.permits))
        closed = permit.repair_id in {repair for repair, _ in self.closures}
        at = self.now if closed else None
        self.state, _ = budget.release(self.state, permit.repair_id, closed_at=at)
        self.decide()

    @precondition(lambda self: self.state.queue)
    @rule(data=st.data())
    def withdraw(self, data):
        waiting = data.draw(st.sampled_from(self.state.queue))
        self.state, _ = budget.release(self.state, waiting.repair_id)
        self.decide()

    @rule(number=NODES, hard=st.booleans())
    def withhold(self, number, hard):
        row = Withheld(f"n{number}", "no_fresh_data", hard=hard, since=self.now)
        self.state = budget.withhold(self.state, row)
        self.decide()

    @rule(number=NODES)
    def end_withhold(self, number):
        self.state, _ = budget.end_withhold(self.state, f"n{number}")
        self.decide()

    @rule(by=st.sampled_from([None, "ann"]))
    def freeze(self, by):
        self.state = budget.freeze(self.state, by=by)
        self.decide()

    # --- promises -------------------------------------------------------------------------------

    @invariant()
    def no_sliding_window_holds_more_closures_than_allowed(self):
        window = timedelta(seconds=self.policy.window_s)
        times = sorted(at for _, at in self.closures)
        for end in times:
            inside = sum(end - window < at <= end for at in times)
            assert inside <= self.policy.allowed(12)

    @invariant()
    def the_cap_counts_every_automatic_closure(self):
        assert len(self.state.closed()) <= self.policy.closures(12)
        assert len(self.state.permits) <= self.policy.out_at_once(12)

    @invariant()
    def one_per_group(self):
        groups = Counter(p.group for p in self.state.permits)
        assert all(count == 1 for count in groups.values())

    @invariant()
    def a_permit_is_granted_once(self):
        assert len(self.granted) == len(set(self.granted))

    @invariant()
    def pages_are_a_cooldown_apart(self):
        gap = timedelta(seconds=self.policy.cooldown_s)
        pairs = zip(self.pages, self.pages[1:], strict=False)
        assert all(later - earlier >= gap for earlier, later in pairs)

    @invariant()
    def who_waits_is_not_out_and_nobody_is_twice_in_a_list(self):
        out = [p.repair_id for p in self.state.permits]
        queue = [a.repair_id for a in self.state.queue]
        rows = [w.node for w in self.state.withheld]
        for names in (out, queue, rows):
            assert len(names) == len(set(names))
        assert not set(out) & set(queue)

    @invariant()
    def deciding_again_changes_nothing(self):
        again, decisions = budget.decide(self.state, policy=self.policy, now=self.now)
        assert decisions == ()
        assert again.closed() == self.state.closed()


def test_the_promises_hold_for_any_sequence():
    run_state_machine_as_test(
        PoolOfTwelve,
        settings=settings(max_examples=120, stateful_step_count=40, deadline=None),
    )


@settings(max_examples=60, deadline=None)
@given(
    policy=POLICIES,
    asks=st.lists(st.tuples(NODES, st.booleans(), SEVERITIES), max_size=12),
    lent=st.integers(0, 2),
)
def test_no_ask_waits_for_ever_when_permits_come_back(policy, asks, lent):
    """Time alone, at the moments `next_wake` names, lets every ask through."""
    state, now = budget.grant(BudgetState("train", nodes_on_record=12), lent), T0
    for number, hard, severity in {a[0]: a for a in asks}.values():
        node = f"n{number}"
        request = Ask(f"{node}.1", "w", node, f"g{number // 3}", severity, hard, "r", asked_at=now)
        state = budget.ask(state, request)
    for _ in range(200):
        state, decisions = budget.decide(state, policy=policy, now=now)
        for one in decisions:
            if one.kind is DecisionKind.GRANT:
                state, _ = budget.gate_closed(state, one.repair_id, at=now)
                state, _ = budget.release(state, one.repair_id)
        if not state.queue:
            break
        if not any(d.kind is DecisionKind.GRANT for d in decisions):
            wake = budget.next_wake(state, policy=policy, now=now)
            assert wake is not None
            now = wake
    assert state.queue == ()


@given(policy=POLICIES, lent=st.integers(0, 5), hard=st.lists(st.booleans(), max_size=12))
def test_lending_adds_exactly_what_was_lent(policy, lent, hard):
    calm = replace(policy, storm_factor=1e9)
    state = budget.grant(BudgetState("train", nodes_on_record=12), lent)
    for number, is_hard in enumerate(hard):
        request = Ask(f"n{number}", "w", f"n{number}", f"g{number}", Severity.MAJOR, is_hard, "r",
                      asked_at=T0)  # fmt: skip
        state = budget.ask(state, request)
    state, decisions = budget.decide(state, policy=calm, now=T0)
    grants = sum(d.kind is DecisionKind.GRANT for d in decisions)
    own = min(calm.allowed(12), calm.out_at_once(12))
    assert grants == min(len(hard), own + lent)
