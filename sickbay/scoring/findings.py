"""What the scorer wants repaired, told once per occurrence."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sickbay.domain.health import Health
from sickbay.domain.node import Category, Severity
from sickbay.domain.signal import ScoredFinding
from sickbay.scoring.incidents import TELEMETRY, Incident, NodeIncidents
from sickbay.scoring.ruleset import RuleSet
from sickbay.scoring.xid import XidGate


def new_findings(
    here: NodeIncidents,
    active: Sequence[Incident],
    *,
    uuids: Mapping[str | None, str],
    now: datetime,
    window_s: float,
) -> list[ScoredFinding]:
    """The hard fails and scheduled states of one node that were not told yet.

    A consequence is not told beside its cause, and what happens to one part in one category within
    `window_s` is one finding.

    Args:
        here: the node's incidents; what is told now is remembered there.
        active: its open incidents, the most telling first.
        uuids: the part now in each slot.
        now: the present moment.
        window_s: seconds within which symptoms of one part and category are one.
    """
    caused = any(i.hard and not i.consequence for i in active)
    out: list[ScoredFinding] = []
    for incident in active:
        if not (incident.hard or incident.gate is XidGate.NOTE):
            continue
        finding = _finding_of(incident, uuid=uuids.get(incident.slot))
        if finding.id in here.reported or (incident.consequence and caused):
            continue
        here.reported.add(finding.id)
        place = (incident.slot, incident.category)
        last = here.reported_at.get(place)
        if last is None or (now - last).total_seconds() > window_s:
            out.append(finding)
            here.reported_at[place] = now
    return out


def soft_finding(
    here: NodeIncidents,
    node: str,
    *,
    health: Health,
    since: datetime,
    rules: RuleSet,
    uuids: Mapping[str | None, str],
) -> ScoredFinding:
    """The finding of a node whose health stayed low for its dwell."""
    rule = next((r for r in rules.signals if r.name == health.signal), None)
    finding = ScoredFinding(
        id=f"{node}/{health.part or 'node'}/{health.reason}/{since.timestamp():.0f}",
        node=node,
        observed_at=since,
        reason=health.reason,
        severity=rule.severity if rule else Severity.MAJOR,
        category=health.worst or Category.PERFORMANCE,
        source=TELEMETRY,
        hard=False,
        slot=health.part,
        part_uuid=uuids.get(health.part),
        treatment=rule.treatment if rule else None,
        detail=f"{health.signal} at {health.value}",
    )
    here.reported.add(finding.id)
    return finding


def _finding_of(incident: Incident, *, uuid: str | None) -> ScoredFinding:
    return ScoredFinding(
        id=incident.id,
        node=incident.node,
        observed_at=incident.at,
        reason=f"hard_fail:{incident.code}" if incident.hard else incident.code,
        severity=incident.severity,
        category=incident.category,
        source=incident.source,
        hard=incident.hard,
        slot=incident.slot,
        part_uuid=uuid,
        treatment=incident.treatment,
        detail=incident.detail,
    )
