"""Scores one pool for as long as it is let: reads the source, saves changes, reports findings.

One attempt holds the pool's fencing epoch and stops when a newer one exists, so that one that was
given up never writes beside its successor. Trouble with one node never stops the others: what could
not be saved or reported is tried again at the next tick.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from temporalio import activity

from activities.outbox import Outbox
from activities.rule_follow import Following, RuleBook, followed
from activities.scoring_ports import EventSource, ScoringRecords, WindowSource
from sickbay.contracts.budget import WithholdAsk, WithholdEnded
from sickbay.contracts.repair import Fault
from sickbay.contracts.scoring import SCORE_POOL, ScoringEnded, ScoringInput
from sickbay.domain.gate import HoldKind, is_ours
from sickbay.domain.health import Health
from sickbay.domain.node import Node
from sickbay.domain.signal import KernelRecord, NodeReadings, ScoredFinding
from sickbay.errors import SickbayError, Superseded
from sickbay.ports import (
    Inventory,
    KernelEntry,
    NodeSample,
    Permits,
    Repairs,
    SignalSource,
)
from sickbay.readers.exposition import PageReader
from sickbay.scoring.pool import Change, PoolScorer
from sickbay.scoring.ruleset import load_ruleset

_NOTES_LOGGED = 20
_FAILED_TICKS = 10
UNKNOWN_REASON = "unknown_past_grace"


@dataclass
class _Run:
    """One attempt's view of its pool."""

    inp: ScoringInput
    epoch: int
    scorer: PoolScorer
    reader: PageReader
    nodes: dict[str, Node] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    outbox: Outbox = field(default_factory=Outbox)
    refreshed_at: datetime | None = None
    failed_ticks: int = 0
    following: Following = field(default_factory=Following)

    @property
    def tick_limit_s(self) -> float:
        """Longest a tick may take before it counts as failed."""
        return max(self.inp.heartbeat_timeout_s, 4 * self.inp.times.tick_s)


class ScoringActivities:
    """The activity that scores pools, on the ports it is given.

    Args:
        source: where pages and kernel events come from.
        records: the store.
        repairs: the way to a node's repair.
        permits: the way to the pool's budget.
        inventory: the nodes on record.
        clock: the present moment, UTC-aware.
        rule_book: where it is written which rules count; None: those the scoring began with.
    """

    def __init__(
        self,
        source: SignalSource,
        *,
        records: ScoringRecords,
        repairs: Repairs,
        permits: Permits,
        inventory: Inventory,
        clock: Callable[[], datetime],
        rule_book: RuleBook | None = None,
    ) -> None:
        self._rule_book = rule_book
        self._source = source
        self._records = records
        self._repairs = repairs
        self._permits = permits
        self._inventory = inventory
        self._clock = clock

    @activity.defn(name=SCORE_POOL)
    async def score_pool(self, inp: ScoringInput) -> ScoringEnded:
        """Score until cancelled, until the worker stops, or until a newer attempt took over."""
        run = await self._begin(inp)
        loop = asyncio.get_running_loop()
        beat = asyncio.create_task(self._heartbeat(inp.heartbeat_timeout_s / 4))
        try:
            await self._rebuild(run)
            while True:
                started = loop.time()
                if activity.is_worker_shutdown():
                    raise _WorkerStops("the worker stops; another one goes on from the store")
                if not await self._tick_is_ours(run):
                    return ScoringEnded(run.epoch, "superseded")
                await self._watch(run, until=started + run.inp.times.tick_s)
        finally:
            beat.cancel()

    async def _begin(self, inp: ScoringInput) -> _Run:
        scorer = _scorer_of(inp)
        epoch = await self._records.next_epoch(inp.pool)
        run = _Run(inp, epoch, scorer, PageReader(scorer.rules.metric_names()))
        await self._restore(run, scorer)
        await self._refresh(run, now=self._clock())
        return run

    async def _restore(self, run: _Run, scorer: PoolScorer) -> None:
        """Begin from the store: where nodes stand, and when they last came back."""
        pool = run.inp.pool
        for node, (health, standing, since) in (await self._records.standings(pool)).items():
            scorer.restore(node, health=health, standing=standing, since=since)
        for node, at in (await self._records.last_returns(pool)).items():
            scorer.returned(node, at=at)

    async def _follow(self, run: _Run) -> None:
        """Take the rules that count now; those that cannot be loaded change nothing."""
        if self._rule_book is None:
            return
        present = await self._rule_book.present(now=self._clock())
        here, nodes = run.following, sorted(run.nodes.values(), key=lambda n: n.id)
        here.excepted = present.excepted
        inp = followed(run.inp, present, digest=run.scorer.rules.digest)
        if inp is not None:
            run.inp, run.scorer = inp, _scorer_of(inp)
            await self._restore(run, run.scorer)
            run.scorer.set_nodes(nodes)
        if here.take_shadow(present.shadow, inp=run.inp, nodes=nodes) and here.shadow is not None:
            await self._restore(run, here.shadow)
        names = here.metric_names(run.scorer.rules)
        if names != run.reader.wanted:
            run.reader = PageReader(names)
        if inp is not None:
            activity.logger.info("%s is scored by %s now", inp.pool, run.scorer.rules.label)
            await self._rebuild(run)

    async def _rebuild(self, run: _Run) -> None:
        """Fill the windows from a source that remembers, so that a restart is no blind spot.

        Nothing is decided here: what was read is decided on at the first tick.
        """
        if not isinstance(self._source, WindowSource):
            return
        times = run.inp.times
        window_s = max(times.rate_window_s, times.freshness_s)
        try:
            async with asyncio.timeout(run.tick_limit_s):
                past = await self._source.read_window(
                    sorted(run.nodes), window_s=window_s, step_s=times.tick_s
                )
                returns = await self._records.last_returns(run.inp.pool)
        except Exception as error:  # noqa: BLE001 - windows then fill from the first tick on
            activity.logger.warning("windows of %s start empty: %r", run.inp.pool, error)
            return
        for samples in past:
            # What was before a proven return was answered by that proof.
            after = [s for s in samples if s.node not in returns or s.at > returns[s.node]]
            if after:
                readings = [self._readings(run, sample, asked=True) for sample in after]
                _absorb(run, readings, now=after[0].at)

    async def _heartbeat(self, every_s: float) -> None:
        """Say that this attempt lives, also while a slow page keeps a tick waiting."""
        while True:
            activity.heartbeat()
            await asyncio.sleep(every_s)

    async def _tick_is_ours(self, run: _Run) -> bool:
        """One tick; False when a newer attempt took over.

        A failing store or source costs one tick; many failures in a row end the attempt, so that
        they are seen where attempts are seen.
        """
        try:
            if not await self._records.epoch_is_current(run.inp.pool, run.epoch):
                return False
            # The heartbeat goes on beside a tick, so a tick that hangs needs an end of its own.
            async with asyncio.timeout(run.tick_limit_s):
                await self._tick(run)
        except Superseded:
            return False
        except Exception as error:
            run.failed_ticks += 1
            activity.logger.warning("tick of %s skipped: %r", run.inp.pool, error)
            if run.failed_ticks >= _FAILED_TICKS:
                raise
        else:
            run.failed_ticks = 0
        return True

    async def _tick(self, run: _Run) -> None:
        await self._refresh_when_due(run)
        samples = await self._source.read(sorted(run.nodes))
        now = self._clock()
        _absorb(run, [self._readings(run, s, asked=True) for s in samples], now=now)
        await self._take_returns(run)
        await self._look_at_holds(run)
        await self._score(run, now=now)

    async def _watch(self, run: _Run, *, until: float) -> None:
        """Between two ticks, look for kernel events; a new one is scored at once."""
        loop = asyncio.get_running_loop()
        watch_s = run.inp.times.event_watch_s
        while (left := until - loop.time()) > 0:
            await _sleep_or_shutdown(min(left, watch_s))
            if activity.is_worker_shutdown():
                return
            if until - loop.time() < watch_s or not isinstance(self._source, EventSource):
                continue
            try:
                async with asyncio.timeout(run.tick_limit_s):
                    await self._take_events(run, self._source)
            except Exception as error:  # noqa: BLE001 - the next tick counts failures
                activity.logger.warning("event watch of %s skipped: %r", run.inp.pool, error)

    async def _take_events(self, run: _Run, source: EventSource) -> None:
        samples = await source.read_events(sorted(run.nodes))
        now = self._clock()
        readings = [self._readings(run, s, asked=False) for s in samples]
        if _absorb(run, readings, now=now):
            await self._score(run, now=now)

    async def _score(self, run: _Run, *, now: datetime) -> None:
        for change in run.scorer.evaluate(now=now, held=run.held):
            self._tell(run, change, now=now)
        for note in run.scorer.take_notes()[:_NOTES_LOGGED]:
            activity.logger.info("job finding %s on %s/%s", note.code, note.node, note.slot)
        differs = run.following.differences(run.scorer, nodes=run.nodes, now=now)
        if differs and self._rule_book is not None:
            run.outbox.waiting["shadow"] = lambda book=self._rule_book: book.differs(differs)  # type: ignore[misc]
        await run.outbox.send()

    async def _refresh_when_due(self, run: _Run) -> None:
        now = self._clock()
        last = run.refreshed_at
        if last is None or (now - last).total_seconds() >= run.inp.inventory_refresh_s:
            await self._refresh(run, now=now)

    async def _refresh(self, run: _Run, *, now: datetime) -> None:
        nodes = await self._inventory.nodes(pool=run.inp.pool)
        run.nodes = {node.id: node for node in nodes}
        await self._follow(run)
        for scorer in _scorers(run):
            scorer.set_nodes(sorted(nodes, key=lambda n: n.id))
        run.refreshed_at = now

    async def _take_returns(self, run: _Run) -> None:
        for node, at in (await self._records.last_returns(run.inp.pool)).items():
            for scorer in _scorers(run):
                scorer.returned(node, at=at)

    async def _look_at_holds(self, run: _Run) -> None:
        """Holds of the few nodes with a finding out or in quarantine."""
        watched = run.scorer.watched()
        run.held &= set(watched)
        for node in watched:
            try:
                holds = await self._records.holds(node)
            except SickbayError as error:
                # Not known whether a hold stands: what was known before goes on.
                activity.logger.warning("%s cannot be looked up: %s", node, error)
                continue
            ours = any(
                h.kind is HoldKind.QUARANTINE and is_ours(h.mark) and h.lifted_at is None
                for h in holds
            )
            (run.held.add if ours else run.held.discard)(node)

    def _readings(self, run: _Run, sample: NodeSample, *, asked: bool) -> NodeReadings:
        parts = None if sample.text is None else run.reader.read(sample.text)
        return NodeReadings(
            node=sample.node,
            at=sample.at,
            parts=parts,
            asked=asked,
            error=sample.error,
            records=tuple(_record(entry) for entry in sample.events),
        )

    def _tell(self, run: _Run, change: Change, *, now: datetime) -> None:
        """Put all that this change says into the outbox: findings first, then the record of it."""
        node = run.nodes[change.node]
        outbox, pool = run.outbox.waiting, run.inp.pool
        for finding in change.findings:
            fault = _fault(finding, change.health)
            outbox[f"finding {finding.id}"] = lambda f=fault: self._if_ours(  # type: ignore[misc]
                run, lambda: self._repairs.report(f, pool=pool)
            )
        if change.save:
            label = run.scorer.rules.label
            outbox[f"health {change.node}"] = lambda: self._records.save_health(
                change.node,
                health=change.health,
                standing=change.standing,
                at=now,
                rules=label,
                epoch=run.epoch,
            )
        if change.withhold:
            ask = WithholdAsk(change.node, node.group, UNKNOWN_REASON, False, _factors(node))
            outbox[f"withhold {change.node}"] = lambda: self._if_ours(
                run, lambda: self._permits.ask_withhold(pool, ask)
            )
        if change.unwithhold:
            ended = WithholdEnded(change.node, "known again")
            outbox[f"withhold {change.node}"] = lambda: self._if_ours(
                run, lambda: self._permits.end_withhold(pool, ended)
            )

    async def _if_ours(self, run: _Run, tell: Callable[[], Awaitable[None]]) -> None:
        """Send one message, unless a newer attempt has begun since this tick did.

        Raises:
            Superseded: only the newer attempt's word counts.
        """
        if not await self._records.epoch_is_current(run.inp.pool, run.epoch):
            raise Superseded(f"epoch {run.epoch} of {run.inp.pool} is over")
        await tell()


def _scorer_of(inp: ScoringInput) -> PoolScorer:
    return PoolScorer(load_ruleset(inp.rules), times=inp.times, time_scale=inp.time_scale)


def _scorers(run: _Run) -> list[PoolScorer]:
    shadow = run.following.shadow
    return [run.scorer] if shadow is None else [run.scorer, shadow]


def _absorb(run: _Run, readings: list[NodeReadings], *, now: datetime) -> bool:
    """Have every scorer take what was read; exceptions count for the one that decides."""
    following, rules = run.following, run.scorer.rules
    if following.shadow is not None:
        following.shadow.absorb(readings, now=now)
    counted = [following.without_exceptions(reading, rules=rules) for reading in readings]
    return run.scorer.absorb(counted, now=now)


class _WorkerStops(SickbayError):
    """Raised when the worker shuts down; the retry goes on elsewhere."""

    code = "worker_stops"


async def _sleep_or_shutdown(seconds: float) -> None:
    """Sleep, but not beyond the moment at which the worker begins to stop."""
    stop = asyncio.ensure_future(activity.wait_for_worker_shutdown())
    try:
        await asyncio.wait({stop}, timeout=seconds)
    finally:
        stop.cancel()


def _record(entry: KernelEntry) -> KernelRecord:
    return KernelRecord(entry.boot_id, entry.monotonic_us, entry.message, entry.at)


def _factors(node: Node) -> dict[str, str]:
    return {"rack": node.rack, "node_class": node.node_class, "group": node.group}


def _fault(finding: ScoredFinding, health: Health) -> Fault:
    return Fault(
        id=finding.id,
        node=finding.node,
        observed_at=finding.observed_at,
        reason=finding.reason,
        severity=finding.severity,
        category=finding.category,
        source=finding.source,
        hard=finding.hard,
        slot=finding.slot,
        part_uuid=finding.part_uuid,
        treatment=finding.treatment,
        health=health,
        detail=finding.detail,
    )
