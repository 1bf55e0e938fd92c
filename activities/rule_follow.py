"""Lets a running scorer follow the book of rules: a new rule set, a shadow, exceptions.

A rule set that cannot be loaded changes nothing: the running one stays. A shadow rule set reads
what the other one reads and tells nobody but the book where a node would stand otherwise.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from temporalio import activity

from sickbay.contracts.rules import PresentRules, ShadowDifference
from sickbay.contracts.scoring import ScoringInput, scaled_times
from sickbay.domain.node import Node
from sickbay.domain.signal import Absence, NodeReadings, PartPage
from sickbay.errors import UsageError
from sickbay.scoring.pool import PoolScorer
from sickbay.scoring.ruleset import RuleSet, digest_of, load_ruleset


class RuleBook(Protocol):
    """Where it is written which rules count."""

    async def present(self, *, now: datetime) -> PresentRules:
        """What counts at this moment."""

    async def differs(self, found: Sequence[ShadowDifference]) -> None:
        """Keep where nodes stand otherwise under the shadow rule set."""


@dataclass
class Following:
    """What one attempt follows: the exceptions that hold, and the shadow with what it told."""

    excepted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    shadow: PoolScorer | None = None
    told: dict[str, tuple[str, str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def without_exceptions(self, reading: NodeReadings, *, rules: RuleSet) -> NodeReadings:
        """The readings of a node as if it did not have the signals excepted there."""
        signals = self.excepted.get(reading.node)
        if not signals or reading.parts is None:
            return reading
        gone = {m for rule in rules.signals if rule.name in signals for m in rule.metrics}
        return replace(reading, parts=tuple(_without(part, gone) for part in reading.parts))

    def metric_names(self, rules: RuleSet) -> frozenset[str]:
        """What has to be read for both rule sets."""
        names = rules.metric_names()
        return names if self.shadow is None else names | self.shadow.rules.metric_names()

    def take_shadow(
        self, content: Mapping[str, Any] | None, *, inp: ScoringInput, nodes: Sequence[Node]
    ) -> bool:
        """Begin, change or end the shadow. True when it is another one now."""
        old = None if self.shadow is None else self.shadow.rules.digest
        if content is None or digest_of(content) == old:
            changed = content is None and old is not None
            self.shadow = None if content is None else self.shadow
            return changed
        rules = loaded(content)
        if rules is None:
            return False
        times = scaled_times(rules, time_scale=inp.time_scale)
        self.shadow = PoolScorer(rules, times=times, time_scale=inp.time_scale)
        self.shadow.set_nodes(nodes)
        self.told, self.reasons = {}, {}
        return True

    def differences(
        self, scorer: PoolScorer, *, nodes: Collection[str], now: datetime
    ) -> list[ShadowDifference]:
        """Score the shadow; the nodes whose two standings differ, or differ otherwise than told."""
        if self.shadow is None:
            return []
        # No hold of ours is a shadow's: it would never let a node out of quarantine.
        for change in self.shadow.evaluate(now=now, held=()):
            self.reasons[change.node] = change.health.reason
        out: list[ShadowDifference] = []
        for node in nodes:
            ours, theirs = str(scorer.standing_of(node)), str(self.shadow.standing_of(node))
            if self.told.get(node, (ours, ours)) == (ours, theirs):
                continue
            self.told[node] = (ours, theirs)
            digest, reason = self.shadow.rules.digest, self.reasons.get(node, "")
            out.append(ShadowDifference(node, digest, ours, theirs, reason, now))
        return out


def followed(inp: ScoringInput, present: PresentRules, *, digest: str) -> ScoringInput | None:
    """The input with the rule set that counts now; None when it is the one of `digest` already."""
    content = present.active
    if content is None or digest_of(content) == digest:
        return None
    rules = loaded(content)
    if rules is None:
        return None
    times = scaled_times(rules, time_scale=inp.time_scale)
    return replace(inp, rules=dict(content), times=times)


def loaded(content: Mapping[str, Any]) -> RuleSet | None:
    """The rule set, None (and a line in the log) when this release cannot load it."""
    try:
        return load_ruleset(content)
    except UsageError as error:
        activity.logger.warning("the rule set on record is not followed: %s", error.message)
        return None


def _without(part: PartPage, gone: set[str]) -> PartPage:
    values = {name: value for name, value in part.values.items() if name not in gone}
    absent = {**part.absent, **dict.fromkeys(gone, Absence.UNSUPPORTED)}
    return replace(part, values=values, absent=absent)
