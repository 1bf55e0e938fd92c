"""What a node class is expected to have, as far as a reader of one output can hold it to it.

Nothing is guessed: what the class does not say stays None, and then it is not judged.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sickbay.errors import UsageError

_COUNTS = ("gpu_count", "nvlink_links_per_gpu", "ib_ports")
_FLOOR_NAME = re.compile(r"[a-z0-9_]+")
_KEYS = (*_COUNTS, "ib_rate_gbps", "floors")
_MOST = 100_000


@dataclass(frozen=True)
class Expectation:
    """The expectations of one node class; None and a missing floor are not judged.

    `ib_rate_gbps` is in Gbit/s. `floors` holds the least value per measurement, in that
    measurement's own unit, e.g. `nccl_busbw_gbps` in GB/s.
    """

    gpu_count: int | None = None
    nvlink_links_per_gpu: int | None = None
    ib_ports: int | None = None
    ib_rate_gbps: float | None = None
    floors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


NOTHING_EXPECTED = Expectation()
"""No class is given: nothing is held against an output but what it says itself."""


def parse_class(text: str, *, name: str) -> Expectation:
    """The expectations in a TOML text.

    Args:
        text: the TOML text of a class.
        name: what to call it in an error, e.g. its file name.

    Raises:
        UsageError: it is no TOML, or a key is unknown or has an impossible value.
    """
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"{name} is not TOML: {error}", field="expect", remedy="write key = value lines"
        ) from error
    unknown = sorted(found.keys() - set(_KEYS))
    if unknown:
        raise UsageError(
            f"{name}: unknown key {unknown[0]!r}",
            field=unknown[0],
            remedy=f"known keys: {', '.join(_KEYS)}",
        )
    return Expectation(
        gpu_count=_count(found, "gpu_count", name),
        nvlink_links_per_gpu=_count(found, "nvlink_links_per_gpu", name),
        ib_ports=_count(found, "ib_ports", name),
        ib_rate_gbps=_positive(found.get("ib_rate_gbps"), "ib_rate_gbps", name),
        floors=_floors(found.get("floors", {}), name),
    )


def from_mapping(found: Mapping[str, Any]) -> Expectation:
    """The expectations in a mapping with the keys of a class file; unknown keys are left out."""
    floors = found.get("floors") or {}
    return Expectation(
        **{key: found.get(key) for key in (*_COUNTS, "ib_rate_gbps")},
        floors=MappingProxyType(dict(floors)),
    )


def _count(found: Mapping[str, Any], key: str, name: str) -> int | None:
    value = found.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise UsageError(
            f"{name}: {key} is {value!r}", field=key, remedy=f"give a whole number, 0 to {_MOST}"
        )
    return value


def _positive(value: object, key: str, name: str) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(float(value)) or float(value) <= 0:  # type: ignore[arg-type]
        raise UsageError(f"{name}: {key} is {value!r}", field=key, remedy="give a positive number")
    return float(value)  # type: ignore[arg-type]


def _floors(value: object, name: str) -> Mapping[str, float]:
    if not isinstance(value, dict):
        raise UsageError(
            f"{name}: floors is {value!r}", field="floors", remedy="make it a table: [floors]"
        )
    floors: dict[str, float] = {}
    for key, floor in value.items():
        if not _FLOOR_NAME.fullmatch(key):
            raise UsageError(
                f"{name}: floor {key!r}", field=key, remedy="spell it like nccl_busbw_gbps"
            )
        floors[key] = _positive(floor, f"floors.{key}", name) or 0.0
    return MappingProxyType(floors)
