"""Checks, suites and the proof a quarantine owes.

A proof always contains the check that would have caught the fault. Inconclusive counts for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sickbay.domain.check import Check, CheckName
from sickbay.domain.evidence import EvidenceRef
from sickbay.domain.node import Category, Treatment
from sickbay.domain.reading import Finding, FindingKind, Verdict
from sickbay.domain.suite_book import SHIPPED, Purpose

__all__ = [
    "PAIR",
    "PAIR_EVIDENCE",
    "Check",
    "CheckName",
    "CheckResult",
    "Suite",
    "SuiteResult",
    "covers",
    "limits_s",
    "owes_pair",
    "passes_owed",
    "suite_for",
    "suite_verdict",
    "without_pair",
]


@dataclass(frozen=True)
class Suite:
    """Checks run together on one node, in order."""

    name: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class CheckResult:
    """What one check concluded. `evidence` points at the raw output."""

    check: Check
    verdict: Verdict
    why: str
    findings: tuple[Finding, ...] = ()
    evidence: EvidenceRef | None = None
    duration_s: float = 0.0


@dataclass(frozen=True)
class SuiteResult:
    """What a whole suite concluded, with each check's result.

    `collected` is what was read about the failed categories before anything is treated.
    """

    suite: str
    verdict: Verdict
    checks: tuple[CheckResult, ...]
    collected: tuple[EvidenceRef, ...] = ()

    def findings(self) -> tuple[Finding, ...]:
        """All findings of all checks, in order."""
        return tuple(f for check in self.checks for f in check.findings)

    def failed_categories(self) -> tuple[Category, ...]:
        """The categories that the failing checks name, each once; of a failed suite only."""
        failed = [c for c in self.checks if c.verdict is Verdict.FAIL]
        named = [f.category for c in failed for f in c.findings if f.kind is FindingKind.HARDWARE]
        return tuple(dict.fromkeys(c for c in named if c is not None))


# DCGM's tests that load every GPU fully for minutes, and the copies over all links at once.
STRESS_TESTS = frozenset({"diagnostic", "targeted_stress", "targeted_power"})
STRESS_CHECKS = frozenset({CheckName.NVBANDWIDTH})
PAIR = Check(CheckName.NCCL_PAIR)
PAIR_EVIDENCE = "nccl_pair"
LEAST_LIMIT_S = 60.0


def suite_for(*categories: Category, purpose: Purpose = Purpose.PROVE) -> Suite:
    """The suite of a purpose that follows the failing categories, as the shipped book says."""
    checks = SHIPPED.checks_for(categories, purpose=purpose)
    return Suite(f"{SHIPPED.level_of(purpose)}:" + ("+".join(categories) or "short"), checks=checks)


def limits_s(suite: Suite, *, scale: float) -> tuple[float, ...]:
    """The outer deadline of each check of a suite in seconds.

    `scale` is seconds of wall clock per second of fleet time. A tool needs its time however fast
    fleet time runs, so no limit is below `LEAST_LIMIT_S`.
    """
    return tuple(max(SHIPPED.limit_s(check) * scale, LEAST_LIMIT_S) for check in suite.checks)


def without_pair(suite: Suite) -> Suite:
    """The suite's checks that the node runs by itself."""
    return Suite(suite.name, tuple(c for c in suite.checks if c != PAIR))


def owes_pair(categories: Sequence[Category], *, evidence: Sequence[str]) -> bool:
    """Whether the pair check cannot be left out when no neighbour is free.

    It owns the fault when the trigger is the fabric's (the first category), or when a run across
    two nodes is what found it.
    """
    trigger = categories[0] if categories else None
    return trigger is Category.FABRIC or PAIR_EVIDENCE in evidence


def is_stress(suite: Suite) -> bool:
    """Whether the suite drives a whole node's power up, so that its rack and power unit feel it."""
    return any(c.name in STRESS_CHECKS or STRESS_TESTS & set(c.tests) for c in suite.checks)


def covers(suite: Suite, *categories: Category) -> bool:
    """Whether the suite contains the checks that would have caught a fault of `categories`."""
    return _atoms(suite_for(*categories)) <= _atoms(suite)


def _atoms(suite: Suite) -> set[tuple[CheckName, str]]:
    return {(check.name, test) for check in suite.checks for test in (*check.tests, "")}


def suite_verdict(results: Sequence[CheckResult]) -> Verdict:
    """Fail when any check failed; pass only when every check ran and passed."""
    verdicts = {r.verdict for r in results}
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE


def passes_owed(*, treatment: Treatment | None, confirmed: bool | None, policy_passes: int) -> int:
    """Passes in a row that end a quarantine: never zero, two after a swap whatever the policy."""
    if treatment is None and confirmed is False:
        return 1
    if confirmed is None:
        return 2
    return 2 if treatment is Treatment.SWAP else max(1, min(2, policy_passes))
