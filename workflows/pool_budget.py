"""One pool's budget: carries messages, keeps the state, and lets `domain.budget` decide."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.gate import GateActivities
    from activities.people import PeopleActivities
    from activities.permit import PermitActivities
    from sickbay.contracts import names
    from sickbay.contracts.budget import (
        BudgetGrant,
        BudgetInput,
        BudgetPage,
        BudgetSwitch,
        BudgetView,
        GateClosed,
        PermitAdopted,
        PermitAsk,
        PermitDecided,
        PermitEvent,
        PermitReleased,
        ReconcileRequest,
        WithholdAsk,
        WithholdEnded,
        WithholdRequest,
    )
    from sickbay.contracts.steps import Permission
    from sickbay.domain import budget
    from sickbay.domain.budget_state import Ask, BudgetState, Decision, DecisionKind, Withheld
    from workflows.options import durable, local

# Temporal allows 2,000 pending signals to other workflows; a turn stays far below.
CHUNK = 200
LARGEST_GRANT = 1000


@workflow.defn(name=names.BUDGET_WORKFLOW)
class PoolBudget:
    """Grants permits inside window, cap and groups; pages a human when they are spent."""

    @workflow.init
    def __init__(self, inp: BudgetInput) -> None:
        self.inp = inp
        fresh = BudgetState(pool=inp.pool, nodes_on_record=inp.nodes_on_record)
        self.state = inp.carried or fresh
        self.pending: list[Decision] = []
        self.events: list[PermitEvent] = []
        self.dirty = True
        self.stopped = False
        self.reconcile_at = workflow.now() + timedelta(seconds=inp.reconcile_s)

    @workflow.run
    async def run(self, inp: BudgetInput) -> None:
        """Decide, carry out, wait for a message or for time to change the answer."""
        while not self.stopped:
            self.dirty = False
            if workflow.now() >= self.reconcile_at:
                await self._reconcile()
            self.state, decisions = budget.decide(self.state, policy=inp.policy, now=workflow.now())
            queued, self.pending = self.pending, []
            # One after the other: a mark that ends and is placed again must not race itself.
            await self._carry_out(queued)
            await self._carry_out(decisions)
            await self._record()
            if workflow.info().is_continue_as_new_suggested() and not self._must_go_on():
                await workflow.wait_condition(workflow.all_handlers_finished)
                if not self._must_go_on():
                    workflow.continue_as_new(replace(inp, carried=self.state))
            await self._wait()
        await workflow.wait_condition(workflow.all_handlers_finished)

    def _must_go_on(self) -> bool:
        """A message that came meanwhile is answered by this run: only the state is carried."""
        return self.dirty or self.stopped

    async def _wait(self) -> None:
        now = workflow.now()
        wake = budget.next_wake(self.state, policy=self.inp.policy, now=now)
        until = min(wake or self.reconcile_at, self.reconcile_at)
        try:
            await workflow.wait_condition(
                lambda: self.dirty or self.stopped, timeout=max(until - now, timedelta(0))
            )
        except TimeoutError:
            return

    async def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for start in range(0, len(decisions), CHUNK):
            await asyncio.gather(*(self._do(d) for d in decisions[start : start + CHUNK]))

    async def _do(self, decision: Decision) -> None:
        match decision.kind:
            case DecisionKind.GRANT:
                await self._tell(decision)
            case DecisionKind.WITHHOLD:
                result = await workflow.execute_activity_method(
                    GateActivities.withhold, self._withhold(decision), **durable("withhold")
                )
                if not result.ok:
                    observed = result.withheld is Permission.OBSERVE
                    self.state = budget.not_withheld(self.state, decision.node, drop=observed)
            case DecisionKind.END_WITHHOLD:
                await workflow.execute_activity_method(
                    GateActivities.end_withhold,
                    self._withhold(decision),
                    **durable("end_withhold"),
                )
            case DecisionKind.PAGE:
                page = BudgetPage(
                    key=decision.repair_id,
                    pool=self.inp.pool,
                    text=decision.text,
                    factors=tuple(dict(f) for f in decision.factors),
                )
                await workflow.execute_local_activity_method(
                    PeopleActivities.page_budget, page, **local("page_budget")
                )

    async def _tell(self, decision: Decision) -> None:
        """Tell the repair of its permit; a repair that is gone gives it back at once."""
        handle = workflow.get_external_workflow_handle(decision.workflow_id)
        answer = PermitDecided(repair_id=decision.repair_id, granted=True)
        try:
            await handle.signal("permit_decided", answer)
        except ApplicationError:
            self._release(decision.repair_id, why="its repair no longer runs")
            return
        self._book(decision.repair_id, decision.node, "granted")

    def _withhold(self, decision: Decision) -> WithholdRequest:
        deadline = workflow.now() + timedelta(seconds=self.inp.policy.window_s)
        return WithholdRequest(self.inp.pool, decision.node, decision.text, deadline=deadline)

    async def _reconcile(self) -> None:
        """Free the permits whose repair ended and left no hold."""
        permits = {p.repair_id: p.workflow_id for p in self.state.permits}
        self.reconcile_at = workflow.now() + timedelta(seconds=self.inp.reconcile_s)
        if not permits:
            return
        free = await workflow.execute_local_activity_method(
            PermitActivities.reconcile_permits,
            ReconcileRequest(pool=self.inp.pool, permits=permits),
            **local("reconcile_permits"),
        )
        for repair_id in free:
            self._release(repair_id, why="reconciled: its repair no longer runs")

    async def _record(self) -> None:
        events, self.events = self.events, []
        if events:
            await workflow.execute_local_activity_method(
                PermitActivities.record_permits, events, **local("record_permits")
            )

    def _book(self, repair_id: str, node: str, event: str, *, detail: str = "") -> None:
        row = PermitEvent(self.inp.pool, repair_id, node, event, workflow.now(), detail=detail)
        self.events.append(row)

    def _take(self, change: tuple[BudgetState, Iterable[Decision]]) -> None:
        self.state, decisions = change
        self.pending.extend(decisions)
        self.dirty = True

    def _release(self, repair_id: str, *, why: str, closed_at: datetime | None = None) -> None:
        held = {p.repair_id: p.node for p in self.state.permits}
        waiting = {a.repair_id: a.node for a in self.state.queue}
        node = held.get(repair_id) or waiting.get(repair_id)
        if node:
            self._book(repair_id, node, "released", detail=why)
        self._take(budget.release(self.state, repair_id, closed_at=closed_at))

    # --- messages -------------------------------------------------------------------------------

    @workflow.signal(name="ask_permit")
    def ask_permit(self, message: PermitAsk) -> None:
        """A repair asks; asked again after a grant, it is told again."""
        granted = [p for p in self.state.permits if p.repair_id == message.repair_id]
        request = Ask(asked_at=workflow.now(), **vars(message))
        self._take((budget.ask(self.state, request), ()))
        if granted:
            told = Decision(
                DecisionKind.GRANT,
                node=message.node,
                repair_id=message.repair_id,
                workflow_id=message.workflow_id,
            )
            self.pending.append(told)
        else:
            self._book(message.repair_id, message.node, "asked", detail=message.reason)

    @workflow.signal(name="adopt_permit")
    def adopt_permit(self, message: PermitAdopted) -> None:
        """A repair goes on under a hold that stands: its node is out already."""
        ask = message.ask
        known = any(p.repair_id == ask.repair_id for p in self.state.permits)
        request = Ask(asked_at=workflow.now(), **vars(ask))
        self._take(budget.adopt(self.state, request, closed_at=message.closed_at))
        if not known:
            self._book(ask.repair_id, ask.node, "adopted", detail=ask.reason)

    @workflow.signal(name="gate_closed")
    def gate_closed(self, message: GateClosed) -> None:
        """The scheduler closed the gate: the window counts from this moment."""
        self._take(budget.gate_closed(self.state, message.repair_id, at=message.at))

    @workflow.signal(name="release_permit")
    def release_permit(self, message: PermitReleased) -> None:
        """A repair gives its permit or its place back."""
        closed_at = workflow.now() if message.closed else None
        self._release(message.repair_id, why="given back", closed_at=closed_at)

    @workflow.signal(name="ask_withhold")
    def ask_withhold(self, message: WithholdAsk) -> None:
        """The scorer asks to keep new work off a node."""
        row = Withheld(since=workflow.now(), **vars(message))
        self._take((budget.withhold(self.state, row), ()))

    @workflow.signal(name="end_withhold")
    def end_withhold(self, message: WithholdEnded) -> None:
        """The reason to withhold a node is gone."""
        self._take(budget.end_withhold(self.state, message.node))

    @workflow.signal(name="resize")
    def resize(self, nodes_on_record: int) -> None:
        """The pool's number of nodes on record changed."""
        self._take((replace(self.state, nodes_on_record=nodes_on_record), ()))

    @workflow.signal(name="stop")
    def stop(self) -> None:
        """End this workflow; its state is lost, so only an empty pool's budget is stopped."""
        self.stopped = True

    @workflow.update(name="grant")
    def grant(self, message: BudgetGrant) -> BudgetView:
        """A person lends closures beyond the window and the cap."""
        self._take((budget.grant(self.state, message.count), ()))
        self._book("", "", "lent", detail=f"{message.count} by {message.by}: {message.reason}")
        return self._view()

    @grant.validator
    def _check_grant(self, message: BudgetGrant) -> None:
        if not 0 < message.count <= LARGEST_GRANT:
            _refuse(f"lend between 1 and {LARGEST_GRANT} closures")
        _named(message.by, message.reason)

    @workflow.update(name="freeze")
    def freeze(self, message: BudgetSwitch) -> BudgetView:
        """A person stops all grants of this pool."""
        frozen = budget.freeze(self.state, by=message.by, reason=message.reason)
        self._take((frozen, ()))
        self._book("", "", "frozen", detail=f"by {message.by}: {message.reason}")
        return self._view()

    @freeze.validator
    def _check_freeze(self, message: BudgetSwitch) -> None:
        if self.state.frozen_by:
            _refuse(f"{self.inp.pool} is already frozen by {self.state.frozen_by}")
        _named(message.by, message.reason)

    @workflow.update(name="unfreeze")
    def unfreeze(self, message: BudgetSwitch) -> BudgetView:
        """A person lets grants go on."""
        self._take((budget.freeze(self.state, by=None), ()))
        self._book("", "", "unfrozen", detail=f"by {message.by}: {message.reason}")
        return self._view()

    @unfreeze.validator
    def _check_unfreeze(self, message: BudgetSwitch) -> None:
        if not self.state.frozen_by:
            _refuse(f"{self.inp.pool} is not frozen")
        _named(message.by, message.reason)

    @workflow.query(name="status")
    def status(self) -> BudgetView:
        """The budget as people see it."""
        return self._view()

    def _view(self) -> BudgetView:
        s, policy = self.state, self.inp.policy
        return BudgetView(
            pool=s.pool,
            nodes_on_record=s.nodes_on_record,
            allowed=policy.allowed(s.nodes_on_record),
            window_s=policy.window_s,
            spent=len(s.spent),
            extra=s.extra,
            out=s.out(),
            withheld=tuple(w.node for w in s.withheld if w.placed),
            cap=policy.closures(s.nodes_on_record),
            queue=tuple(a.node for a in s.queue),
            frozen_by=s.frozen_by,
            storm_until=s.storm_until,
            refused=s.refused,
            granted=s.granted,
        )


def _named(by: str, reason: str) -> None:
    if not by.strip():
        _refuse("give your name (--by)")
    if not reason.strip():
        _refuse("give a reason (--reason)")


def _refuse(sentence: str) -> None:
    """Reject an update. Raises: ApplicationError: of type `Refused`, always."""
    raise ApplicationError(sentence, type="Refused", non_retryable=True)
