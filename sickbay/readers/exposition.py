"""Reads a metrics page in Prometheus' text form, as dcgm-exporter writes it, into numbers.

A blank sentinel, a NaN, an infinity or a word is an absence, never a number. Lines that cannot be
read are skipped: what they would have said is then missing. One reader is kept per pool, because it
remembers the heads of lines (name and labels), which hardly ever change.
"""

import math
import re
from dataclasses import dataclass, field

from sickbay.domain.signal import Absence, PartPage

_BLANK_FROM = float(2**62)
_INT32 = {
    2147483632.0: Absence.MISSING,
    2147483633.0: Absence.MISSING,
    2147483634.0: Absence.UNSUPPORTED,
    2147483635.0: Absence.UNREADABLE,
}
_FP64 = {
    140737488355328.0: Absence.MISSING,
    140737488355329.0: Absence.MISSING,
    140737488355330.0: Absence.UNSUPPORTED,
    140737488355331.0: Absence.UNREADABLE,
}
_INT64 = {
    "9223372036854775794": Absence.UNSUPPORTED,
    "9223372036854775795": Absence.UNREADABLE,
}
_WORDS = {
    "<<<NOT_SUPPORTED>>>": Absence.UNSUPPORTED,
    "[N/A]": Absence.UNSUPPORTED,
    "N/A": Absence.UNSUPPORTED,
    "<<<NOT_PERM>>>": Absence.UNREADABLE,
    "[Unknown Error]": Absence.UNREADABLE,
    "ERR!": Absence.UNREADABLE,
}
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_BUS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?$")
_HEADS_KEPT = 500_000


@dataclass(frozen=True, slots=True)
class _Head:
    metric: str
    uuid: str
    index: str
    bus_id: str


@dataclass
class PageReader:
    """Reads pages, keeping only the metrics that somebody wants."""

    wanted: frozenset[str]
    _heads: dict[str, _Head | None] = field(default_factory=dict)

    def read(self, text: str) -> tuple[PartPage, ...]:
        """The parts a page speaks of. Empty for a page that names no part at all."""
        parts: dict[str, tuple[_Head, dict[str, float], dict[str, Absence]]] = {}
        heads = self._heads
        if len(heads) > _HEADS_KEPT:
            heads.clear()
        for line in text.splitlines():
            if not line or line[0] == "#":
                continue
            end = line.rfind("}") + 1
            if not end:
                continue
            key = line[:end]
            head = heads[key] if key in heads else heads.setdefault(key, self._head(key))
            if head is None:
                continue
            part = parts.get(head.uuid) or parts.setdefault(head.uuid, (head, {}, {}))
            value = number(line[end:])
            if isinstance(value, Absence):
                part[2][head.metric] = value
            else:
                part[1][head.metric] = value
        return tuple(
            PartPage(head.uuid, head.index, head.bus_id, values, absent)
            for head, values, absent in parts.values()
        )

    def _head(self, key: str) -> _Head | None:
        name, brace, labels = key.partition("{")
        if not brace or name.strip() not in self.wanted:
            return None
        found = dict(_LABEL.findall(labels))
        # A slice of a MIG-split GPU is not the GPU.
        if found.get("GPU_I_ID"):
            return None
        uuid = found.get("UUID") or found.get("uuid")
        if not uuid:
            return None
        bus_id = _bus_id(found.get("pci_bus_id", ""))
        return _Head(name.strip(), uuid, found.get("gpu", ""), bus_id)


def number(text: str) -> float | Absence:
    """The number after a line's labels (a timestamp may follow it), or why there is none."""
    words = text.split()
    if not words:
        return Absence.MISSING
    word = words[0]
    try:
        value = float(word)
    except ValueError:
        return _WORDS.get(text.strip(), Absence.MISSING)
    if not math.isfinite(value):
        return Absence.MISSING
    if value >= _BLANK_FROM:
        return _INT64.get(word, Absence.MISSING)
    if value in _INT32:
        return _INT32[value]
    return _FP64.get(value, value)


def _bus_id(text: str) -> str:
    match = _BUS.match(text.strip())
    if match is None:
        return ""
    domain, bus, device = match.groups()
    # FFFFFFFF:FF:FF.0 is how a part without an address is written.
    if domain.upper() == "FFFFFFFF":
        return ""
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"
