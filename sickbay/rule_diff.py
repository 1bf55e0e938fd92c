"""What differs between two rule sets, key by key; signals are compared by name, not by place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ABSENT = "(absent)"


@dataclass(frozen=True)
class RuleDifference:
    """One key and its two values; a side that has no such key says so."""

    key: str
    before: str
    after: str


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[RuleDifference]:
    """All keys that differ, in the order of their names."""
    before, after = _flat(old), _flat(new)
    return [
        RuleDifference(key, before.get(key, ABSENT), after.get(key, ABSENT))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, Mapping):
        out: dict[str, str] = {}
        for key, inner in value.items():
            out.update(_flat(inner, f"{prefix}.{key}" if prefix else str(key)))
        return out
    if isinstance(value, list | tuple) and value and all(_is_named(v) for v in value):
        named = {f"{prefix}[{v['name']}]": v for v in value}
        return {k: t for at, v in named.items() for k, t in _flat(v, at).items()}
    return {prefix: repr(list(value) if isinstance(value, tuple) else value)}


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and "name" in value
