"""Node sets in hostlist form: `n[001-004,007],login1`."""

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"^(.*?)(\d+)$")
_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")
LARGEST = 100_000


def expand(text: str) -> tuple[str, ...]:
    """The names a hostlist stands for, in order, each once.

    Raises:
        ValueError: brackets or a range do not make sense; the message says which.
    """
    names: dict[str, None] = {}
    for item in _split(text):
        for name in _expand_one(item):
            names[name] = None
            if len(names) > LARGEST:
                raise ValueError(f"more than {LARGEST} names in one node set")
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """A short hostlist for people: runs of equally wide numbers become ranges."""
    runs: list[tuple[str, int, int, int]] = []
    plain: list[str] = []
    for name in sorted(set(names)):
        found = _NUMBERED.match(name)
        if not found:
            plain.append(name)
            continue
        prefix, digits = found[1], found[2]
        number, width = int(digits), len(digits)
        last = runs[-1] if runs else None
        if last and last[0] == prefix and last[1] == width and last[3] + 1 == number:
            runs[-1] = (prefix, width, last[2], number)
        else:
            runs.append((prefix, width, number, number))
    return ",".join([*_folded(runs), *plain])


def _folded(runs: list[tuple[str, int, int, int]]) -> list[str]:
    groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for prefix, width, first, last in runs:
        groups.setdefault((prefix, width), []).append((first, last))
    folded = []
    for (prefix, width), spans in groups.items():
        texts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in spans]
        single = len(spans) == 1 and spans[0][0] == spans[0][1]
        folded.append(f"{prefix}{texts[0]}" if single else f"{prefix}[{','.join(texts)}]")
    return folded


def _split(text: str) -> list[str]:
    items, depth, current = [], 0, ""
    for char in text.strip():
        depth += {"[": 1, "]": -1}.get(char, 0)
        if depth not in {0, 1}:
            raise ValueError(f"{text!r}: brackets do not match")
        if char == "," and depth == 0:
            items.append(current)
            current = ""
        else:
            current += char
    if depth:
        raise ValueError(f"{text!r}: brackets do not match")
    return [item.strip() for item in (*items, current) if item.strip()]


def _expand_one(item: str) -> Iterable[str]:
    start = item.find("[")
    if start < 0:
        yield item
        return
    end = item.index("]")
    prefix, suffix = item[:start], item[end + 1 :]
    for part in item[start + 1 : end].split(","):
        found = _RANGE.match(part.strip())
        if not found:
            raise ValueError(f"{item!r}: {part!r} is no number or range")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first > LARGEST:
            raise ValueError(f"{item!r}: {part!r} runs backwards or is too long")
        for number in range(first, last + 1):
            yield from _expand_one(f"{prefix}{number:0{len(found[1])}d}{suffix}")
