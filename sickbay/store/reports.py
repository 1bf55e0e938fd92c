"""The summary people run a fleet by, computed from steps, holds and the gate's ledger."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select

from sickbay.domain.health import Standing
from sickbay.domain.usage import NodeTime, Span, Usage, usage
from sickbay.store import tables as t
from sickbay.store.engine import Store
from sickbay.store.queries import RepairRow, StepRow, recent_repairs

ALL = 1_000_000
_TREATED = {"done", "ambiguous", "replaced", "work_done"}


@dataclass(frozen=True)
class Summary:
    """What happened since the store began (or `since`).

    `seconds_by_stage` is (count, mean, longest) in wall-clock seconds. `returned_untested` are
    repairs that ended `returned` without the owed passes in a row, recomputed from their steps.
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
    proofs: dict[str, int]
    seconds_by_stage: dict[str, tuple[int, float, float]]
    pages: int
    urgent_pages: int
    would_have: int
    usage: Usage


async def summary(store: Store, *, now: datetime | None = None) -> Summary:
    """The summary of everything in the store."""
    until = now or datetime.now(UTC)
    repairs = await recent_repairs(store, limit=ALL)
    async with store.read() as db:
        nodes = (await db.execute(select(t.nodes))).all()
        urgent = (await db.execute(select(t.pages.c.urgent))).scalars().all()
        withheld = (await db.execute(select(func.count()).select_from(t.would_have))).scalar()
    began = min((n.added_at for n in nodes), default=until)
    returned = [r for r in repairs if r.ending == "returned"]
    steps = [s for r in repairs for s in r.steps]
    return Summary(
        since=began,
        until=until,
        nodes=len(nodes),
        repairs=len(repairs),
        running=sum(r.ending is None for r in repairs),
        by_ending=dict(Counter(r.ending for r in repairs if r.ending)),
        by_cure=dict(Counter(_cure(r) for r in returned)),
        not_confirmed=sum(r.confirmed is False for r in returned),
        returned=len(returned),
        returned_untested=tuple(r.repair_id for r in returned if not was_proven(r.steps)),
        proofs=dict(Counter(s.outcome for s in steps if s.stage == "prove")),
        seconds_by_stage=_stage_times(steps),
        pages=len(urgent),
        urgent_pages=sum(urgent),
        would_have=int(withheld or 0),
        usage=await fleet_usage(store, start=began, end=until),
    )


def was_proven(steps: Sequence[StepRow]) -> bool:
    """Whether a repair's last suites were two passes in a row since its last treatment.

    A diagnosis that passed is the first of the two for a repair that treated nothing.
    """
    passes = 0
    for step in steps:
        if step.stage == "prove":
            passes = passes + 1 if step.outcome == "passed" else 0
        elif step.stage == "diagnose":
            passes = 1 if step.outcome == "not_confirmed" else 0
        elif step.treatment and step.outcome in _TREATED:
            passes = 0
    return passes >= 2  # noqa: PLR2004 - twice


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
    """Usable compute of all GPUs on record over [start, end)."""
    async with store.read() as db:
        gates = (await db.execute(select(t.gate_intervals).order_by(t.gate_intervals.c.id))).all()
        health = (await db.execute(select(t.health_changes).order_by(t.health_changes.c.id))).all()
        counts = select(t.parts.c.node, func.count()).where(
            t.parts.c.until_at.is_(None), t.parts.c.kind == "gpu"
        )
        rows = (await db.execute(counts.group_by(t.parts.c.node))).all()
    gpus = {row[0]: row[1] for row in rows}
    gate_of: dict[str, list[Span]] = defaultdict(list)
    for row in gates:
        gate_of[row.node].append(Span(row.from_at, row.until_at, row.open))
    standings = _standing_spans(health)
    times = [
        NodeTime(gpus=gpus.get(node, 0), gate=spans, standing=standings.get(node, ()))
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
