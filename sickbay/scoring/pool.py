"""The scorer of one pool: readings in, changes of health and standing and findings out.

It holds the windows in memory and knows no clock, no file and no network: the same object scores a
live pool and a recorded one. Unknown never heals and never becomes a finding.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from sickbay.domain import standing as hysteresis
from sickbay.domain.health import NO_FRESH_DATA, Health, Standing
from sickbay.domain.node import Category, Node
from sickbay.domain.signal import JobNote, NodeReadings, ScoredFinding
from sickbay.domain.standing import StandingRules, Track
from sickbay.scoring.columns import Columns
from sickbay.scoring.findings import new_findings, soft_finding
from sickbay.scoring.incidents import Incident, Incidents
from sickbay.scoring.ruleset import RuleSet, Shape, Times
from sickbay.scoring.scores import CATEGORIES, PoolScores, score
from sickbay.scoring.shapes import Floats
from sickbay.scoring.states import update_states
from sickbay.scoring.xid import XidGate, parse_line

_VALUE_STEP = 0.05
_CONFIDENCE_STEP = 0.1


@dataclass(frozen=True)
class Change:
    """What became of one node in one evaluation.

    `save` tells whether health or standing differ enough from what was last saved. `withhold` asks
    to keep new work off (unknown past its grace), `unwithhold` says the reason is gone.
    """

    node: str
    health: Health
    standing: Standing
    since: datetime
    before: Standing
    transitions: int
    serving: float | None
    flagged: bool
    save: bool
    findings: tuple[ScoredFinding, ...] = ()
    withhold: bool = False
    unwithhold: bool = False

    @property
    def says_something(self) -> bool:
        """Whether anybody has to be told."""
        return self.save or bool(self.findings) or self.withhold or self.unwithhold


class PoolScorer:
    """Scores one pool over time.

    Args:
        rules: the rule set.
        times: its durations, already divided by the time scale.
        time_scale: seconds of the fleet per second of the clock.
    """

    def __init__(self, rules: RuleSet, *, times: Times, time_scale: float = 1.0) -> None:
        self.rules = rules
        self._times = times
        self._time_scale = time_scale
        limits = rules.thresholds
        self._standing_rules = StandingRules(
            degraded_below=limits.degraded_below,
            quarantined_below=limits.quarantined_below,
            healthy_above=limits.healthy_above,
            minimum_confidence=limits.minimum_confidence,
            degraded_dwell_s=times.degraded_dwell_s,
            quarantined_dwell_s=times.quarantined_dwell_s,
            healthy_dwell_s=times.healthy_dwell_s,
            unknown_grace_s=times.unknown_grace_s,
        )
        self._columns = Columns(rules, (), times.rate_window_s)
        self._at: dict[str, int] = {}
        self._tracks: dict[str, Track] = {}
        self._saved: dict[str, tuple[Health, Standing]] = {}
        self._asked: set[str] = set()
        self._restored: set[str] = set()
        self._restored_unknown: set[str] = set()
        self._incidents = Incidents(times)
        self._errors: dict[str, str] = {}

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Set the nodes on record; what is known of those still here stays."""
        if tuple(nodes) == self._columns.nodes:
            return
        fresh = Columns(self.rules, tuple(nodes), self._times.rate_window_s)
        fresh.carry_from(self._columns)
        self._columns = fresh
        self._at = {node.id: i for i, node in enumerate(nodes)}

    def restore(self, node: str, *, health: Health, standing: Standing, since: datetime) -> None:
        """Start a node from what the store says: never fresh-healthy after a restart."""
        self._tracks[node] = hysteresis.begin(standing, since=since)
        self._saved[node] = (health, standing)
        self._restored.add(node)
        if standing is Standing.UNKNOWN:
            # Whether it was withheld before the restart is not known; ending twice does no harm.
            self._restored_unknown.add(node)

    def returned(self, node: str, *, at: datetime) -> None:
        """The node came back by proof: what was before does not count again."""
        incidents = self._incidents.of(node)
        if incidents.returned_at is not None and at <= incidents.returned_at:
            return
        incidents.after_return(at)
        self._restored.discard(node)
        track = self._tracks.get(node)
        if track is not None and at >= track.since:
            self._tracks[node] = hysteresis.restart_after_proof(track, at=at)
        if node in self._at:
            self._columns.forget(self._columns.rows_of(self._at[node]))

    def standing_of(self, node: str) -> Standing:
        """Where a node stands now; unknown for one never scored."""
        track = self._tracks.get(node)
        return track.standing if track else Standing.UNKNOWN

    def watched(self) -> list[str]:
        """Nodes of which a finding is out or that are quarantined: those a return may concern."""
        reported = {n for n, i in self._incidents.nodes.items() if i.reported}
        bad = {n for n, t in self._tracks.items() if t.standing is Standing.QUARANTINED}
        return sorted((reported | bad) & set(self._at))

    def take_notes(self) -> list[JobNote]:
        """Errors that belong to jobs, since the last call."""
        notes, self._incidents.notes = self._incidents.notes, []
        return notes

    def absorb(self, readings: Sequence[NodeReadings], *, now: datetime) -> bool:
        """Take what was read. True when a kernel record brought something new."""
        at_s = now.timestamp()
        read: list[int] = []
        news = False
        for reading in readings:
            node = self._at.get(reading.node)
            if node is None:
                continue
            news |= self._take_records(node, reading, now=now)
            if not reading.asked:
                continue
            self._errors[reading.node] = reading.error
            # A page that names no part is the collector's trouble: not every GPU is lost at once.
            if not reading.parts:
                self._columns.silent(node)
                continue
            self._columns.take(node, reading.parts, at_s=at_s)
            read.append(node)
        if read:
            self._settle(read, now=now)
        return news

    def evaluate(self, *, now: datetime, held: Collection[str]) -> list[Change]:
        """Score all nodes; one `Change` for each node somebody has to be told about.

        Args:
            now: the present moment, UTC-aware.
            held: nodes on which a quarantine hold of ours stands.
        """
        if not self._columns.nodes:
            return []
        soft, suspect = self._event_scores(now)
        scores = score(
            self._columns,
            self.rules,
            soft=soft,
            suspect=suspect,
            at_s=now.timestamp(),
            freshness_s=self._times.freshness_s,
            time_scale=self._time_scale,
        )
        update_states(
            columns=self._columns,
            rules=self.rules,
            incidents=self._incidents,
            fresh=scores.fresh,
            boot_grace_s=self._times.boot_grace_s,
            now=now,
        )
        changes = (
            self._evaluate_node(i, node, scores=scores, now=now, held=node.id in held)
            for i, node in enumerate(self._columns.nodes)
        )
        return [change for change in changes if change.says_something]

    def _take_records(self, node: int, reading: NodeReadings, *, now: datetime) -> bool:
        news = False
        here = self._incidents.of(reading.node)
        for record in reading.records:
            if record.boot_id and record.boot_id != here.boot_id:
                if here.boot_id:
                    self._columns.up_since[node] = now.timestamp()
                here.boot_id = record.boot_id
            line = parse_line(record.message)
            if line is None or not self._incidents.is_new(reading.node, record=record, now=now):
                continue
            row = self._columns.row_at(node, line.bus_id)
            slot = None if row is None else self._columns.rows[row].slot
            self._incidents.take_line(reading.node, slot=slot, line=line, record=record)
            news = True
        return news

    def _settle(self, read: list[int], *, now: datetime) -> None:
        columns = self._columns
        columns.settle(read, at_s=now.timestamp())
        for row, code in columns.new_codes(read):
            part = columns.rows[row]
            self._incidents.take_gauge(part.node, slot=part.slot, code=code, at=now)
        for column, at in enumerate(columns.counter_at):
            rule = self.rules.signals[at]
            if rule.shape is not Shape.HARD_FAIL:
                continue
            with np.errstate(invalid="ignore"):
                grown = np.flatnonzero(columns.growth[:, column] > 0)
            for row in grown.tolist():
                part = columns.rows[row]
                self._incidents.take_count(
                    part.node, slot=part.slot, code=rule.code or rule.name,
                    category=rule.category, severity=rule.severity, treatment=rule.treatment,
                    at=now, total=float(columns.counters.value[row, column]),
                )  # fmt: skip

    def _event_scores(self, now: datetime) -> tuple[Floats, Floats]:
        shape = (len(self._columns.rows), len(CATEGORIES))
        soft, suspect = np.full(shape, np.nan), np.full(shape, np.nan)
        for incidents in self._incidents.nodes.values():
            for incident in incidents.active(now=now, times=self._times):
                column = CATEGORIES.index(incident.category)
                rows = self._rows_of_incident(incident)
                if incident.gate is XidGate.SOFT:
                    soft[rows, column] = self.rules.events.soft_score
                elif incident.gate is XidGate.SUSPECT:
                    suspect[rows, column] = self.rules.events.suspect_score
        return soft, suspect

    def _rows_of_incident(self, incident: Incident) -> list[int]:
        node = self._at.get(incident.node)
        if node is None:
            return []
        mine = list(self._columns.rows_of(node))
        same = [r for r in mine if self._columns.rows[r].slot == incident.slot]
        return same or mine

    def _evaluate_node(
        self, at: int, node: Node, *, scores: PoolScores, now: datetime, held: bool
    ) -> Change:
        incidents = self._incidents.of(node.id)
        active = incidents.active(now=now, times=self._times)
        health = self._health(at, node.id, scores=scores, active=active)
        old = self._tracks.get(node.id) or hysteresis.begin(Standing.UNKNOWN, since=now)
        track = hysteresis.step(old, health, now=now, rules=self._standing_rules, held=held)
        self._tracks[node.id] = track
        findings = self._findings(node.id, active, health=health, before=old, now=now, held=held)
        serving = float(scores.serving[at])
        return Change(
            node=node.id,
            health=health,
            standing=track.standing,
            since=track.since,
            before=old.standing,
            transitions=track.transitions,
            serving=None if health.value is None or np.isnan(serving) else serving,
            flagged=self._flagged(at, track, scores),
            save=self._differs(node.id, health, track.standing),
            findings=findings,
            withhold=not held and self._withhold(node.id, track, now=now),
            unwithhold=self._unwithhold(node.id, old, track=track),
        )

    def _findings(
        self,
        node: str,
        active: list[Incident],
        *,
        health: Health,
        before: Track,
        now: datetime,
        held: bool,
    ) -> tuple[ScoredFinding, ...]:
        """New hard fails and scheduled states at once; a soft cause when its dwell is over.

        A restored soft quarantine without a hold is told again: its report may have been lost.
        """
        here, uuids = self._incidents.of(node), self._uuids(node)
        window_s = self._times.cause_window_s
        found = new_findings(here, active, uuids=uuids, now=now, window_s=window_s)
        if health.value is None or health.is_hard_fail:
            return tuple(found)
        track = self._tracks[node]
        quarantined = track.standing is Standing.QUARANTINED
        entered = quarantined and before.standing is not Standing.QUARANTINED
        low = health.value < self.rules.thresholds.quarantined_below
        left_behind = quarantined and low and not held and node in self._restored
        self._restored.discard(node)
        if entered or left_behind:
            since = track.since
            found.append(
                soft_finding(here, node, health=health, since=since, rules=self.rules, uuids=uuids)
            )
        return tuple(found)

    def _uuids(self, node: str) -> dict[str | None, str]:
        rows = (self._columns.rows[r] for r in self._columns.rows_of(self._at[node]))
        return {row.slot: row.uuid for row in rows}

    def _health(self, at: int, node: str, *, scores: PoolScores, active: list[Incident]) -> Health:
        confidence = round(float(scores.confidence[at]), 4)
        hard = [incident for incident in active if incident.hard]
        if hard:
            first = hard[0]
            others = ", ".join(dict.fromkeys(i.code for i in hard[1:]))
            detail = first.detail + (f"; also {others}" if others else "")
            return Health(
                0.0, confidence, first.category, f"hard_fail:{first.code}", first.code,
                first.slot, detail,
            )  # fmt: skip
        value = float(scores.value[at])
        if not scores.fresh[at] or np.isnan(value):
            return Health(
                None, confidence, None, NO_FRESH_DATA, detail=self._errors.get(node, "")[:200]
            )
        minimum = self.rules.thresholds.minimum_confidence
        if confidence < minimum:
            detail = f"confidence {confidence:.2f} is below {minimum:.2f}"
            return Health(None, confidence, None, NO_FRESH_DATA, detail=detail)
        return self._weakest(at, value, confidence, scores)

    def _weakest(self, at: int, value: float, confidence: float, scores: PoolScores) -> Health:
        column = int(scores.worst[at])
        worst = CATEGORIES[column]
        rows = list(self._columns.rows_of(at))
        row = rows[int(np.nanargmin(scores.part_category[rows, column]))]
        name = self._argmin(row, worst, scores)
        slot = self._columns.rows[row].slot if value < 1.0 else None
        return Health(round(value, 4), confidence, worst, f"min:{worst}", name, slot)

    def _argmin(self, row: int, worst: Category, scores: PoolScores) -> str:
        signals = self.rules.signals
        found = {r.name: scores.sub[row, i] for i, r in enumerate(signals) if r.category is worst}
        for label, offset in (("soft_event", 0), ("suspect_event", len(CATEGORIES))):
            found[label] = scores.sub[row, len(signals) + offset + CATEGORIES.index(worst)]
        known = {name: float(s) for name, s in found.items() if np.isfinite(s)}
        return min(known, key=lambda name: known[name])

    def _flagged(self, at: int, track: Track, scores: PoolScores) -> bool:
        rows = list(self._columns.rows_of(at))
        if track.standing is not Standing.HEALTHY or not rows:
            return False
        with np.errstate(invalid="ignore"):
            return bool((scores.sub[rows] < self.rules.thresholds.degraded_below).any())

    def _differs(self, node: str, health: Health, standing: Standing) -> bool:
        old = self._saved.get(node)
        if old is not None and old[1] is standing and not _moved(old[0], health):
            return False
        self._saved[node] = (health, standing)
        return True

    def _withhold(self, node: str, track: Track, *, now: datetime) -> bool:
        since = track.unknown_since
        if track.standing is not Standing.UNKNOWN or since is None or node in self._asked:
            return False
        if (now - since).total_seconds() < self._times.unknown_grace_s:
            return False
        self._asked.add(node)
        return True

    def _unwithhold(self, node: str, old: Track, *, track: Track) -> bool:
        left = old.standing is Standing.UNKNOWN and track.standing is not Standing.UNKNOWN
        asked = node in self._asked or node in self._restored_unknown
        if left:
            self._asked.discard(node)
            self._restored_unknown.discard(node)
        return left and asked


def _moved(old: Health, new: Health) -> bool:
    """Whether two healths differ enough to be two rows of history."""
    if (old.value is None) is not (new.value is None):
        return True
    # Of a node that lacks nothing, the weakest link is chance.
    whole = min(old.value or 0.0, new.value or 0.0) > 1.0 - _VALUE_STEP
    if not whole and (old.reason, old.part, old.signal) != (new.reason, new.part, new.signal):
        return True
    if abs((old.value or 0.0) - (new.value or 0.0)) >= _VALUE_STEP:
        return True
    return abs(old.confidence - new.confidence) >= _CONFIDENCE_STEP
