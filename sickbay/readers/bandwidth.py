"""Comparing a measured bandwidth with the floor of its class; without a floor nothing is judged."""

import math
import re

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind


def finite(token: object) -> float | None:
    """A finite number of at least zero, None for everything else (`nan`, `N/A`, a word)."""
    if isinstance(token, bool) or not isinstance(token, int | float | str):
        return None
    if isinstance(token, str) and not re.fullmatch(
        r"\s*\d{1,18}(\.\d*)?(e[+-]?\d{1,3})?\s*", token
    ):
        return None
    try:
        value = float(token)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def below_floor(part: str | None, *, what: str, value: float, floor: float, unit: str) -> Finding:
    """A bandwidth under what the class promises."""
    return Finding(
        part,
        "bandwidth_below_floor",
        Severity.MAJOR,
        FindingKind.HARDWARE,
        category=Category.PERFORMANCE,
        detail=f"{what}: {value:g} {unit}, the floor is {floor:g} {unit}",
    )
