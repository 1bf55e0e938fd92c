"""How the treatments are performed, and how people are waited for.

Acts on the node itself, the swap by a technician, and the wait for a person to decide.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.checks import CheckActivities
    from activities.effects import WAITS
    from activities.out_of_band import OutOfBandActivities
    from activities.people import PeopleActivities
    from activities.records import RecordActivities
    from activities.treatment import NOT_DRAINED, TreatmentActivities
    from sickbay.contracts.names import node_queue
    from sickbay.contracts.repair import OperatorNote, PartReplaced, WorkDone
    from sickbay.contracts.steps import (
        NodeFacts,
        Outcome,
        StepRequest,
        StepResult,
        TicketAnswer,
        TicketDraft,
        TicketRequest,
        TreatmentRequest,
    )
    from sickbay.domain.node import Category, Node, Part, Treatment
    from sickbay.domain.repair import StageOutcome
    from workflows.options import local, on_node, out_of_band
    from workflows.repair_context import Done, RepairContext
    from workflows.repair_stages import RepairStages

# How many heartbeats long a node may go on answering that it cannot name its parts.
FACTS_BEATS = 4
Report = PartReplaced | WorkDone | OperatorNote


class RepairTreatments:
    """Performs the rungs of the ladder on behalf of the loop."""

    def __init__(self, context: RepairContext, *, stages: RepairStages) -> None:
        self.c = context
        self.stages = stages
        self.report: Report | None = None
        self.remind_at: datetime | None = None
        self.resumed_by: str | None = None

    # --- acts on the node -----------------------------------------------------------------------

    async def reset(self) -> Done:
        """Reset the suspected part; without a part there is nothing to reset."""
        part = self._part()
        if part is None:
            return Done(StageOutcome.FAILED, "no part is named that could be reset")
        return await self._treat(Treatment.RESET, part)

    async def reboot(self) -> Done:
        """Reboot the node."""
        return await self._treat(Treatment.REBOOT, None)

    async def power_cycle(self) -> Done:
        """Power-cycle the node out of band."""
        return await self._treat(Treatment.POWER_CYCLE, None)

    async def reflash(self) -> Done:
        """Flash what the allow-list wants and the node lacks, canary first."""
        done = await self._treat(Treatment.REFLASH, self._part())
        wanted = self.c.state.progress.first_treatment is Treatment.REFLASH
        if wanted and done.outcome is StageOutcome.FAILED:
            # Wrong firmware that may not be flashed is no broken part: a person decides.
            return replace(done, outcome=StageOutcome.CANNOT_FIX)
        return done

    async def prove(self) -> Done:
        """The proof; after a boot, the second pass is run on a fresh boot."""
        p = self.c.state.progress
        if p.fresh_boot_owed and p.passes > 0:
            booted = await self._treat(Treatment.REBOOT, None)
            if booted.outcome is not StageOutcome.DONE:
                known = {StageOutcome.UNREACHABLE, StageOutcome.OBSERVED, StageOutcome.BLOCKED}
                if booted.outcome in known:
                    return booted
                await self.c.sleep_retry()
                return Done(StageOutcome.INCONCLUSIVE, f"fresh boot: {booted.detail}")
            self.c.set(progress=replace(p, fresh_boot_owed=False))
            done = await self.stages.prove()
            return replace(
                done, detail=f"after a fresh boot ({booted.operation_id}); {done.detail}"
            )
        return await self.stages.prove()

    def _part(self) -> Part | None:
        slot = self.c.state.progress.slot
        return self.c.state.node.part_in(slot) if slot else None

    async def _treat(self, treatment: Treatment, part: Part | None) -> Done:
        c = self.c

        async def call(step: StepRequest) -> StepResult:
            request = TreatmentRequest(
                step=step,
                treatment=treatment,
                part=part,
                radius=(c.state.node.id,),
                mark=c.mark,
                deadline_s=c.policy.treatment_deadline_s,
                silent=self._was_silent(),
            )
            return await self._call(request)

        try:
            result = await c.act(str(treatment), call)
        except ActivityError as error:
            return self._unanswered_act(await self.stages.unanswered(error))
        c.set(clean_since=result.at or workflow.now())
        return self._judged(result, c.operation(str(treatment)))

    async def _call(self, request: TreatmentRequest) -> StepResult:
        """The activity of a treatment: through the node itself, or around it."""
        c, deadline_s = self.c, self.c.policy.treatment_deadline_s
        match request.treatment:
            case Treatment.POWER_CYCLE:
                around = OutOfBandActivities.power_cycle
            case Treatment.REFLASH:
                around = OutOfBandActivities.reflash
                deadline_s = c.policy.reflash_deadline_s
            case _:
                return await workflow.execute_activity_method(
                    TreatmentActivities.treat,
                    request,
                    **on_node(
                        node_queue(request.step.node),
                        deadline_s=deadline_s,
                        heartbeat_s=c.policy.heartbeat_timeout_s,
                        unreachable_s=c.policy.node_queue_timeout_s,
                        summary=request.step.operation_id,
                    ),
                )
        return await workflow.execute_activity_method(
            around,
            replace(request, deadline_s=deadline_s),
            **out_of_band(
                deadline_s=deadline_s,
                heartbeat_s=c.policy.heartbeat_timeout_s,
                summary=request.step.operation_id,
            ),
        )

    def _was_silent(self) -> bool:
        """Whether we are here because the node's own worker does not answer."""
        steps = self.c.state.steps
        return bool(steps) and steps[-1].outcome == StageOutcome.UNREACHABLE

    def _unanswered_act(self, done: Done) -> Done:
        """Silence during an act is ambiguous: the proof says what the act did."""
        if done.outcome is StageOutcome.UNREACHABLE:
            return done
        self.c.set(clean_since=workflow.now())
        return Done(StageOutcome.AMBIGUOUS, done.detail)

    def _judged(self, result: StepResult, operation_id: str) -> Done:
        detail = result.effect.detail
        if result.withheld is not None:
            return Done(StageOutcome.OBSERVED, f"withheld by {result.withheld}")
        if detail.startswith((NOT_DRAINED, WAITS)):
            return Done(StageOutcome.BLOCKED, detail)
        outcome = {
            Outcome.SUCCEEDED: StageOutcome.DONE,
            Outcome.AMBIGUOUS: StageOutcome.AMBIGUOUS,
        }.get(result.effect.outcome, StageOutcome.FAILED)
        return Done(outcome, detail, operation_id=operation_id)

    # --- swap -----------------------------------------------------------------------------------

    async def swap(self) -> Done:
        """One ticket; wait for the technician; believe a swap only when the machine shows it."""
        c = self.c
        answer = await c.act("ticket", self._open_ticket)
        if answer.ticket is None:
            return Done(StageOutcome.OBSERVED, f"ticket withheld by {answer.withheld}")
        opened = (*(t for t in c.state.tickets if t != answer.ticket), answer.ticket)
        c.set(tickets=opened)
        c.show(f"the technician: ticket {answer.ticket}")
        await c.record()
        while True:
            report = await self._next_report()
            match report:
                case PartReplaced():
                    done = await self._replaced(report)
                case WorkDone():
                    note = f"{report.work} by {report.by}" + (
                        f": {report.note}" if report.note else ""
                    )
                    await self._comment(note)
                    c.set(clean_since=workflow.now())
                    done = Done(StageOutcome.WORK_DONE, note)
                case _:
                    done = Done(StageOutcome.CANNOT_FIX, f"{report.by}: {report.reason}")
            self.report = None
            if done is not None:
                return done

    async def _open_ticket(self, step: StepRequest) -> TicketAnswer:
        s = self.c.state
        part = self._part()
        slot = part.slot if part else "the node"
        tried = ", ".join(f"{v.stage} {v.outcome}" for v in s.steps)
        fabric = part is None and s.progress.category == Category.FABRIC
        wanted = "Reseat or replace the NICs and cables" if fabric else f"Replace {slot}"
        draft = TicketDraft(
            key=f"{s.node.id}/{s.progress.part or s.node.id}/{s.progress.category}",
            node=s.node.id,
            pool=s.node.pool,
            rack=s.node.rack,
            slot=slot,
            part_uuid=part.uuid if part else "",
            part_serial=part.serial if part else "",
            category=s.progress.category,
            title=f"{s.node.id} {slot}: {s.reason}",
            body=f"{wanted} of {s.node.id} in {s.node.rack}. So far: {tried}.",
            repair_id=s.repair_id,
        )
        return await workflow.execute_local_activity_method(
            PeopleActivities.open_ticket, TicketRequest(step, draft), **local("open_ticket")
        )

    async def _next_report(self) -> Report:
        """The next report, with reminders on the ticket and one page when it takes too long."""
        c = self.c
        escalate_at = c.state.stage_since + timedelta(seconds=c.policy.swap_escalation_s)
        escalated = False
        while self.report is None:
            if not await self._reminder_fell_due():
                continue
            await self._comment("reminder: this part still waits for a technician")
            if workflow.now() >= escalate_at and not escalated:
                escalated = True
                await c.page("swap", f"ticket {c.state.tickets[-1]} waits too long", urgent=False)
        return self.report

    async def _reminder_fell_due(self) -> bool:
        """Wait for the reminder; a report, or more time asked for, comes before it."""
        reminder = timedelta(seconds=self.c.policy.swap_reminder_s)
        self.remind_at = due = self.remind_at or workflow.now() + reminder
        try:
            await workflow.wait_condition(
                lambda: self.report is not None or self.remind_at != due,
                timeout=max(due - workflow.now(), timedelta(0)),
            )
        except TimeoutError:
            self.remind_at = None
            return True
        return False

    async def _replaced(self, report: PartReplaced) -> Done | None:
        """Read the slot off the machine; the same part back keeps the ticket open."""
        c = self.c
        old = c.state.node.part_in(report.slot)
        try:
            facts = await self._facts()
        except ActivityError as error:
            unanswered = await self.stages.unanswered(error)
            text = f"the swap of {report.slot} cannot be verified: {unanswered.detail}"
            await self._comment(text)
            await c.page("verify_swap", text, urgent=False)
            return None
        seen = next((p for p in facts.parts if p.slot == report.slot), None)
        if seen is None or old is None or seen.serial == old.serial:
            serial = seen.serial if seen else "no part"
            text = f"the machine still shows {serial} in {report.slot}: the ticket stays open"
            await self._comment(text)
            if seen is None:
                await c.page("verify_swap", text, urgent=False)
            return None
        await workflow.execute_local_activity_method(
            RecordActivities.replace_part,
            args=[c.state.node.id, report.slot, seen],
            **local("replace_part"),
        )
        c.set(
            node=_with_part(c.state.node, seen),
            progress=replace(c.state.progress, part=seen.uuid, slot=seen.slot),
            clean_since=workflow.now(),
        )
        typed = "" if seen.serial == report.serial else f" (reported as {report.serial})"
        text = f"{report.slot}: {old.serial} replaced by {seen.serial}{typed}, by {report.by}"
        await self._comment(text)
        return Done(StageOutcome.REPLACED, text)

    async def _facts(self) -> NodeFacts:
        c = self.c
        beat_s = c.policy.heartbeat_timeout_s
        return await workflow.execute_activity_method(
            CheckActivities.read_facts,
            **on_node(
                node_queue(c.state.node.id),
                deadline_s=beat_s,
                heartbeat_s=beat_s,
                unreachable_s=c.policy.node_queue_timeout_s,
                summary="read_facts",
                in_all_s=c.policy.node_queue_timeout_s + FACTS_BEATS * beat_s,
            ),
        )

    async def _comment(self, text: str) -> None:
        if self.c.state.tickets:
            await workflow.execute_local_activity_method(
                PeopleActivities.comment_ticket,
                args=[self.c.state.tickets[-1], text],
                **local("comment_ticket"),
            )

    # --- needs_human ----------------------------------------------------------------------------

    async def needs_human(self) -> Done:
        """Page once, remind on the policy's beat, and wait for a person's word."""
        c = self.c
        self.resumed_by = None
        last = c.state.steps[-1] if c.state.steps else None
        why = f"{last.stage} ended {last.outcome}: {last.detail}" if last else c.state.reason
        c.show("a person: resume, skip, abort or release")
        await c.page("needs_human", f"{c.state.node.id} needs a human", detail=why)
        await c.record()
        reminders = 0
        while self.resumed_by is None:
            try:
                await workflow.wait_condition(
                    lambda: self.resumed_by is not None,
                    timeout=timedelta(seconds=c.policy.human_reminder_s),
                )
            except TimeoutError:
                reminders += 1
                text = f"{c.state.node.id} still needs a human"
                await c.page(f"needs_human/{reminders}", text, detail=why, urgent=False)
        return Done(StageOutcome.RESUMED, f"by {self.resumed_by}")


def _with_part(node: Node, part: Part) -> Node:
    others = tuple(p for p in node.parts if p.slot != part.slot)
    return replace(node, parts=tuple(sorted((*others, part), key=lambda p: p.slot)))
