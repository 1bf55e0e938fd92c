"""The rule set: signals, weights, thresholds and times, built from a parsed mapping.

This module opens no file: whoever reads the TOML hands the mapping over. Everything wrong in it is
a `UsageError` that names the key and says what would be right; a rule set is whole or refused.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.signal import Component, SignalKind
from sickbay.errors import UsageError

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")


class Shape(StrEnum):
    """How a signal becomes a sub-score; `none` only tells liveness, load or an event."""

    HARD_FAIL = "hard_fail"
    RAMP = "ramp"
    PEER = "peer"
    BITS = "bits"
    NONE = "none"


@dataclass(frozen=True)
class SignalRule:
    """One signal: where it is read, what it may be, and how it is scored.

    `metrics` are exporter names, newest or oldest, first found wins. `valid` bounds are inclusive;
    outside them a reading is missing. `code` is the reason of a hard fail. `schedule` makes a bad
    value a finding at once, without a hard fail. `consequence` marks a hard fail that a more
    specific one on the same node explains.
    """

    name: str
    metrics: tuple[str, ...]
    kind: SignalKind
    unit: str
    valid: tuple[float, float]
    category: Category
    shape: Shape
    component: Component = Component.GPU
    warn: float = 0.0
    crit: float = 0.0
    min_effect: float = 0.0
    min_cohort: int = 8
    low_is_bad: bool = False
    per_hour: bool = False
    mask: int = 0
    weight: float = 1.0
    wanted: bool = False
    liveness: bool = False
    severity: Severity = Severity.MAJOR
    treatment: Treatment | None = None
    treatment_of: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    schedule: bool = False
    consequence: bool = False

    def treatment_for(self, value: float) -> Treatment | None:
        """The first treatment, which a code signal may choose by its value."""
        chosen = self.treatment_of.get(str(int(value)))
        return Treatment(chosen) if chosen else self.treatment


@dataclass(frozen=True)
class Thresholds:
    """Where standings begin and end, on the health value."""

    degraded_below: float = 0.7
    quarantined_below: float = 0.3
    healthy_above: float = 0.8
    minimum_confidence: float = 0.5


@dataclass(frozen=True)
class Times:
    """Durations in seconds of the fleet's own time."""

    tick_s: float = 15.0
    event_watch_s: float = 1.0
    freshness_s: float = 60.0
    unknown_grace_s: float = 600.0
    boot_grace_s: float = 300.0
    degraded_dwell_s: float = 300.0
    quarantined_dwell_s: float = 600.0
    healthy_dwell_s: float = 1800.0
    rate_window_s: float = 300.0
    event_window_s: float = 3600.0
    cause_window_s: float = 60.0


@dataclass(frozen=True)
class EventRules:
    """What soft and suspect kernel events weigh in their category, and what they are worth."""

    soft_weight: float = 9.0
    soft_score: float = 0.5
    suspect_weight: float = 40.0
    suspect_score: float = 0.0


@dataclass(frozen=True)
class LostRule:
    """When a part that is absent from a page that answers counts as lost."""

    samples: int = 2
    category: Category = Category.COMPUTE
    severity: Severity = Severity.CRITICAL
    treatment: Treatment | None = Treatment.REBOOT


@dataclass(frozen=True)
class LoadRule:
    """The signal that tells a part is at work, and from which value on."""

    signal: str = "gpu_util"
    at_least: float = 50.0


@dataclass(frozen=True)
class RuleSet:
    """A whole rule set. `digest` is the SHA-256 of its canonical content."""

    version: str
    digest: str
    signals: tuple[SignalRule, ...]
    thresholds: Thresholds
    times: Times
    events: EventRules
    gpu_lost: LostRule
    load: LoadRule

    @property
    def label(self) -> str:
        """Version and shortened digest, as stored beside every decision."""
        return f"{self.version}@{self.digest[:12]}"

    def position(self, name: str) -> int:
        """Column of a signal. Raises `UsageError` when the rule set has none of this name."""
        for at, rule in enumerate(self.signals):
            if rule.name == name:
                return at
        raise UsageError(
            f"no signal is called {name!r}", field=name, remedy="add it to [[signals]]"
        )

    def metric_names(self) -> frozenset[str]:
        """All exporter metric names any signal may be read from."""
        return frozenset(name for rule in self.signals for name in rule.metrics)


_SECTIONS: dict[str, type[Any]] = {
    "thresholds": Thresholds,
    "times": Times,
    "events": EventRules,
    "gpu_lost": LostRule,
    "load": LoadRule,
}
_ENUMS: dict[str, type[StrEnum]] = {
    "kind": SignalKind,
    "shape": Shape,
    "component": Component,
    "category": Category,
    "severity": Severity,
    "treatment": Treatment,
}


def load_ruleset(content: Mapping[str, Any]) -> RuleSet:
    """Build a rule set from an already parsed mapping.

    Raises:
        UsageError: a key is unknown, missing, of the wrong type or makes no sense; `field` names
            it and `remedy` says what would be right.
    """
    _only(content, allowed={"version", "signals", *_SECTIONS}, where="")
    version = content.get("version")
    if not isinstance(version, str) or not version:
        raise UsageError("the rule set has no version", field="version", remedy="give it a string")
    sections = {
        name: _build(cls, _mapping(content.get(name, {}), where=name), where=name)
        for name, cls in _SECTIONS.items()
    }
    entries = content.get("signals")
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise UsageError("the rule set has no signals", field="signals", remedy="add [[signals]]")
    signals = tuple(_signal(entry, at=at) for at, entry in enumerate(entries))
    rules = RuleSet(version, digest_of(content), signals, **sections)
    _check(rules)
    return rules


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 over the content with sorted keys: order and comments do not change it."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _signal(entry: Any, *, at: int) -> SignalRule:
    given = dict(_mapping(entry, where=f"signals[{at}]"))
    where = f"signals[{given.get('name', at)}]"
    for key in ("name", "metrics", "kind", "unit", "valid", "category", "shape"):
        if key not in given:
            raise UsageError(f"{where} has no {key}", field=f"{where}.{key}", remedy=f"add {key}")
    low_high = given["valid"]
    if not _is_numbers(low_high, count=2) or low_high[0] >= low_high[1]:
        raise UsageError(
            f"{where}.valid is {low_high!r}", field=f"{where}.valid", remedy="give [low, high]"
        )
    given["valid"] = (float(low_high[0]), float(low_high[1]))
    metrics = given["metrics"]
    if not isinstance(metrics, list | tuple) or not all(isinstance(m, str) for m in metrics):
        raise UsageError(
            f"{where}.metrics is {metrics!r}", field=f"{where}.metrics", remedy="give metric names"
        )
    given["metrics"] = tuple(metrics)
    _treatments(given.get("treatment_of", {}), where=f"{where}.treatment_of")
    rule: SignalRule = _build(SignalRule, given, where=where)
    _check_shape(rule, where=where)
    return rule


def _treatments(table: Any, *, where: str) -> None:
    for value, treatment in _mapping(table, where=where).items():
        _enum(Treatment, treatment, where=f"{where}.{value}")


def _build(cls: type[T], given: Mapping[str, Any], *, where: str) -> T:
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    _only(given, allowed=set(known), where=where)
    values = {key: _value(key, value, where=f"{where}.{key}") for key, value in given.items()}
    for key, value in values.items():
        default = known[key].default
        if isinstance(default, bool | int | float) and not _fits(default, value):
            wanted = type(default).__name__
            raise UsageError(
                f"{where}.{key} is {value!r}", field=f"{where}.{key}", remedy=f"give a {wanted}"
            )
    return cls(**values)


def _fits(default: float, value: Any) -> bool:
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    return isinstance(value, int if isinstance(default, int) else int | float)


def _value(key: str, value: Any, *, where: str) -> Any:
    return _enum(_ENUMS[key], value, where=where) if key in _ENUMS else value


def _enum(cls: type[E], value: Any, *, where: str) -> E:
    try:
        return cls(value)
    except ValueError:
        allowed = ", ".join(cls)
        raise UsageError(f"{where} is {value!r}", field=where, remedy=f"one of {allowed}") from None


def _mapping(value: Any, *, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is {value!r}", field=where, remedy="give a table")
    return value


def _only(given: Mapping[str, Any], *, allowed: set[str], where: str) -> None:
    for key in given:
        if key not in allowed:
            path = f"{where}.{key}" if where else key
            raise UsageError(
                f"unknown key {path}", field=path, remedy=f"one of {', '.join(sorted(allowed))}"
            )


def _is_numbers(value: Any, *, count: int) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == count
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
    )


def _check_shape(rule: SignalRule, *, where: str) -> None:
    if rule.shape in {Shape.RAMP, Shape.PEER} and rule.warn == rule.crit:
        raise UsageError(
            f"{where}: warn and crit are both {rule.warn}",
            field=f"{where}.crit",
            remedy="crit lies beyond warn, on the bad side",
        )
    if rule.shape is Shape.PEER and not 0 < rule.warn < rule.crit:
        raise UsageError(
            f"{where}: warn {rule.warn}, crit {rule.crit} are no z values in order",
            field=f"{where}.warn",
            remedy="0 < warn < crit, in robust standard deviations",
        )
    if rule.shape is Shape.PEER and rule.min_effect <= 0:
        raise UsageError(
            f"{where} has no min_effect",
            field=f"{where}.min_effect",
            remedy=f"the smallest deviation in {rule.unit} that may count",
        )
    if rule.shape is Shape.BITS and rule.mask <= 0:
        raise UsageError(
            f"{where} has no mask", field=f"{where}.mask", remedy="the bits that count"
        )
    if rule.weight < 0:
        raise UsageError(
            f"{where}.weight is {rule.weight}", field=f"{where}.weight", remedy="0 or more"
        )


def _check(rules: RuleSet) -> None:
    names = [rule.name for rule in rules.signals]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two signals are called {name}", field=name, remedy="rename one")
    rules.position(rules.load.signal)
    limits = rules.thresholds
    if not 0 <= limits.quarantined_below < limits.degraded_below <= limits.healthy_above <= 1:
        raise UsageError(
            "the thresholds are out of order",
            field="thresholds",
            remedy="0 <= quarantined_below < degraded_below <= healthy_above <= 1",
        )
    _check_weights(rules)
    for f in fields(rules.times):
        if getattr(rules.times, f.name) < 0:
            raise UsageError(
                f"times.{f.name} is negative", field=f"times.{f.name}", remedy="seconds, 0 or more"
            )


def _check_weights(rules: RuleSet) -> None:
    scored = [r for r in rules.signals if r.shape in {Shape.RAMP, Shape.PEER, Shape.BITS}]
    for category in {r.category for r in scored}:
        if sum(r.weight for r in scored if r.category is category) <= 0:
            raise UsageError(
                f"the weights of category {category} sum to zero",
                field=f"signals[category={category}].weight",
                remedy="give at least one signal of the category a weight above 0",
            )
