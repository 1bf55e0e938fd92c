"""Checks, suites and the proof a quarantine owes.

A proof always contains the check that would have caught the fault. Inconclusive counts for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sickbay.domain.evidence import EvidenceRef
from sickbay.domain.node import Category, Treatment
from sickbay.domain.reading import Finding, Verdict


class CheckName(StrEnum):
    """One active test of a node."""

    GPU_STATE = "gpu_state"
    NVLINK_STATE = "nvlink_state"
    DCGM_HEALTH = "dcgm_health"
    DCGM_DIAG = "dcgm_diag"
    NVBANDWIDTH = "nvbandwidth"
    NCCL_NODE = "nccl_node"
    NCCL_PAIR = "nccl_pair"


@dataclass(frozen=True)
class Check:
    """One test and, for DCGM, which of its tests to run (names of DCGM 4)."""

    name: CheckName
    tests: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How people and evidence name it, e.g. `dcgm_diag:memory+pcie`."""
        return f"{self.name}:{'+'.join(self.tests)}" if self.tests else str(self.name)


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
    """What a whole suite concluded, with each check's result."""

    suite: str
    verdict: Verdict
    checks: tuple[CheckResult, ...]

    def findings(self) -> tuple[Finding, ...]:
        """All findings of all checks, in order."""
        return tuple(f for check in self.checks for f in check.findings)


# DCGM tests per category: NVIDIA's own grouping of `dcgmi diag` tests (levels 1 to 3).
_DIAG_TESTS: dict[Category, tuple[str, ...]] = {
    Category.COMPUTE: ("software", "diagnostic"),
    Category.MEMORY: ("software", "memory"),
    Category.INTERCONNECT: ("software", "pcie"),
    Category.THERMAL: ("software", "targeted_power"),
    Category.PERFORMANCE: ("software", "diagnostic", "targeted_stress"),
}
_SHORT_DIAG = ("software", "memory", "pcie")
_LINKED = {Category.INTERCONNECT, Category.FABRIC}
_MEASURED: dict[Category, tuple[CheckName, ...]] = {
    Category.INTERCONNECT: (CheckName.NVBANDWIDTH, CheckName.NCCL_NODE),
    Category.FABRIC: (CheckName.NCCL_NODE, CheckName.NCCL_PAIR),
    Category.PERFORMANCE: (CheckName.NVBANDWIDTH,),
}
# DCGM's tests that load every GPU fully for minutes, and the copies over all links at once.
STRESS_TESTS = frozenset({"diagnostic", "targeted_stress", "targeted_power"})
STRESS_CHECKS = frozenset({CheckName.NVBANDWIDTH})
_LAST = (CheckName.NVBANDWIDTH, CheckName.NCCL_NODE, CheckName.NCCL_PAIR)
PAIR = Check(CheckName.NCCL_PAIR)
PAIR_EVIDENCE = "nccl_pair"


def suite_for(*categories: Category) -> Suite:
    """The suite that follows the failing categories, plus a short subset of the rest."""
    tests = [t for c in categories for t in _DIAG_TESTS.get(c, _SHORT_DIAG)] or [*_SHORT_DIAG]
    diag = Check(CheckName.DCGM_DIAG, tests=tuple(dict.fromkeys(tests)))
    checks = [Check(CheckName.GPU_STATE), Check(CheckName.DCGM_HEALTH), diag]
    if _LINKED & set(categories):
        checks.insert(1, Check(CheckName.NVLINK_STATE))
    measured = {name for c in categories for name in _MEASURED.get(c, ())}
    checks += [Check(name) for name in _LAST if name in measured]
    return Suite(name="standard:" + ("+".join(categories) or "short"), checks=tuple(checks))


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
