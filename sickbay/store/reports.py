"""The summary people run a fleet by, computed from steps, holds and the gate's ledger."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select

from sickbay.domain.gate import HoldKind
from sickbay.domain.health import Standing
from sickbay.domain.node import PartKind, Treatment
from sickbay.domain.repair import Stage, StageOutcome
from sickbay.domain.usage import NodeTime, Span, Usage, usage
from sickbay.store import tables as t
from sickbay.store.engine import Store
from sickbay.store.queries import RepairRow, StepRow, recent_repairs

ALL = 1_000_000
_TREATED = {
    StageOutcome.DONE,
    StageOutcome.FAILED,
    StageOutcome.AMBIGUOUS,
    StageOutcome.REPLACED,
    StageOutcome.WORK_DONE,
}
_FAULTY = {StageOutcome.FAILED, StageOutcome.CONFIRMED}
_NOT_RUN = {StageOutcome.BLOCKED, StageOutcome.OBSERVED, StageOutcome.RESUMED}


@dataclass(frozen=True)
class Summary:
    """What happened since the store began (or `since`).

    `seconds_by_stage` is (count, mean, longest) in wall-clock seconds. `returned_untested` are
    repairs whose node came back without the owed passes in a row, recomputed from their steps.
    `unconfirmed_share` is of the returned; `precision` is the share of quarantines whose fault a
    suite confirmed, of those where a suite said yes or no. Both are None while there is nothing to
    divide by.
    """

    since: datetime
    until: datetime
    nodes: int
    repairs: int
    running: int
    by_ending: dict[str, int]
    by_cure: dict[str, int]
    not_confirmed: int
    returned: int
    returned_untested: tuple[str, ...]
    unconfirmed_share: float | None
    precision: float | None
    proofs: dict[str, int]
    seconds_by_stage: dict[str, tuple[int, float, float]]
    pages: int
    urgent_pages: int
    would_have: int
    usage: Usage


async def summary(store: Store, *, now: datetime | None = None, passes_owed: int = 2) -> Summary:
    """The summary of everything in the store. `passes_owed` is the proof policy's."""
    until = now or datetime.now(UTC)
    repairs = await recent_repairs(store, limit=ALL)
    async with store.read() as db:
        nodes = (await db.execute(select(t.nodes))).all()
        urgent = (await db.execute(select(t.pages.c.urgent))).scalars().all()
        withheld = (await db.execute(select(func.count()).select_from(t.would_have))).scalar()
        booked = set((await db.execute(select(t.returns.c.repair_id))).scalars())
    began = min((n.added_at for n in nodes), default=until)
    returned = [r for r in repairs if r.ending == "returned" or r.repair_id in booked]
    not_confirmed = sum(r.confirmed is False for r in returned)
    decided = [r.confirmed for r in repairs if r.confirmed is not None]
    steps = [s for r in repairs for s in r.steps]
    proven = {r.repair_id for r in returned if was_proven(r.steps, passes_owed=passes_owed)}
    back = booked | {r.repair_id for r in returned}
    return Summary(
        since=began,
        until=until,
        nodes=len(nodes),
        repairs=len(repairs),
        running=sum(r.ending is None for r in repairs),
        by_ending=dict(Counter(r.ending for r in repairs if r.ending)),
        by_cure=dict(Counter(_cure(r) for r in returned)),
        not_confirmed=not_confirmed,
        returned=len(back),
        returned_untested=tuple(sorted(back - proven)),
        unconfirmed_share=_share(not_confirmed, len(returned)),
        precision=_share(sum(decided), len(decided)),
        proofs=dict(Counter(s.outcome for s in steps if s.stage == Stage.PROVE)),
        seconds_by_stage=_stage_times(steps),
        pages=len(urgent),
        urgent_pages=sum(urgent),
        would_have=int(withheld or 0),
        usage=await fleet_usage(store, start=began, end=until),
    )


def _share(count: int, whole: int) -> float | None:
    return count / whole if whole else None


def was_proven(steps: Sequence[StepRow], *, passes_owed: int = 2) -> bool:
    """Whether the owed passes in a row stood when the repair returned its node.

    A treatment, a failed or an inconclusive proof starts the row anew; a proof that a switch or a
    running job kept from happening says nothing. After a swap two are owed whatever the policy. A
    repair that treated nothing owes one less when its diagnosis passed. What happened after the
    return proves nothing.
    """
    passes, owed, treated, cleared = 0, passes_owed, False, False
    for step in steps:
        match step.stage, step.outcome:
            case Stage.RETURN, StageOutcome.RETURNED:
                break
            case Stage.PROVE, StageOutcome.PASSED:
                passes += 1
            case Stage.DIAGNOSE, StageOutcome.NOT_CONFIRMED:
                cleared = True
            case ((Stage.PROVE | Stage.DIAGNOSE), outcome) if outcome not in _NOT_RUN:
                passes = 0
                cleared = cleared and outcome not in _FAULTY
        if step.treatment and step.outcome in _TREATED:
            passes, treated = 0, True
            owed = max(owed, 2) if step.treatment == Treatment.SWAP else owed
    return passes >= (max(1, owed - 1) if cleared and not treated else owed)


def _cure(repair: RepairRow) -> str:
    return repair.cured_by or "nothing: not confirmed"


def _stage_times(steps: Sequence[StepRow]) -> dict[str, tuple[int, float, float]]:
    seconds: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        seconds[step.stage].append((step.ended_at - step.started_at).total_seconds())
    return {
        stage: (len(values), sum(values) / len(values), max(values))
        for stage, values in seconds.items()
    }


async def fleet_usage(store: Store, *, start: datetime, end: datetime) -> Usage:
    """Usable compute of all GPUs on record over [start, end).

    Planned maintenance is the time a hold of an administrator stands.
    """
    change = t.health_changes.c
    async with store.read() as db:
        gates = (await db.execute(select(t.gate_intervals).order_by(t.gate_intervals.c.id))).all()
        changes = select(change.node, change.at, change.standing).order_by(change.id)
        health = (await db.execute(changes)).all()
        planned = select(t.holds).where(t.holds.c.kind == str(HoldKind.OPERATOR))
        holds = (await db.execute(planned)).all()
        counts = select(t.parts.c.node, func.count().label("gpus")).where(
            t.parts.c.until_at.is_(None), t.parts.c.kind == str(PartKind.GPU)
        )
        rows = await db.execute(counts.group_by(t.parts.c.node))
        gpus = {row.node: row.gpus for row in rows.all()}
    gate_of: dict[str, list[Span]] = defaultdict(list)
    for row in gates:
        gate_of[row.node].append(Span(row.from_at, row.until_at, row.open))
    maintenance: dict[str, list[Span]] = defaultdict(list)
    for row in holds:
        maintenance[row.node].append(Span(row.placed_at, row.lifted_at, value=True))
    standings = _standing_spans(health)
    times = [
        NodeTime(
            gpus=gpus.get(node, 0),
            gate=spans,
            standing=standings.get(node, ()),
            maintenance=maintenance.get(node, ()),
        )
        for node, spans in gate_of.items()
    ]
    return usage(times, start=start, end=end)


def _standing_spans(rows: Sequence[Any]) -> dict[str, list[Span]]:
    spans: dict[str, list[Span]] = defaultdict(list)
    for row in rows:
        mine = spans[row.node]
        standing = Standing(row.standing)
        if mine and mine[-1].value is standing:
            continue
        if mine:
            mine[-1] = Span(mine[-1].start, row.at, mine[-1].value)
        mine.append(Span(row.at, None, standing))
    return spans
