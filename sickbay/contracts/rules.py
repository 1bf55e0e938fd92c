"""Which rule sets count now, as the scorer and the command line see them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class RuleRole(StrEnum):
    """What a rule set is there for: it decides, or it is only watched."""

    ACTIVE = "active"
    SHADOW = "shadow"


@dataclass(frozen=True)
class RuleException:
    """A signal that does not count on one node, until a moment, in a person's name."""

    node: str
    signal: str
    at: datetime
    until_at: datetime
    by: str
    reason: str


@dataclass(frozen=True)
class RuleChange:
    """One change of the rules, as recorded. An empty digest ends the role."""

    role: RuleRole
    digest: str
    version: str
    at: datetime
    by: str
    approved_by: str
    reason: str
    replayed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PresentRules:
    """What counts now. `active` None: no rule set was ever activated, that of the settings counts.

    `excepted` maps a node to the signals that do not count on it.
    """

    active: Mapping[str, Any] | None = None
    shadow: Mapping[str, Any] | None = None
    excepted: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ShadowDifference:
    """A node that stands otherwise under the shadow rule set."""

    node: str
    digest: str
    active: str
    shadow: str
    reason: str
    at: datetime
