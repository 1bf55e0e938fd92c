"""One repair of one node. Start reading here.

The loop performs the present stage, books its outcome, and goes where `domain.repair` says. Message
handlers only record what arrived; nothing here decides a rule, reads a clock or does I/O.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.records import RecordActivities
    from sickbay.contracts import names
    from sickbay.contracts.budget import PermitDecided
    from sickbay.contracts.repair import (
        Command,
        CommandKind,
        Fault,
        NeedsTime,
        OperatorNote,
        PartReplaced,
        RepairInput,
        RepairState,
        RepairView,
        Skip,
        StepView,
        WorkDone,
    )
    from sickbay.domain.node import Node
    from sickbay.domain.repair import LADDER, Ending, Progress, Stage, enter
    from workflows import repair_messages as refuse
    from workflows.options import local
    from workflows.repair_adoption import adopt, go_on, left_standing
    from workflows.repair_context import Done, RepairContext, RolledOver
    from workflows.repair_stages import RepairStages
    from workflows.repair_treatments import RepairTreatments

# A destructive act that has begun is waited for, whoever asks for what.
UNINTERRUPTED = {Stage.RESET, Stage.REBOOT, Stage.POWER_CYCLE, Stage.REFLASH, Stage.RETURN}
REFUSED = "Refused"
# The newest findings are kept: a storm of them must not grow the state without bound.
MOST_FAULTS = 100
# In histories with this mark, a repair that begins where a hold of ours stands goes on under it.
ADOPTS = "adopt-standing-hold"


@workflow.defn(name=names.REPAIR_WORKFLOW)
class NodeRepair:
    """Permit, drain, diagnose, treat, prove, return: until proven, or until a person ends it."""

    @workflow.init
    def __init__(self, inp: RepairInput) -> None:
        info = workflow.info()
        fresh = RepairState(
            repair_id=inp.adopted.repair_id
            if inp.adopted
            else names.repair_id(inp.node, info.first_execution_run_id, inp.generation),
            started_at=workflow.now(),
            stage_since=workflow.now(),
            node=Node(id=inp.node, pool=inp.pool, group="", rack="", node_class=""),
            faults=inp.faults,
        )
        self.context = RepairContext(inp, state=inp.carried or fresh)
        self.stages = RepairStages(self.context)
        self.treatments = RepairTreatments(self.context, stages=self.stages)
        self.perform: dict[Stage, Callable[[], Awaitable[Done | None]]] = {
            Stage.PERMIT: self.stages.permit,
            Stage.DRAIN: self.stages.drain,
            Stage.DIAGNOSE: self.stages.diagnose,
            Stage.RESET: self.treatments.reset,
            Stage.REBOOT: self.treatments.reboot,
            Stage.POWER_CYCLE: self.treatments.power_cycle,
            Stage.REFLASH: self.treatments.reflash,
            Stage.SWAP: self.treatments.swap,
            Stage.PROVE: self.treatments.prove,
            Stage.RETURN: self.stages.give_back,
            Stage.NEEDS_HUMAN: self.treatments.needs_human,
        }

    @workflow.run
    async def run(self, inp: RepairInput) -> RepairView:
        """The loop. Returns how the repair ended."""
        c = self.context
        if inp.carried is None:
            await self._begin()
        while c.state.ending is None:
            await workflow.wait_condition(lambda: not c.state.paused_by or self._ordered())
            if not self._ordered():
                stage = c.state.progress.stage
                c.enter_stage()
                done = await self._perform(stage)
                if done is not None:
                    await c.settle(stage, done)
            if self._ordered():
                await self._obey()
            if workflow.info().is_continue_as_new_suggested() and c.state.ending is None:
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(replace(inp, carried=c.state))
        seen = {f.id for f in c.state.faults}
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._hand_over(inp, seen)
        return c.view()

    def _hand_over(self, inp: RepairInput, seen: set[str]) -> None:
        """What came while this repair was ending begins the next one: no finding is lost."""
        s = self.context.state
        if s.ending is Ending.ABORTED:
            return
        proven_from = s.proven_from if s.ending is Ending.RETURNED else None
        late = tuple(
            f
            for f in s.faults
            if f.id not in seen or (proven_from is not None and f.observed_at > proven_from)
        )
        if late:
            generation = inp.generation + 1
            fresh = replace(inp, carried=None, adopted=None, faults=late, generation=generation)
            workflow.continue_as_new(fresh)

    async def _perform(self, stage: Stage) -> Done | None:
        """The stage's outcome; None: an order came first, or the history has to begin anew."""
        work = asyncio.ensure_future(self._begin_anew_or(self.perform[stage]()))
        if stage not in UNINTERRUPTED:
            await workflow.wait_condition(lambda: work.done() or self._ordered())
        if work.done() or stage in UNINTERRUPTED:
            return await work
        work.cancel()
        await workflow.wait([work])
        if not work.cancelled():
            work.exception()
        return None

    async def _begin_anew_or(self, stage: Awaitable[Done | None]) -> Done | None:
        try:
            return await stage
        except RolledOver:
            return None

    def _ordered(self) -> bool:
        return self.context.state.command is not None

    async def _begin(self) -> None:
        """Wait for the first fault, then load what the store knows and choose the suspect."""
        c = self.context
        if c.inp.adopted is not None:
            await adopt(c, c.inp.adopted)
            return
        await workflow.wait_condition(lambda: bool(c.state.faults))
        known = await workflow.execute_local_activity_method(
            RecordActivities.load_node,
            args=[c.inp.node, c.policy],
            **local("load_node"),
        )
        worst = max(c.state.faults, key=lambda f: (f.hard, f.severity.rank))
        left = left_standing(known, worst, besides=c.state.repair_id)
        if left is not None and workflow.patched(ADOPTS):
            await go_on(c, known, left, first=worst.treatment)
            return
        part = known.node.part_in(worst.slot) if worst.slot else None
        key = part.uuid if part else known.node.id
        category = str(worst.category) if worst.category else "unknown"
        tried = [a.treatment for a in known.attempts if (a.part, a.category) == (key, category)]
        beyond = max(tried, key=LADDER.index) if tried and known.in_probation else None
        progress = Progress(
            severity=worst.severity,
            part=key,
            slot=worst.slot if part else None,
            categories=(worst.category,) if worst.category else (),
            first_treatment=worst.treatment,
            beyond=beyond,
            attempts=known.attempts,
            evidence=tuple(dict.fromkeys(f.source for f in c.state.faults)),
        )
        c.set(
            node=known.node,
            last_return_at=known.last_return_at,
            progress=progress,
            reason=worst.reason,
        )
        c.set(deadline=c.deadline_of(Stage.PERMIT))
        await c.record()

    async def _obey(self) -> None:
        """Carry out a person's order; the order is recorded as a step of its own."""
        c = self.context
        order = c.state.command
        if order is None or c.state.ending is not None:
            return
        stage = c.state.progress.stage
        c.set(command=None)
        if order.kind is CommandKind.SKIP and order.stage is not None:
            moved = enter(replace(c.state.progress, passes=0), order.stage)
            c.set(progress=moved)
        elif order.kind is CommandKind.ABORT:
            await self._abort(order)
        elif order.kind is CommandKind.RELEASE:
            await self._release(order)
        text = f"{order.by}: {order.reason}"
        await c.record_order(stage, outcome=str(order.kind), detail=text)

    async def _abort(self, order: Command) -> None:
        """The gate stays closed in a person's name; a permit that closed nothing goes back."""
        c = self.context
        if c.state.gate_closed:
            kept = replace(
                c.hold(),
                owner=order.by,
                reason=f"{c.state.reason}; aborted: {order.reason}",
                release_condition="released by a person",
                next_step=f"{order.by} decides: `sickbay release {c.state.node.id}`",
                deadline=None,
            )
            await workflow.execute_local_activity_method(
                RecordActivities.keep_hold, kept, **local("keep_hold")
            )
            await self.stages.close_tickets(f"aborted by {order.by}: {order.reason}")
        else:
            await self.stages.release_permit()
        c.set(ending=Ending.ABORTED, ended_by=order.by)

    async def _release(self, order: Command) -> None:
        """A named person takes the node back unproven: our hold goes, and it is no return."""
        c = self.context
        # Also when this repair closed nothing: an earlier one may have left a hold of ours.
        while not await self.stages.open_gate(by=order.by):
            await c.sleep_retry()
        await self.stages.release_permit()
        await self.stages.close_tickets(f"released by {order.by}, unproven: {order.reason}")
        c.set(ending=Ending.RELEASED_BY_PERSON, ended_by=order.by)

    # --- messages: they record, the loop acts ---------------------------------------------------

    @workflow.signal(name="fault_reported")
    def fault_reported(self, fault: Fault) -> None:
        """A finding about this node; the same id again is the same finding."""
        faults = self.context.state.faults
        if all(f.id != fault.id for f in faults):
            self.context.set(faults=(*faults, fault)[-MOST_FAULTS:])

    @workflow.signal(name="permit_decided")
    def permit_decided(self, decision: PermitDecided) -> None:
        """The budget's answer; an answer to an earlier repair of this node is not ours."""
        if decision.repair_id == self.context.state.repair_id:
            self.stages.decision = decision

    @workflow.update(name="part_replaced")
    def part_replaced(self, report: PartReplaced) -> RepairView:
        """A technician replaced a part; the machine will be asked whether it is true."""
        self.treatments.report = report
        return self.context.view()

    @part_replaced.validator
    def _check_part_replaced(self, report: PartReplaced) -> None:
        _refuse(refuse.part_replaced(self.context.state, self.treatments.report, report))

    @workflow.update(name="work_done")
    def work_done(self, report: WorkDone) -> RepairView:
        """A technician did work that changed no serial."""
        self.treatments.report = report
        return self.context.view()

    @work_done.validator
    def _check_work_done(self, report: WorkDone) -> None:
        _refuse(refuse.hands_on(self.context.state, self.treatments.report, report.slot))

    @workflow.update(name="cannot_fix")
    def cannot_fix(self, report: OperatorNote) -> RepairView:
        """The technician cannot mend it: a person decides what follows."""
        self.treatments.report = report
        return self.context.view()

    @cannot_fix.validator
    def _check_cannot_fix(self, report: OperatorNote) -> None:
        _refuse(refuse.named(self.context.state, report))
        _refuse(refuse.hands_on(self.context.state, self.treatments.report, None))

    @workflow.update(name="needs_time")
    def needs_time(self, report: NeedsTime) -> RepairView:
        """The technician needs longer before the next reminder."""
        seconds = report.hours * self.context.policy.hour_s
        self.treatments.remind_at = workflow.now() + timedelta(seconds=seconds)
        return self.context.view()

    @needs_time.validator
    def _check_needs_time(self, report: NeedsTime) -> None:
        _refuse(refuse.needs_time(self.context.state, report))

    @workflow.update(name="approve")
    def approve(self, note: OperatorNote) -> RepairView:
        """A person approves the act that waits."""
        self.context.approved_by = note.by
        return self.context.view()

    @approve.validator
    def _check_approve(self, note: OperatorNote) -> None:
        _refuse(refuse.approve(self.context.state, note))

    @workflow.update(name="pause")
    def pause(self, note: OperatorNote) -> RepairView:
        """Begin no further stage until resumed; a stage under way ends first."""
        self.context.set(paused_by=note.by)
        return self.context.view()

    @pause.validator
    def _check_pause(self, note: OperatorNote) -> None:
        _refuse(refuse.pause(self.context.state, note))

    @workflow.update(name="resume")
    def resume(self, note: OperatorNote) -> RepairView:
        """Go on after a pause, or after a person was asked."""
        self.context.set(paused_by=None)
        self.treatments.resumed_by = note.by
        return self.context.view()

    @resume.validator
    def _check_resume(self, note: OperatorNote) -> None:
        _refuse(refuse.resume(self.context.state, note))

    @workflow.update(name="skip")
    def skip(self, order: Skip) -> RepairView:
        """Go to another stage; the owed proof is never skipped."""
        stage = Stage(order.stage)
        command = Command(CommandKind.SKIP, by=order.by, reason=order.reason, stage=stage)
        self.context.set(command=command, paused_by=None)
        return self.context.view()

    @skip.validator
    def _check_skip(self, order: Skip) -> None:
        _refuse(refuse.skip(self.context.state, order, self.context.limits))

    @workflow.update(name="abort")
    def abort(self, note: OperatorNote) -> RepairView:
        """End the repair; the gate stays closed in this person's name."""
        self.context.set(command=Command(CommandKind.ABORT, by=note.by, reason=note.reason))
        return self.context.view()

    @abort.validator
    def _check_abort(self, note: OperatorNote) -> None:
        _refuse(refuse.named(self.context.state, note))

    @workflow.update(name="release")
    def release(self, note: OperatorNote) -> RepairView:
        """End the repair and take our hold away, unproven, in this person's name."""
        self.context.set(command=Command(CommandKind.RELEASE, by=note.by, reason=note.reason))
        return self.context.view()

    @release.validator
    def _check_release(self, note: OperatorNote) -> None:
        _refuse(refuse.named(self.context.state, note))

    @workflow.query(name="status")
    def status(self) -> RepairView:
        """The repair as people see it."""
        return self.context.view()

    @workflow.query(name="history")
    def history(self) -> list[StepView]:
        """The finished stages, in order."""
        return list(self.context.state.steps)


def _refuse(sentence: str | None) -> None:
    """Reject an update with a sentence that says what is wanted.

    Raises:
        ApplicationError: of type `Refused`, when there is a sentence.
    """
    if sentence:
        raise ApplicationError(sentence, type=REFUSED, non_retryable=True)
