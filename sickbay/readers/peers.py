"""Holding each part of a node to the others of the same node, by what one tool measured.

This needs no floor of the class: eight equal GPUs measure alike, whatever a data sheet says. What
is slow on all of them alike is not seen here.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from sickbay.domain.baseline import Baseline
from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Reading, Verdict

PEERS = Baseline(floor=0.0, fraction_of_median=0.8, minimum_cohort=3)
"""A fifth below the median of three others or more (our choice): the distance to a socket's memory
alone explains a tenth."""
_GBPS = "GB/s"


def held_to_peers(reading: Reading, *, limit: Baseline = PEERS) -> Reading:
    """The reading, failing for parts far below the others; only one that passed is held to it."""
    found = tuple(_slow_parts(reading, limit)) if reading.verdict is Verdict.PASS else ()
    if not found:
        return reading
    return replace(
        reading,
        verdict=Verdict.FAIL,
        category=found[0].category,
        why=f"{found[0].reason} on {found[0].part}: {found[0].detail}",
        findings=(*reading.findings, *found),
    )


def _slow_parts(reading: Reading, limit: Baseline) -> Iterator[Finding]:
    tests: dict[str, dict[str, list[float]]] = {}
    for m in reading.measurements:
        if m.unit == _GBPS and m.part is not None:
            tests.setdefault(m.name, {}).setdefault(m.part, []).append(m.value)
    told: set[str] = set()
    for test, parts in tests.items():
        usual = {part: median(values) for part, values in parts.items()}
        for part, value in usual.items():
            others = [v for other, v in usual.items() if other != part]
            if part in told or limit.holds(value, cohort=others):
                continue
            told.add(part)
            yield Finding(
                part,
                "bandwidth_below_peers",
                Severity.MAJOR,
                FindingKind.HARDWARE,
                category=Category.PERFORMANCE,
                detail=f"{test}: {value:g} GB/s, the others' median is {median(others):g} GB/s",
            )
