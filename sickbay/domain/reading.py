"""What one tool's output means: a verdict, findings per part, measurements.

A tool that errors, times out, skips or is not installed is *inconclusive*: neither pass nor fail.
"""

from dataclasses import dataclass
from enum import StrEnum

from sickbay.domain.node import Category, Severity, Treatment


class Verdict(StrEnum):
    """The three answers of a check; inconclusive counts for nothing."""

    PASS = "pass"  # noqa: S105 - a verdict, not a secret
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class FindingKind(StrEnum):
    """Whose fault a finding is; only hardware findings fail a node."""

    HARDWARE = "hardware"
    CONFIGURATION = "configuration"
    APPLICATION = "application"
    TOOL = "tool"


@dataclass(frozen=True)
class Finding:
    """One thing a tool or the scorer says about one part.

    `part` is a bus id `dddd:bb:dd`, else an index as a string, else a device name, else None for
    the node. `reason` is a code of docs/reference/reasons.md. `detail` is for people only.
    """

    part: str | None
    reason: str
    severity: Severity
    kind: FindingKind
    treatment: Treatment | None = None
    category: Category | None = None
    detail: str = ""


@dataclass(frozen=True)
class Measurement:
    """One number a check measured, with its unit."""

    name: str
    part: str | None
    value: float
    unit: str
    peer: str | None = None
    size_bytes: int | None = None
    placement: str | None = None


@dataclass(frozen=True)
class Reading:
    """What one output of one tool means. `digest` is the SHA-256 of the raw text."""

    tool: str
    verdict: Verdict
    why: str
    category: Category | None = None
    findings: tuple[Finding, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    digest: str = ""

    def hardware_findings(self) -> tuple[Finding, ...]:
        """The findings that say a part is broken, worst first."""
        found = (f for f in self.findings if f.kind is FindingKind.HARDWARE)
        return tuple(sorted(found, key=lambda f: -f.severity.rank))
