"""One pool's budget: carries messages, keeps the state, and lets `domain.budget` decide."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

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
        Recheck,
        ReconcileRequest,
        WithholdAsk,
        WithholdEnded,
        WithholdRequest,
    )
    from sickbay.contracts.steps import Permission
    from sickbay.domain import budget
    from sickbay.domain.budget_book import Book
    from sickbay.domain.budget_rows import from_rows, to_rows
    from sickbay.domain.budget_state import Ask, BudgetState, Decision, DecisionKind, Withheld
    from workflows.budget_orders import named, order_id, refuse, view_of
    from workflows.options import local, mark

# Temporal allows 2,000 pending signals to other workflows; a turn stays far below.
CHUNK = 200
LARGEST_GRANT = 1000
RETRY_S = 60.0
TELLS = {DecisionKind.GRANT, DecisionKind.REFUSE}

Message = Callable[[Book], None]


@workflow.defn(name=names.BUDGET_WORKFLOW)
class PoolBudget:
    """Grants permits inside window, cap and groups; pages a human when they are spent.

    Handlers only put what arrived into `inbox`; the loop books it in one go, so that thousands of
    messages in one task cost as little each as one.
    """

    @workflow.init
    def __init__(self, inp: BudgetInput) -> None:
        self.inp = inp
        fresh = BudgetState(pool=inp.pool, nodes_on_record=inp.nodes_on_record)
        self.state = from_rows(inp.rows) if inp.rows else inp.carried or fresh
        self.inbox: list[Message] = []
        self.pending = list(inp.pending)
        self.events = list(inp.events)
        self.dirty = True
        self.stopped = False
        self.retry_at = workflow.now() if inp.pending else None
        self.reconcile_at = workflow.now() + timedelta(seconds=inp.reconcile_s)

    @workflow.run
    async def run(self, inp: BudgetInput) -> None:
        """Decide, carry out, wait for a message or for time to change the answer."""
        while not self.stopped:
            self.dirty = False
            if self.retry_at and workflow.now() >= self.retry_at:
                self.retry_at = None
            if workflow.now() >= self.reconcile_at:
                await self._reconcile()
            self._book_inbox()
            self.state, decisions = budget.decide(self.state, policy=inp.policy, now=workflow.now())
            queued, self.pending = self.pending, []
            # One after the other: a mark that ends and is placed again must not race itself.
            await self._carry_out(queued)
            await self._carry_out(decisions)
            # A turn that was full has left some for the next; what failed waits for a message.
            full = len(decisions) >= budget.DECISIONS_PER_TURN
            self.dirty = self.dirty or (full and not self.inbox)
            await self._record()
            await self._wait()
            if workflow.info().is_continue_as_new_suggested():
                await self._begin_anew()
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _begin_anew(self) -> None:
        """Continue as new with all that is known, also while messages keep coming.

        Only ever after a wait, and with no command before the end: whether it is time may read
        otherwise on replay. What arrived and is not yet answered is carried; where that is much, it
        is answered first.
        """
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._book_inbox()
        if self.stopped or len(self.pending) + len(self.events) > CHUNK:
            return
        anew = replace(
            self.inp,
            carried=None,
            rows=to_rows(self.state),
            pending=tuple(self.pending),
            events=tuple(self.events),
        )
        workflow.continue_as_new(anew)

    async def _wait(self) -> None:
        now = workflow.now()
        wake = budget.next_wake(self.state, policy=self.inp.policy, now=now)
        until = min(t for t in (wake, self.retry_at, self.reconcile_at) if t)
        try:
            await workflow.wait_condition(
                lambda: self.dirty or self.stopped, timeout=max(until - now, timedelta(0))
            )
        except TimeoutError:
            return

    def _book_inbox(self) -> None:
        """Book what arrived, in the order it arrived."""
        if not self.inbox:
            return
        book = self._read_inbox()
        self.inbox.clear()
        self.state = book.state()
        self.pending.extend(book.decisions)
        self.events.extend(
            PermitEvent(self.inp.pool, n.repair_id, n.node, n.event, n.at, detail=n.detail)
            for n in book.notes
        )

    def _read_inbox(self) -> Book:
        book = Book(self.state, policy=self.inp.policy)
        for message in self.inbox:
            message(book)
        return book

    # --- carrying out ---------------------------------------------------------------------------

    async def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for start in range(0, len(decisions), CHUNK):
            chunk = decisions[start : start + CHUNK]
            checks = [d for d in chunk if d.kind is DecisionKind.RECHECK]
            acts = [d for d in chunk if d.kind is not DecisionKind.RECHECK]
            await asyncio.gather(*(self._do(d) for d in acts))
            if checks:
                await self._recheck(checks)

    async def _do(self, decision: Decision) -> None:
        """Carry out one decision; one that cannot be carried out never ends the budget."""
        if decision.kind in TELLS:
            await self._tell(decision)
            return
        try:
            await self._act(decision)
        except ActivityError as error:
            self._not_done(decision, error)

    def _not_done(self, decision: Decision, error: ActivityError) -> None:
        """What took too long is tried again after a while; what can never succeed is recorded."""
        again = error.retry_state is not RetryState.NON_RETRYABLE_FAILURE
        later = workflow.now() + timedelta(seconds=RETRY_S)
        if decision.kind is DecisionKind.PAGE:
            self.inbox.append(Book.not_paged)
        elif decision.kind is DecisionKind.WITHHOLD:
            undo = partial(Book.not_withheld, node=decision.node, drop=not again, until=later)
            self.inbox.append(undo)
        elif again:
            self.pending.append(decision)
            self.retry_at = later
        cause = getattr(error.cause, "message", "") or str(error)
        self._book("", decision.node, "failed", detail=f"{decision.kind}: {cause}")

    async def _act(self, decision: Decision) -> None:
        match decision.kind:
            case DecisionKind.WITHHOLD:
                result = await workflow.execute_activity_method(
                    GateActivities.withhold, self._withhold(decision), **mark("withhold")
                )
                if not result.ok:
                    observed = result.withheld is Permission.OBSERVE
                    undo = partial(Book.not_withheld, node=decision.node, drop=observed)
                    self.inbox.append(undo)
            case DecisionKind.END_WITHHOLD:
                await workflow.execute_activity_method(
                    GateActivities.end_withhold,
                    self._withhold(decision),
                    **mark("end_withhold"),
                )
            case DecisionKind.PAGE:
                page = BudgetPage(
                    key=decision.repair_id,
                    pool=self.inp.pool,
                    text=decision.text,
                    failing=decision.failing,
                    carriers={name: dict(counts) for name, counts in decision.carriers.items()},
                )
                await workflow.execute_local_activity_method(
                    PeopleActivities.page_budget, page, **local("page_budget")
                )

    async def _tell(self, decision: Decision) -> None:
        """Tell the repair its answer; a repair that is gone gives its permit back at once."""
        handle = workflow.get_external_workflow_handle(decision.workflow_id)
        granted = decision.kind is DecisionKind.GRANT
        answer = PermitDecided(decision.repair_id, granted=granted, reason=decision.text)
        try:
            await handle.signal("permit_decided", answer)
        except ApplicationError:
            if granted:
                self._release(decision.repair_id, why="its repair no longer runs")
            return
        if granted:
            self._book(decision.repair_id, decision.node, "granted", at=decision.since)

    async def _recheck(self, decisions: Sequence[Decision]) -> None:
        """Read the present health of asks that were held back, before any of them is granted."""
        asks = [Recheck(d.repair_id, d.node, d.since) for d in decisions if d.since]
        recovered = await workflow.execute_local_activity_method(
            PermitActivities.recheck_health, args=[asks], **local("recheck_health")
        )
        asked = [d.repair_id for d in decisions]
        now = workflow.now()
        self._take(lambda book: book.rechecked(asked, recovered=recovered, at=now))

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
        for start in range(0, len(events), CHUNK):
            chunk = events[start : start + CHUNK]
            await workflow.execute_local_activity_method(
                PermitActivities.record_permits, chunk, **local("record_permits")
            )

    def _book(
        self, key: str, node: str, event: str, *, detail: str = "", at: datetime | None = None
    ) -> None:
        """Record one line under the id of its repair, or of a person's order."""
        moment = at or workflow.now()
        self.events.append(PermitEvent(self.inp.pool, key, node, event, moment, detail=detail))

    def _take(self, message: Message) -> None:
        self.inbox.append(message)
        self.dirty = True

    def _release(
        self,
        repair_id: str,
        *,
        why: str,
        closed_at: datetime | None = None,
        at: datetime | None = None,
    ) -> None:
        moment = at or workflow.now()
        self._take(lambda book: book.release(repair_id, at=moment, why=why, closed_at=closed_at))

    def _change(self, event: str, state: BudgetState, *, detail: str) -> BudgetView:
        """Book a person's order at once, under its id: asked again, it is the same order."""
        self.state = budget.ordered(state, order_id())
        self.dirty = True
        self._book(order_id(), "", event, detail=detail)
        return self._view()

    def _is_known(self) -> bool:
        return order_id() in self.state.orders

    # --- messages -------------------------------------------------------------------------------

    @workflow.signal(name="ask_permit")
    def ask_permit(self, message: PermitAsk) -> None:
        """A repair asks; asked again after a grant, it is told again."""
        request, at = _booked(message), message.at or workflow.now()
        self._take(lambda book: book.ask(request, at=at))

    @workflow.signal(name="adopt_permit")
    def adopt_permit(self, message: PermitAdopted) -> None:
        """A repair goes on under a hold that stands: its node is out already."""
        request = _booked(message.ask)
        self._take(lambda book: book.adopt(request, closed_at=message.closed_at))

    @workflow.signal(name="gate_closed")
    def gate_closed(self, message: GateClosed) -> None:
        """The scheduler closed the gate: the window counts from this moment."""
        self._take(lambda book: book.gate_closed(message.repair_id, at=message.at))

    @workflow.signal(name="release_permit")
    def release_permit(self, message: PermitReleased) -> None:
        """A repair gives its permit or its place back."""
        closed_at = workflow.now() if message.closed else None
        self._release(message.repair_id, why="given back", closed_at=closed_at, at=message.at)

    @workflow.signal(name="ask_withhold")
    def ask_withhold(self, message: WithholdAsk) -> None:
        """The scorer asks to keep new work off a node."""
        row = Withheld(since=workflow.now(), **vars(message))
        self._take(lambda book: book.withhold(row))

    @workflow.signal(name="end_withhold")
    def end_withhold(self, message: WithholdEnded) -> None:
        """The reason to withhold a node is gone."""
        self._take(lambda book: book.end_withhold(message.node))

    @workflow.signal(name="resize")
    def resize(self, nodes_on_record: int) -> None:
        """The pool's number of nodes on record changed."""
        self._take(lambda book: book.resize(nodes_on_record))

    @workflow.signal(name="stop")
    def stop(self) -> None:
        """End this workflow; its state is lost, so only an empty pool's budget is stopped."""
        self.stopped = True

    @workflow.update(name="grant")
    def grant(self, message: BudgetGrant) -> BudgetView:
        """A person lends closures beyond the window and the cap."""
        self._book_inbox()
        if self._is_known():
            return self._view()
        lent = budget.grant(self.state, message.count)
        detail = f"{message.count} by {message.by}: {message.reason}"
        return self._change("lent", lent, detail=detail)

    @grant.validator
    def _check_grant(self, message: BudgetGrant) -> None:
        if not 0 < message.count <= LARGEST_GRANT:
            refuse(f"lend between 1 and {LARGEST_GRANT} closures")
        named(message.by, message.reason)

    @workflow.update(name="freeze")
    def freeze(self, message: BudgetSwitch) -> BudgetView:
        """A person stops all grants of this pool."""
        self._book_inbox()
        if self._is_known():
            return self._view()
        frozen = budget.freeze(self.state, by=message.by, reason=message.reason)
        return self._change("frozen", frozen, detail=f"by {message.by}: {message.reason}")

    @freeze.validator
    def _check_freeze(self, message: BudgetSwitch) -> None:
        if self.state.frozen_by and not self._is_known():
            refuse(f"{self.inp.pool} is already frozen by {self.state.frozen_by}")
        named(message.by, message.reason)

    @workflow.update(name="unfreeze")
    def unfreeze(self, message: BudgetSwitch) -> BudgetView:
        """A person lets grants go on."""
        self._book_inbox()
        if self._is_known():
            return self._view()
        thawed = budget.freeze(self.state, by=None)
        return self._change("unfrozen", thawed, detail=f"by {message.by}: {message.reason}")

    @unfreeze.validator
    def _check_unfreeze(self, message: BudgetSwitch) -> None:
        if not self.state.frozen_by and not self._is_known():
            refuse(f"{self.inp.pool} is not frozen")
        named(message.by, message.reason)

    @workflow.query(name="status")
    def status(self) -> BudgetView:
        """The budget as people see it."""
        return self._view()

    def _view(self) -> BudgetView:
        return view_of(self._read_inbox().state(), self.inp.policy)


def _booked(message: PermitAsk) -> Ask:
    """The ask as the budget keeps it, from now on."""
    fields = {name: value for name, value in vars(message).items() if name != "at"}
    return Ask(asked_at=workflow.now(), **fields)
