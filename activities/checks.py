"""Running a suite on the node: every check has its deadline, the raw output goes to evidence.

A check that does not end by its outer deadline hangs: that is inconclusive and a suspicion, and the
next check runs. What the collectors of a failed category read is stored before the suite answers,
so before anything can be treated.
"""

import asyncio
import errno
import time
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from temporalio import activity

from activities.effects import withheld_by
from activities.loads import Loads
from sickbay.contracts.steps import Action, NodeFacts, SuiteAnswer, SuiteRequest
from sickbay.domain.evidence import EvidenceRef
from sickbay.domain.neighbour import Borrowed
from sickbay.domain.node import Category, Node, Severity
from sickbay.domain.proof import (
    PAIR,
    Check,
    CheckResult,
    SuiteResult,
    is_stress,
    suite_verdict,
)
from sickbay.domain.radius import Load
from sickbay.domain.reading import Finding, FindingKind, Reading, Verdict
from sickbay.domain.suite_book import SHIPPED
from sickbay.errors import NodeUnreadable
from sickbay.ports import (
    CheckOutput,
    CheckRunner,
    Collectors,
    Evidence,
    Inventory,
    NodeControl,
    Safety,
)

HEARTBEAT_S = 1.0
STORE_ATTEMPTS = 3
STORE_PAUSE_S = 0.5
# What travels through a workflow is bounded; everything is in the evidence.
MOST_WHY = 1000
MOST_FINDINGS = 64
# A runner ends its tool at the deadline; when it has not answered by then it hangs itself.
RUNNER_GRACE_S = 15.0
GIVEN_UP_S = 2.0
COLLECT_S = 60.0
HUNG = "check_hung"
TIMEOUT = "timeout"
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
ResultT = TypeVar("ResultT")


class _Overdue(Exception):
    """Work that did not end in time and was given up."""


class CheckActivities:
    """The node worker's eyes: runs checks and reads the node's own facts."""

    def __init__(
        self,
        runner: CheckRunner,
        *,
        control: NodeControl,
        evidence: Evidence,
        safety: Safety,
        inventory: Inventory,
        loads: Loads | None = None,
        collectors: Collectors | None = None,
    ) -> None:
        self._runner = runner
        self._collectors = collectors
        self._control = control
        self._evidence = evidence
        self._safety = safety
        self._inventory = inventory
        self._loads = loads

    @activity.defn(name="run_suite")
    async def run_suite(self, request: SuiteRequest) -> SuiteAnswer:
        """Run every check of the suite; one failing check does not hide the others' results.

        Raises:
            ApplicationError: transient, a stress run waits for its place in rack and power unit.
        """
        step = request.step
        permission = await self._safety.permission(pool=step.pool, action=Action.DIAGNOSE)
        if held := withheld_by(permission, step=step):
            return SuiteAnswer(result=None, withheld=held)
        node = await self._inventory.node(step.node)
        if node is None:
            return SuiteAnswer(result=None)
        if self._loads is None or not is_stress(request.suite):
            return await self._checked(request, node)
        waited = await self._loads.take(
            Load.STRESS, step=step, lasts_s=request.deadline_s, longest_s=request.deadline_s
        )
        if waited is not None:
            return SuiteAnswer(result=None, waits=waited.effect.detail)
        try:
            return await self._checked(request, node)
        finally:
            await self._loads.give_back(step.operation_id)

    async def _checked(self, request: SuiteRequest, node: Node) -> SuiteAnswer:
        lent = request.neighbour
        other = await self._inventory.node(lent.node) if lent is not None else None
        ends_at = time.monotonic() + request.deadline_s
        since = datetime.now(UTC)
        results = []
        for number, check in enumerate(request.suite.checks):
            left_s = min(request.check_deadline_s, ends_at - time.monotonic())
            left_s = min((left_s, *request.limits_s[number : number + 1]))
            if check == PAIR and lent is not None:
                left_s = min(left_s, _left_s(lent))
            results.append(
                await self._run(check, node=node, other=other, deadline_s=left_s, since=since)
            )
        verdict = suite_verdict(results)
        result = SuiteResult(request.suite.name, verdict=verdict, checks=tuple(results))
        result = await self._with_collected(result, ends_at=ends_at)
        return SuiteAnswer(result=result, parts=await self._parts())

    async def _with_collected(self, result: SuiteResult, *, ends_at: float) -> SuiteResult:
        """The result with what was read about its failed categories; trouble there changes none."""
        if self._collectors is None:
            return result
        collected: list[EvidenceRef] = []
        for category in result.failed_categories():
            left_s = min(COLLECT_S, ends_at - time.monotonic())
            if left_s <= 0:
                break
            ref = await self._collect(self._collectors, category, left_s=left_s)
            collected += [ref] if ref is not None else []
        return replace(result, collected=tuple(collected))

    async def _collect(
        self, collectors: Collectors, category: Category, *, left_s: float
    ) -> EvidenceRef | None:
        kind = f"collected:{category}"
        reading = collectors.collect(category, deadline_s=left_s)
        try:
            raw = await _beating(reading, kind, most_s=left_s + RUNNER_GRACE_S)
        except _Overdue:
            return None
        if not raw:
            return None
        ref, _ = await self._store(raw, kind=kind)
        return ref

    async def _parts(self) -> tuple[str, ...]:
        """Which parts were there when the suite ended; empty when the node cannot say."""
        try:
            facts = await _beating(self._control.facts(), "facts")
        except NodeUnreadable:
            return ()
        return tuple(sorted(p.uuid or p.serial for p in facts.parts))

    @activity.defn(name="read_facts")
    async def read_facts(self) -> NodeFacts:
        """The node's present boot id and parts."""
        return await _beating(self._control.facts(), "facts")

    async def _run(
        self,
        check: Check,
        *,
        node: Node,
        other: Node | None,
        deadline_s: float,
        since: datetime,
    ) -> CheckResult:
        if deadline_s <= 0:
            return CheckResult(check, Verdict.INCONCLUSIVE, why="no time left in the suite")
        began = time.monotonic()
        run = self._runner.run(
            replace(check, since=since), node=node, deadline_s=deadline_s, neighbour=other
        )
        try:
            output = await _beating(run, check.label, most_s=deadline_s + RUNNER_GRACE_S)
        except _Overdue:
            output = _gave_up(check, deadline_s)
        took_s = time.monotonic() - began
        evidence, trouble = await self._store(output.raw, kind=check.label)
        if evidence is None:
            # A verdict without its proof is none: it is asked again, and paged when it goes on.
            why = f"the evidence could not be stored: {trouble}"
            return CheckResult(check, Verdict.INCONCLUSIVE, why=why, duration_s=took_s)
        return CheckResult(
            check,
            verdict=output.reading.verdict,
            why=output.reading.why[:MOST_WHY],
            findings=_worst((*output.reading.findings, *_suspicion(check, output.reading))),
            evidence=evidence,
            duration_s=took_s,
        )

    async def _store(self, raw: bytes, *, kind: str) -> tuple[EvidenceRef | None, str]:
        """The reference of the stored bytes; after some attempts, None and the trouble.

        Raises:
            OSError: the disk is full: the whole suite is tried again, and room is all it needs.
        """
        trouble = ""
        for attempt in range(STORE_ATTEMPTS):
            activity.heartbeat(f"storing {kind}")
            try:
                return await self._evidence.put(raw, kind=kind), ""
            except Exception as error:
                if isinstance(error, OSError) and error.errno in DISK_FULL:
                    raise
                trouble = f"{type(error).__name__}: {error}"[:MOST_WHY]
            if attempt + 1 < STORE_ATTEMPTS:
                await asyncio.sleep(STORE_PAUSE_S)
        return None, trouble


def _gave_up(check: Check, deadline_s: float) -> CheckOutput:
    """What is known of a check whose runner itself did not come back."""
    why = f"{check.label} did not end in {deadline_s:.3g} s and could not be stopped"
    finding = Finding(None, TIMEOUT, Severity.WARNING, FindingKind.TOOL, detail=why)
    reading = Reading(str(check.name), Verdict.INCONCLUSIVE, why, findings=(finding,))
    return CheckOutput(reading, raw=why.encode())


def _suspicion(check: Check, reading: Reading) -> tuple[Finding, ...]:
    """A check that hung says nothing of the hardware, but a sound node does not hang it."""
    late = next((f for f in reading.findings if f.reason == TIMEOUT), None)
    if late is None or reading.verdict is not Verdict.INCONCLUSIVE:
        return ()
    judged = ", ".join(sorted(SHIPPED.checks[check.name].judges))
    detail = f"{check.label} hung: suspect {judged}"
    return (Finding(None, HUNG, Severity.WARNING, FindingKind.TOOL, detail=detail),)


def _worst(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The worst findings, in the order the tool gave them, cut short: all is in the evidence."""
    by_severity = sorted(range(len(findings)), key=lambda i: -findings[i].severity.rank)
    kept = sorted(by_severity[:MOST_FINDINGS])
    return tuple(replace(findings[i], detail=findings[i].detail[:MOST_WHY]) for i in kept)


def _left_s(lent: Borrowed) -> float:
    """Seconds a neighbour is still ours; after that jobs may start on it."""
    return (lent.until - datetime.now(UTC)).total_seconds()


async def _beating(
    work: Coroutine[Any, Any, ResultT], label: str, *, most_s: float | None = None
) -> ResultT:
    """The result of `work`; the server hears meanwhile that we live, and may cancel it.

    Raises:
        _Overdue: it did not end in `most_s` seconds and was given up.
    """
    run = asyncio.ensure_future(work)
    ends_at = None if most_s is None else time.monotonic() + most_s
    try:
        while not run.done():
            activity.heartbeat(label)
            left_s = HEARTBEAT_S if ends_at is None else ends_at - time.monotonic()
            if left_s <= 0:
                run.cancel()
                await asyncio.wait({run}, timeout=GIVEN_UP_S)
                raise _Overdue(label)
            await asyncio.wait({run}, timeout=min(HEARTBEAT_S, left_s))
    except asyncio.CancelledError:
        run.cancel()
        await asyncio.wait({run})
        raise
    return run.result()
