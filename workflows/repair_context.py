"""What the stages of one repair share: its state, its records, and how it acts and asks people."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from activities.people import PeopleActivities
    from activities.records import RecordActivities
    from sickbay.contracts import names
    from sickbay.contracts.repair import RepairInput, RepairState, RepairView, StepView
    from sickbay.contracts.steps import (
        PageDraft,
        Permission,
        RepairRecord,
        StepRecord,
        StepRequest,
    )
    from sickbay.domain.gate import Hold, HoldKind, mark_of
    from sickbay.domain.node import Treatment
    from sickbay.domain.repair import (
        NEXT_STEP,
        TREATMENT_STAGES,
        Ending,
        Stage,
        StageOutcome,
        advance,
    )
    from workflows.options import local

NODE = SearchAttributeKey.for_keyword(names.NODE_ATTRIBUTE)
POOL = SearchAttributeKey.for_keyword(names.POOL_ATTRIBUTE)
STAGE = SearchAttributeKey.for_keyword(names.STAGE_ATTRIBUTE)
REASON = SearchAttributeKey.for_keyword(names.REASON_ATTRIBUTE)
LONGEST_RECHECK_FACTOR = 16

# In histories with this mark, an order ends the wait for an approval.
ORDER_ENDS_WAIT = "order-ends-approval-wait"


class Answer(Protocol):
    """What every act answers: whether a safety switch withheld it."""

    @property
    def withheld(self) -> Permission | None:
        """The switch, or None."""


AnswerT = TypeVar("AnswerT", bound=Answer)


@dataclass(frozen=True)
class Done:
    """How a stage ended, with what people should read."""

    outcome: StageOutcome
    detail: str = ""
    operation_id: str = ""
    evidence: tuple[str, ...] = ()


class RolledOver(Exception):
    """The history has to begin anew while an act waits for a switch: nothing of it has begun."""


class RepairContext:
    """State and services of one repair; only its workflow's coroutine changes it."""

    def __init__(self, inp: RepairInput, *, state: RepairState) -> None:
        self.inp = inp
        self.policy = inp.policy
        self.limits = inp.policy.limits()
        self.state = state
        self.approved_by: str | None = None

    def set(self, **changes: Any) -> None:
        """Replace fields of the state."""
        self.state = replace(self.state, **changes)

    @property
    def mark(self) -> str:
        """The scheduler mark of this repair's hold."""
        return mark_of(self.state.repair_id)

    def hold(self, *, by: str | None = None) -> Hold:
        """This repair's hold, as it should stand now."""
        s = self.state
        return Hold(
            id=self.mark,
            node=s.node.id,
            kind=HoldKind.QUARANTINE,
            owner="sickbay",
            mark=self.mark,
            reason=s.reason,
            placed_at=workflow.now(),
            release_condition=f"{s.progress.owed(self.limits)} passes in a row of the proof",
            next_step="the repair goes on: drain, diagnose, treat, prove",
            deadline=s.deadline,
            repair_id=s.repair_id,
            lifted_by=by,
        )

    def enter_stage(self) -> None:
        """Count the stage, set its deadline, and show it in Temporal's list."""
        s = self.state
        stage = s.progress.stage
        same = bool(s.steps) and s.steps[-1].stage == stage
        since = s.stage_since if same and stage is Stage.DRAIN else workflow.now()
        self.set(ordinal=s.ordinal + 1, stage_since=since, deadline=self.deadline_of(stage))
        if not same:
            self._upsert(stage)
        self.show("")

    def _upsert(self, stage: Stage) -> None:
        s = self.state
        values = [STAGE.value_set(str(stage))]
        if not s.steps:
            values += [
                NODE.value_set(s.node.id),
                POOL.value_set(s.node.pool),
                REASON.value_set(s.reason),
            ]
        workflow.upsert_search_attributes(values)

    def show(self, waiting_for: str) -> None:
        """Say what the repair waits for, in its view and in Temporal's details."""
        self.set(waiting_for=waiting_for)
        s = self.state
        details = f"**{s.progress.stage}** because {s.reason}: {NEXT_STEP[s.progress.stage]}"
        workflow.set_current_details(f"{details}\n\n{waiting_for}" if waiting_for else details)

    def deadline_of(self, stage: Stage) -> datetime:
        """When the stage is due, counted from now."""
        p = self.policy
        if stage in TREATMENT_STAGES and TREATMENT_STAGES[stage] is not Treatment.SWAP:
            seconds = p.treatment_deadline_s
        else:
            seconds = {
                Stage.PERMIT: p.permit_recheck_s,
                Stage.DRAIN: max(
                    p.drain_deadline_s(self.state.progress.severity), p.suite_deadline_s
                ),
                Stage.SWAP: p.swap_escalation_s,
                Stage.NEEDS_HUMAN: p.human_reminder_s,
            }.get(stage, p.suite_deadline_s)
        return workflow.now() + timedelta(seconds=seconds)

    def operation(self, verb: str) -> str:
        """The id under which `verb` of the present stage happens at most once."""
        s = self.state
        return names.operation_id(s.repair_id, s.ordinal, verb, s.run)

    async def act(self, verb: str, call: Callable[[StepRequest], Awaitable[AnswerT]]) -> AnswerT:
        """Act under one operation id; wait for an approval or for `sickbay go` where one is needed.

        An answer withheld by observe mode is returned as it is.

        Raises:
            RolledOver: it waited so long that the history has to begin anew; the act has not begun.
        """
        self.approved_by = None
        wait_s = self.policy.stopped_recheck_s
        longest_s = wait_s * LONGEST_RECHECK_FACTOR
        while True:
            s = self.state
            step = StepRequest(
                repair_id=s.repair_id,
                operation_id=self.operation(verb),
                node=s.node.id,
                pool=s.node.pool,
                approved_by=self.approved_by,
            )
            answer = await call(step)
            if answer.withheld in {None, Permission.OBSERVE}:
                return answer
            if answer.withheld is Permission.APPROVE:
                await self._wait_for_approval(verb)
            else:
                self.show(f"`sickbay go`: acts are stopped, {verb} waits")
                await self.record()
                await workflow.sleep(timedelta(seconds=wait_s))
                if workflow.info().is_continue_as_new_suggested():
                    raise RolledOver
                wait_s = min(2 * wait_s, longest_s)

    async def _wait_for_approval(self, verb: str) -> None:
        node = self.state.node.id
        self.show(f"approval of {verb}: `sickbay approve {node} --by NAME`")
        await self.record()
        text = f"{verb} of {node} waits for approval: `sickbay approve {node} --by NAME`"
        reminders = 0
        # The act has not begun: an order ends the wait, or neither would ever be carried out.
        heeds = workflow.patched(ORDER_ENDS_WAIT)
        while self.approved_by is None:
            if heeds and self.state.command is not None:
                self.show("")
                raise RolledOver
            await self.page(f"approve/{reminders}", text, urgent=False)
            reminders += 1
            try:
                await workflow.wait_condition(
                    lambda: (
                        self.approved_by is not None or (heeds and self.state.command is not None)
                    ),
                    timeout=timedelta(seconds=self.policy.human_reminder_s),
                )
            except TimeoutError:
                continue
        self.show("")

    async def page(self, what: str, summary: str, *, detail: str = "", urgent: bool = True) -> None:
        """Page people once per stage and `what`."""
        s = self.state
        draft = PageDraft(
            key=f"{s.repair_id}/{s.ordinal:03d}/{what}",
            pool=s.node.pool,
            node=s.node.id,
            summary=summary,
            detail=detail,
            urgent=urgent,
        )
        await workflow.execute_local_activity_method(PeopleActivities.page, draft, **local("page"))

    async def sleep_retry(self) -> None:
        """The pause before an inconclusive answer is asked for again."""
        await asyncio.sleep(self.policy.inconclusive_wait_s)

    async def settle(self, stage: Stage, done: Done) -> None:
        """Book the outcome, move to where the table says, and record both."""
        s = self.state
        moved = advance(s.progress, done.outcome, limits=self.limits)
        if isinstance(moved, Ending):
            self.set(ending=moved)
        else:
            self.set(progress=moved, deadline=self.deadline_of(moved.stage))
        view = StepView(
            ordinal=s.ordinal,
            stage=str(stage),
            outcome=str(done.outcome),
            detail=done.detail,
            started_at=s.stage_since,
            ended_at=workflow.now(),
        )
        self.set(steps=(*s.steps, view), waiting_for="")
        await self.record(self._step(view, stage, done))

    def _step(self, view: StepView, stage: Stage, done: Done) -> StepRecord:
        s = self.state
        acted = stage in TREATMENT_STAGES and done.outcome is not StageOutcome.OBSERVED
        return StepRecord(
            repair_id=s.repair_id,
            node=s.node.id,
            ordinal=view.ordinal,
            stage=view.stage,
            outcome=view.outcome,
            started_at=view.started_at,
            ended_at=view.ended_at,
            detail=view.detail,
            operation_id=done.operation_id,
            treatment=TREATMENT_STAGES[stage] if acted else None,
            part=s.progress.part,
            category=s.progress.category,
            evidence=done.evidence,
        )

    async def record_order(self, stage: Stage, *, outcome: str, detail: str) -> None:
        """Book a person's order as a step of its own and write the repair's row."""
        s = self.state
        now = workflow.now()
        view = StepView(s.ordinal + 1, str(stage), outcome, detail, s.stage_since, now)
        self.set(steps=(*s.steps, view), ordinal=s.ordinal + 1)
        step = StepRecord(
            repair_id=s.repair_id,
            node=s.node.id,
            ordinal=s.ordinal + 1,
            stage=str(stage),
            outcome=outcome,
            started_at=s.stage_since,
            ended_at=now,
            detail=detail,
        )
        await self.record(step)

    async def record(self, step: StepRecord | None = None) -> None:
        """Write the repair's row, and the step when a stage ended."""
        await workflow.execute_local_activity_method(
            RecordActivities.record_stage,
            args=[self._row(), step],
            **local("record_stage"),
        )

    def _row(self) -> RepairRecord:
        s = self.state
        p = s.progress
        now = workflow.now()
        cured = p.last_treatment if s.ending is Ending.RETURNED else None
        return RepairRecord(
            repair_id=s.repair_id,
            workflow_id=workflow.info().workflow_id,
            node=s.node.id,
            pool=s.node.pool,
            stage=str(p.stage),
            reason=s.reason,
            severity=p.severity,
            started_at=s.started_at,
            updated_at=now,
            part=p.part,
            category=p.category,
            next_step=s.waiting_for or NEXT_STEP[p.stage],
            deadline=s.deadline,
            confirmed=p.confirmed,
            cured_by=cured,
            ending=str(s.ending) if s.ending else None,
            ended_at=now if s.ending else None,
            ended_by=s.ended_by,
            paused_by=s.paused_by,
        )

    def view(self) -> RepairView:
        """The repair as people see it."""
        s = self.state
        p = s.progress
        part = s.node.part_in(p.slot) if p.slot else None
        return RepairView(
            repair_id=s.repair_id,
            node=s.node.id,
            pool=s.node.pool,
            stage=str(p.stage),
            since=s.stage_since,
            reason=s.reason,
            severity=p.severity,
            next_step=NEXT_STEP[p.stage],
            deadline=s.deadline,
            slot=p.slot,
            serial=part.serial if part else None,
            passes=p.passes,
            passes_owed=p.owed(self.limits),
            paused_by=s.paused_by,
            waiting_for=s.waiting_for,
            ending=str(s.ending) if s.ending else None,
        )
