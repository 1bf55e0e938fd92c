"""Suites with a run across two nodes: borrow a neighbour, run, give it back, and blame rightly.

What the node can check by itself comes first; only when all of that passed is a neighbour borrowed,
and only for the run itself. One bad pair blames nobody: a third partner breaks the tie.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.checks import CheckActivities
    from activities.neighbour import NeighbourActivities
    from sickbay.contracts.names import node_queue
    from sickbay.contracts.neighbour import BorrowAnswer, BorrowRequest, NeighbourFound
    from sickbay.contracts.repair import Fault
    from sickbay.contracts.steps import StepRequest, SuiteAnswer, SuiteRequest
    from sickbay.domain.blame import PairRun, blame_pairs
    from sickbay.domain.evidence import EvidenceRef
    from sickbay.domain.neighbour import Borrowed
    from sickbay.domain.node import Category, Severity
    from sickbay.domain.proof import (
        PAIR,
        PAIR_EVIDENCE,
        CheckResult,
        Suite,
        SuiteResult,
        limits_s,
        owes_pair,
        suite_verdict,
        without_pair,
    )
    from sickbay.domain.reading import FindingKind, Verdict
    from workflows.options import MARGIN_S, durable, on_node, remote
    from workflows.repair_context import RepairContext

# Two bad pairs blame the node they share; one more partner for a run that measured nothing.
MOST_PARTNERS = 3
PAIR_FAILED = "pair_failed"
HOUR_S = 3600.0
_MEASURED = {Verdict.PASS: True, Verdict.FAIL: False, Verdict.INCONCLUSIVE: None}


async def run_suite(
    context: RepairContext, step: StepRequest, suite: Suite, *, neighbour: Borrowed | None = None
) -> SuiteAnswer:
    """Run a suite on the repaired node's own queue."""
    p = context.policy
    limits = limits_s(suite, scale=p.hour_s / HOUR_S)
    request = SuiteRequest(
        step, suite, p.suite_deadline_s, p.check_deadline_s, neighbour=neighbour, limits_s=limits
    )
    return await workflow.execute_activity_method(
        CheckActivities.run_suite,
        request,
        **on_node(
            node_queue(context.state.node.id),
            deadline_s=p.suite_deadline_s,
            heartbeat_s=p.heartbeat_timeout_s,
            unreachable_s=p.node_queue_timeout_s,
            summary=step.operation_id,
        ),
    )


class PairedSuites:
    """Runs the suites of one repair that contain the pair check."""

    def __init__(self, context: RepairContext) -> None:
        self.c = context
        self.collected: tuple[EvidenceRef, ...] = ()

    async def run(self, verb: str, suite: Suite) -> SuiteAnswer:
        """The suite's answer, the pair check judged over as many partners as it needs.

        Raises:
            ActivityError: the node gave no answer; the neighbour is given back first.
        """
        alone = await self.c.act(verb, lambda step: run_suite(self.c, step, without_pair(suite)))
        if alone.result is None or alone.result.verdict is not Verdict.PASS:
            return alone
        self.collected = ()
        progress = self.c.state.progress
        owed = owes_pair(progress.categories, evidence=progress.evidence)
        judged = await self._judge(verb, owed=owed)
        if not isinstance(judged, CheckResult):
            return judged or alone
        checks = (*alone.result.checks, judged)
        verdict = suite_verdict(checks)
        result = SuiteResult(suite.name, verdict, checks=checks, collected=self.collected)
        return SuiteAnswer(result=result)

    async def _judge(self, verb: str, *, owed: bool) -> CheckResult | SuiteAnswer | None:
        """The pair check's result; None when it is left out; an answer withheld as it is."""
        node = self.c.state.node.id
        runs: list[PairRun] = []
        results: list[CheckResult] = []
        why = "no run across two nodes"
        for number in range(MOST_PARTNERS):
            avoid = tuple(run.other for run in runs)
            lent, answer, why = await self._one(verb, number, avoid=avoid, wait=owed or bool(runs))
            if lent is None:
                break
            if answer is None or answer.result is None:
                return answer
            results.append(answer.result.checks[0])
            self.collected += answer.result.collected
            runs.append(PairRun(node, lent, good=_MEASURED[answer.result.verdict]))
            told = blame_pairs(runs)
            if node in told.good | told.bad:
                for run, result in zip(runs, results, strict=True):
                    if run.other in told.bad:
                        await self._accuse(run.other, result, because=_story(runs))
                return replace(results[-1], why=f"{_story(runs)}; {results[-1].why}")
            why = "a third partner is needed"
        if not runs and not owed:
            return None
        text = f"{_story(runs)}undecided: {why}" if runs else f"no neighbour: {why}"
        evidence = results[-1].evidence if results else None
        return CheckResult(PAIR, Verdict.INCONCLUSIVE, why=text, evidence=evidence)

    async def _one(
        self, verb: str, number: int, *, avoid: tuple[str, ...], wait: bool
    ) -> tuple[str | None, SuiteAnswer | None, str]:
        """One run with one borrowed partner, which is given back whatever happens."""
        given_back = False
        try:
            borrowed = await self._borrow(number, avoid=avoid, wait=wait)
            lent = borrowed.neighbour
            if lent is None:
                given_back = True
                return None, None, borrowed.why
            suite = Suite(f"pair:{lent.node}", (PAIR,))
            answer = await self.c.act(
                f"{verb}_pair{number}",
                lambda step: run_suite(self.c, step, suite, neighbour=lent),
            )
            return lent.node, answer, ""
        finally:
            # Also when the stage is cancelled in the middle of the borrow itself.
            if not given_back:
                await self._give_back(number)

    async def _borrow(self, number: int, *, avoid: tuple[str, ...], wait: bool) -> BorrowAnswer:
        c, p = self.c, self.c.policy
        wait_s = p.neighbour_wait_s if wait else 0.0
        deadline = workflow.now() + timedelta(seconds=wait_s)
        if wait:
            c.show("an idle neighbour for the run across two nodes")
            await c.record()

        async def call(step: StepRequest) -> BorrowAnswer:
            request = BorrowRequest(
                step=step,
                node=c.state.node,
                avoid=avoid,
                lend_s=p.check_deadline_s + p.node_queue_timeout_s + MARGIN_S,
                deadline=deadline,
                poll_s=p.drain_poll_s,
            )
            return await workflow.execute_activity_method(
                NeighbourActivities.borrow_neighbour,
                request,
                **remote(
                    deadline_s=wait_s,
                    heartbeat_s=p.heartbeat_timeout_s + p.drain_poll_s,
                    summary=step.operation_id,
                ),
            )

        if wait:
            answer = await c.act(f"borrow{number}", call)
        else:
            # A check that may be left out waits for no approval and for no `sickbay go`.
            answer = await call(self._step(f"borrow{number}"))
        if answer.neighbour is not None:
            c.show(f"the run across two nodes with {answer.neighbour.node}")
        elif wait:
            text = f"{c.state.node.id}: no neighbour for a run across two nodes"
            await c.page("neighbour", text, detail=answer.why, urgent=False)
        return answer

    async def _give_back(self, number: int) -> None:
        step = self._step(f"give_back{number}")
        await workflow.execute_activity_method(
            NeighbourActivities.give_back_neighbour, step, **durable("give_back_neighbour")
        )

    def _step(self, verb: str) -> StepRequest:
        s = self.c.state
        return StepRequest(s.repair_id, self.c.operation(verb), s.node.id, s.node.pool)

    async def _accuse(self, other: str, result: CheckResult, *, because: str) -> None:
        """Report a partner that is to blame for a run: it gets a repair of its own."""
        s = self.c.state
        found = [f for f in result.findings if f.kind is FindingKind.HARDWARE]
        worst = max(found, key=lambda f: f.severity.rank, default=None)
        fault = Fault(
            id=f"{s.repair_id}/{s.ordinal:03d}/{other}",
            node=other,
            observed_at=workflow.now(),
            reason=worst.reason if worst else PAIR_FAILED,
            severity=worst.severity if worst else Severity.MAJOR,
            category=Category.FABRIC,
            source=PAIR_EVIDENCE,
            hard=False,
            detail=because,
        )
        await workflow.execute_activity_method(
            NeighbourActivities.report_neighbour,
            NeighbourFound(s.node.pool, fault),
            **durable("report_neighbour"),
        )


def _story(runs: list[PairRun]) -> str:
    """The table of pairs in words, and who is to blame by it."""
    words = {True: "good", False: "bad", None: "not measured"}
    told = blame_pairs(runs)
    lines = [f"{run.one} with {run.other} {words[run.good]}" for run in runs]
    blamed = f"; to blame: {', '.join(sorted(told.bad))}" if told.bad else ""
    return f"{', '.join(lines)}{blamed}; "
