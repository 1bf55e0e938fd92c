"""How each stage is performed, but for the treatments: permit, drain, diagnose, prove, return."""

import asyncio
import builtins
from dataclasses import replace
from datetime import datetime, timedelta

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, TimeoutType

with workflow.unsafe.imports_passed_through():
    from activities.drain import DrainActivities
    from activities.gate import GateActivities
    from activities.people import PeopleActivities
    from activities.permit import PermitActivities
    from activities.records import RecordActivities
    from sickbay.contracts.budget import PermitAsk, PermitDecided, PermitReleased
    from sickbay.contracts.repair import Fault
    from sickbay.contracts.steps import (
        DrainRequest,
        DrainResult,
        DrainState,
        GateRequest,
        Permission,
        StepRequest,
        StepResult,
    )
    from sickbay.domain.health import SOFT_REASON
    from sickbay.domain.node import Severity
    from sickbay.domain.proof import PAIR, PAIR_EVIDENCE, CheckName, SuiteResult, suite_for
    from sickbay.domain.reading import Finding, FindingKind, Verdict
    from sickbay.domain.repair import LADDER, StageOutcome, Suspect, suspect
    from sickbay.readers.parts import slot_of
    from workflows.options import durable, local, remote
    from workflows.repair_context import Done, RepairContext
    from workflows.repair_neighbour import PairedSuites, run_suite

_EVIDENCE_OF = {
    CheckName.DCGM_DIAG: "dcgm",
    CheckName.DCGM_HEALTH: "dcgm",
    CheckName.GPU_STATE: "nvidia_smi",
    CheckName.NVLINK_STATE: "nvidia_smi",
    CheckName.NVBANDWIDTH: "nvbandwidth",
    CheckName.NCCL_NODE: "nccl_node",
    CheckName.NCCL_PAIR: PAIR_EVIDENCE,
    CheckName.INFINIBAND: "infiniband",
    CheckName.STORAGE: "fio",
    CheckName.HOST: "host",
    CheckName.KERNEL_LOG: "kernel_log",
}


class RepairStages:
    """Performs one stage at a time on behalf of the loop; decides nothing about what follows."""

    def __init__(self, context: RepairContext) -> None:
        self.c = context
        self.paired = PairedSuites(context)
        self.decision: PermitDecided | None = None
        self.parts: tuple[str, ...] | None = None

    # --- permit ---------------------------------------------------------------------------------

    async def permit(self) -> Done | None:
        """Wait for the budget; withdraw when the reason was soft and is gone; close the gate.

        None after a wait so long that the history has to begin anew: it asks again then.
        """
        c = self.c
        fresh = [f for f in c.state.faults if self._is_fresh(f)]
        if not fresh:
            return Done(StageOutcome.STALE, "every finding is older than the last return")
        await self._ask(fresh)
        while not c.state.permit:
            await self._granted_or_timeout()
            if self._granted():
                c.set(permit=True)
            if await self._recovered():
                return await self._withdraw()
            if not self._granted():
                if workflow.info().is_continue_as_new_suggested():
                    return None
                await self._ask_again(fresh)
        # Set before the call: an order that interrupts it must still find our hold to take away.
        c.set(gate_closed=True)
        result = await c.act("close_gate", self._close_gate)
        if not result.ok:
            c.set(gate_closed=False)
        if result.withheld is not None:
            await self.release_permit()
            return Done(StageOutcome.OBSERVED, "observe mode: would have closed the gate")
        if not result.ok:
            await asyncio.sleep(c.policy.inconclusive_wait_s)
            return Done(StageOutcome.FAILED, f"gate not closed: {result.effect.detail}")
        return Done(StageOutcome.GRANTED, operation_id=c.operation("close_gate"))

    def _is_fresh(self, fault: Fault) -> bool:
        last = self.c.state.last_return_at
        return last is None or fault.observed_at > last

    def _granted(self) -> bool:
        return self.decision is not None and self.decision.granted

    async def _granted_or_timeout(self) -> None:
        timeout = timedelta(seconds=self.c.policy.permit_recheck_s)
        try:
            await workflow.wait_condition(self._granted, timeout=timeout)
        except builtins.TimeoutError:
            return

    async def _ask_again(self, faults: list[Fault]) -> None:
        """A refusal left this repair without a place in the queue: take one."""
        if self.decision is not None and not self.decision.granted:
            self.decision = None
            await self._ask(faults)

    async def _ask(self, faults: list[Fault]) -> None:
        s = self.c.state
        if s.permit:
            return
        ask = PermitAsk(
            repair_id=s.repair_id,
            workflow_id=workflow.info().workflow_id,
            node=s.node.id,
            group=s.node.group,
            severity=s.progress.severity,
            hard=any(f.hard for f in faults),
            reason=s.reason,
            factors={
                "rack": s.node.rack,
                "group": s.node.group,
                "node_class": s.node.node_class,
                "reason": s.reason,
            },
            at=workflow.now(),
        )
        await workflow.execute_local_activity_method(
            PermitActivities.ask_permit, args=[s.node.pool, ask], **local("ask_permit")
        )
        self.c.show("a permit of the pool's budget")

    async def _recovered(self) -> bool:
        """Whether a standing made of soft health is gone; every other reason keeps its place."""
        faults = self.c.state.faults
        if not all(f.reason.startswith(SOFT_REASON) for f in faults):
            return False
        present = await workflow.execute_local_activity_method(
            RecordActivities.present_health, self.c.state.node.id, **local("present_health")
        )
        return present.recovered_since(max(f.observed_at for f in faults))

    async def _withdraw(self) -> Done:
        await self.release_permit()
        return Done(StageOutcome.WITHDRAWN, "the reason was soft and is gone")

    async def release_permit(self) -> None:
        """Give the permit, or the place in the queue, back."""
        s = self.c.state
        await workflow.execute_local_activity_method(
            PermitActivities.release_permit,
            args=[
                s.node.pool,
                PermitReleased(s.repair_id, closed=s.gate_closed, at=workflow.now()),
            ],
            **local("release_permit"),
        )
        self.c.set(permit=False)

    async def _close_gate(self, step: StepRequest) -> StepResult:
        return await workflow.execute_activity_method(
            GateActivities.close_gate,
            GateRequest(step=step, hold=self.c.hold()),
            **durable("close_gate"),
        )

    # --- drain ----------------------------------------------------------------------------------

    async def drain(self) -> Done:
        """Wait for the jobs' end, or evict where the severity says so."""
        c = self.c
        s = c.state
        critical = s.progress.severity is Severity.CRITICAL
        deadline = s.deadline or workflow.now()
        result = await self._drain(deadline, evict=critical)
        major = s.progress.severity is Severity.MAJOR and c.policy.evict_at_major_deadline
        if result.state is DrainState.DRAINING and major and result.withheld is None:
            grace = timedelta(seconds=c.policy.suite_deadline_s)
            result = await self._drain(workflow.now() + grace, evict=True)
        if result.state is DrainState.DRAINED:
            return Done(StageOutcome.DRAINED)
        if result.withheld is Permission.OBSERVE:
            return Done(StageOutcome.OBSERVED, "observe mode: would have evicted the jobs")
        blocking = (
            ", ".join(result.blocking) or result.detail or "the scheduler's answer is unclear"
        )
        await c.page("drain", f"{s.node.id} does not drain", detail=f"blocked by: {blocking}")
        return Done(StageOutcome.BLOCKED, blocking)

    async def _drain(self, deadline: datetime, *, evict: bool) -> DrainResult:
        async def call(step: StepRequest) -> DrainResult:
            request = DrainRequest(
                step=step,
                mark=self.c.mark,
                severity=self.c.state.progress.severity,
                started_at=self.c.state.stage_since,
                deadline=deadline,
                evict=evict,
                poll_s=self.c.policy.drain_poll_s,
            )
            left_s = max(0.0, (deadline - workflow.now()).total_seconds())
            return await workflow.execute_activity_method(
                DrainActivities.drain,
                request,
                **remote(
                    deadline_s=left_s,
                    heartbeat_s=self.c.policy.heartbeat_timeout_s + self.c.policy.drain_poll_s,
                    summary=step.operation_id,
                ),
            )

        return await self.c.act("evict" if evict else "drain", call)

    # --- diagnose and prove ---------------------------------------------------------------------

    async def diagnose(self) -> Done:
        """Run the suite of the failing category; passing it is `not confirmed`."""
        done, result = await self._suite("diagnose")
        self.c.set(clean_since=workflow.now())
        if result is None:
            return done
        if done.outcome is StageOutcome.FAILED:
            self._absorb(result)
            return replace(done, outcome=StageOutcome.CONFIRMED)
        passed = done.outcome is StageOutcome.PASSED
        return replace(done, outcome=StageOutcome.NOT_CONFIRMED) if passed else done

    async def prove(self) -> Done:
        """Run the proof; a hard fail newer than the treatment counts against it."""
        self.c.set(proven_from=workflow.now())
        done, result = await self._suite("prove")
        if result is None:
            return done
        if done.outcome is StageOutcome.FAILED:
            self._absorb(result)
        if done.outcome is StageOutcome.PASSED:
            done = await self._same_parts(done)
        newer = self._newer_hard_fail()
        if done.outcome is StageOutcome.PASSED and newer is not None:
            self.c.set(clean_since=newer.observed_at)
            return replace(
                done, outcome=StageOutcome.FAILED, detail=f"passed, but {newer.reason} came since"
            )
        return done

    async def _same_parts(self, done: Done) -> Done:
        """A pass counts for the parts it ran on: other hands in the node begin the proof anew."""
        c = self.c
        before = c.state.proven_parts if c.state.progress.passes else None
        now, self.parts = self.parts, None
        c.set(proven_parts=now)
        if now == ():
            text = "passed, but the node's parts cannot be named"
        elif before is not None and now != before:
            text = "passed, but on other parts than the pass before: the proof begins anew"
        else:
            return done
        await c.sleep_retry()
        return replace(done, outcome=StageOutcome.INCONCLUSIVE, detail=text)

    async def _suite(self, verb: str) -> tuple[Done, SuiteResult | None]:
        c = self.c
        suite = suite_for(*c.state.progress.categories)
        try:
            if PAIR in suite.checks:
                answer = await self.paired.run(verb, suite)
            else:
                answer = await c.act(verb, lambda step: run_suite(c, step, suite))
        except ActivityError as error:
            return await self.unanswered(error), None
        if answer.withheld is not None:
            return Done(StageOutcome.OBSERVED, f"observe mode: would have run {verb}"), None
        if answer.waits:
            return Done(StageOutcome.BLOCKED, answer.waits), None
        if answer.result is None:
            await c.sleep_retry()
            return Done(StageOutcome.INCONCLUSIVE, "the node is not on record"), None
        self.parts = answer.parts
        done = self._judged(answer.result, c.operation(verb))
        if done.outcome is StageOutcome.INCONCLUSIVE:
            await c.sleep_retry()
        return done, answer.result

    def _judged(self, result: SuiteResult, operation_id: str) -> Done:
        outcome = {
            Verdict.PASS: StageOutcome.PASSED,
            Verdict.FAIL: StageOutcome.FAILED,
            Verdict.INCONCLUSIVE: StageOutcome.INCONCLUSIVE,
        }[result.verdict]
        notable = [r for r in result.checks if r.verdict is not Verdict.PASS] or result.checks
        detail = "; ".join(f"{r.check.label} {r.verdict}: {r.why}" for r in notable)
        evidence = tuple(r.evidence.sha256 for r in result.checks if r.evidence)
        evidence += tuple(ref.sha256 for ref in result.collected)
        return Done(outcome, detail[:1000], operation_id=operation_id, evidence=evidence)

    def _newer_hard_fail(self) -> Fault | None:
        since = self.c.state.clean_since
        newer = [f for f in self.c.state.faults if f.hard and since and f.observed_at > since]
        return max(newer, key=lambda f: f.observed_at, default=None)

    async def unanswered(self, error: ActivityError) -> Done:
        """An activity that gave no answer: nobody polls the node's queue, or it kept failing.

        Raises:
            ActivityError: when the activity was cancelled with the stage.
        """
        cause = error.cause
        if isinstance(cause, exceptions.TimeoutError):
            if cause.type is TimeoutType.SCHEDULE_TO_START:
                text = "the node's worker does not answer"
                return Done(StageOutcome.UNREACHABLE, text)
            await self.c.sleep_retry()
            return Done(StageOutcome.INCONCLUSIVE, f"no answer in time ({cause})")
        if exceptions.is_cancelled_exception(error):
            raise error
        await self.c.sleep_retry()
        return Done(StageOutcome.INCONCLUSIVE, f"{error.cause or error}")

    def _absorb(self, result: SuiteResult) -> None:
        """Learn from a failing suite which part to treat, from which rung."""
        s = self.c.state
        kinds = tuple(
            _EVIDENCE_OF[r.check.name] for r in result.checks if r.verdict is Verdict.FAIL
        )
        found = worst_suspect(
            [f for f in result.findings() if f.kind is FindingKind.HARDWARE], self.c
        )
        self.c.set(progress=suspect(s.progress, found, evidence=kinds))

    # --- return ---------------------------------------------------------------------------------

    async def give_back(self) -> Done:
        """Take our hold away, book the return, give the permit back, close the ticket."""
        newer = self._newer_hard_fail()
        if newer is not None:
            self.c.set(clean_since=newer.observed_at)
            return Done(StageOutcome.BLOCKED, f"{newer.reason} came after the proof")
        opened_at = await self.open_gate(by="sickbay")
        if opened_at is None:
            await self.c.sleep_retry()
            return Done(StageOutcome.FAILED, "the scheduler did not take our mark away")
        s = self.c.state
        await workflow.execute_local_activity_method(
            RecordActivities.record_return,
            args=[s.node.id, s.repair_id, opened_at, s.proven_from or opened_at],
            **local("record_return"),
        )
        await self.release_permit()
        await self.close_tickets("the node is proven and back in service")
        return Done(StageOutcome.RETURNED)

    async def close_tickets(self, text: str) -> None:
        """Close every ticket this repair opened, with a last line."""
        for ticket in self.c.state.tickets:
            await workflow.execute_local_activity_method(
                PeopleActivities.close_ticket, args=[ticket, text], **local("close_ticket")
            )

    async def open_gate(self, *, by: str) -> datetime | None:
        """Take our hold away; when it was gone, None while it still stands."""
        s = self.c.state
        step = StepRequest(s.repair_id, self.c.operation("open_gate"), s.node.id, s.node.pool)
        result = await workflow.execute_activity_method(
            GateActivities.open_gate,
            GateRequest(step=step, hold=self.c.hold(by=by)),
            **durable("open_gate"),
        )
        return (result.at or workflow.now()) if result.ok else None


def worst_suspect(findings: list[Finding], context: RepairContext) -> Suspect:
    """The part the worst finding names, with the highest first rung any finding of it asks for."""
    if not findings:
        return Suspect(slot=None, part="", category=None, treatment=None)
    node = context.state.node
    worst = max(findings, key=lambda f: (f.severity.rank, _rung(f)))
    slot = slot_of(node, worst.part)
    same = [f for f in findings if slot_of(node, f.part) == slot]
    top = max(same, key=_rung)
    part = node.part_in(slot) if slot else None
    return Suspect(
        slot=slot,
        part=part.uuid if part else node.id,
        category=worst.category,
        treatment=top.treatment,
    )


def _rung(finding: Finding) -> int:
    return LADDER.index(finding.treatment) if finding.treatment in LADDER else -1
