"""The two spellings of `nvidia-smi -q`, XML and indented text, as one flat table per GPU.

A field is found by its path, e.g. `remapped_rows/pending`; names are lower case with underscores.
A fragment of the text without a `GPU` line is one GPU that nobody named.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sickbay.readers.parts import bus_id

_ROOT = "nvidia_smi_log"
_GPU_LINE = re.compile(r"^GPU ([0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s*$", re.IGNORECASE)
_FIELD = re.compile(r"^(\s*)(\S[^:]*?)\s*(?::\s?(.*))?$")
_NOT_A_VALUE = {"", "n/a", "[n/a]", "not supported", "[not supported]", "[unknown]",
                "requested functionality has been deprecated"}  # fmt: skip
_UNREADABLE = {"unknown error", "[unknown error]", "err!", "[err!]"}


@dataclass
class GpuFields:
    """What one GPU's section says. `bus_id` is None when the text does not name it.

    `index` is the driver's number where one is printed. `lead` is what the layout names a GPU by,
    where that is not its bus id.
    """

    bus_id: str | None
    fields: dict[str, str] = field(default_factory=dict)
    index: str | None = None
    lead: str | None = None

    @property
    def part(self) -> str | None:
        """What a finding calls this GPU."""
        return self.bus_id or self.index

    def first(self, *paths: str) -> str | None:
        """The value of the first path that is there, None when none is."""
        return next((self.fields[p] for p in paths if p in self.fields), None)

    def number(self, *paths: str) -> float | None:
        """The leading number of a value, None for an absence of any kind."""
        return number(self.first(*paths))

    def under(self, *prefixes: str) -> dict[str, str]:
        """The fields whose path begins with one of the prefixes."""
        return {p: v for p, v in self.fields.items() if p.startswith(prefixes)}


@dataclass(frozen=True)
class StateLog:
    """A whole answer: its GPUs, how many it says are attached, and whether it was cut off.

    `doubts` are reasons with a sentence each why the answer is not to be taken as a whole.
    """

    gpus: tuple[GpuFields, ...]
    attached: int | None = None
    truncated: bool = False
    doubts: tuple[tuple[str, str], ...] = ()


def number(value: str | None) -> float | None:
    """The leading number of a printed value (`17 C`, `16x`), None when it is none."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)", value or "")
    return float(found[1]) if found else None


def is_absent(value: str) -> bool:
    """Whether a value says that there is none on this model."""
    return value.strip().lower() in _NOT_A_VALUE


def is_unreadable(value: str) -> bool:
    """Whether a value says that it should be there and could not be read."""
    return value.strip().lower() in _UNREADABLE


def parse(text: str) -> StateLog | None:
    """The log in a text, None when there is nothing of the kind."""
    if f"<{_ROOT}" in text:
        return _from_xml(text)
    return _from_text(text)


def _from_xml(text: str) -> StateLog:
    end = f"</{_ROOT}>"
    start, stop = text.find(f"<{_ROOT}"), text.rfind(end)
    if stop < 0:
        return StateLog((), truncated=True)
    try:
        root = ET.fromstring(text[start : stop + len(end)])  # noqa: S314 - the node's own driver
    except ET.ParseError:
        return StateLog((), truncated=True)
    gpus = tuple(_gpu_of(element) for element in root.findall("gpu"))
    attached = number(root.findtext("attached_gpus"))
    return StateLog(gpus, None if attached is None else int(attached))


def _gpu_of(element: ET.Element) -> GpuFields:
    fields: dict[str, str] = {}
    for path, value in _leaves(element, ""):
        fields.setdefault(path, value)
    return GpuFields(bus_id(element.get("id") or fields.get("pci/pci_bus_id", "")), fields)


def _leaves(element: ET.Element, prefix: str) -> Iterator[tuple[str, str]]:
    for child in element:
        path = f"{prefix}{child.tag}"
        if len(child):
            yield from _leaves(child, f"{path}/")
        else:
            yield path, (child.text or "").strip()


def _from_text(text: str) -> StateLog | None:
    gpus: list[GpuFields] = []
    loose: dict[str, str] = {}
    fields: dict[str, str] = loose
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        head = _GPU_LINE.match(line)
        if head:
            gpus.append(GpuFields(bus_id(head[1])))
            fields, stack = gpus[-1].fields, []
            continue
        match = _FIELD.match(line)
        if match is None:
            continue
        depth, name = len(match[1].expandtabs(4)), _name(match[2])
        while stack and stack[-1][0] >= depth:
            stack.pop()
        path = "/".join([*(n for _, n in stack), name])
        if match[3] is None:
            stack.append((depth, name))
        else:
            fields.setdefault(path, match[3].strip())
    attached = number(loose.get("attached_gpus"))
    if not gpus and _tells_state(loose):
        gpus = [GpuFields(None, loose)]
    return StateLog(tuple(gpus), None if attached is None else int(attached)) if gpus else None


def _name(printed: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", printed.strip().lower()).strip("_")


def _tells_state(fields: Mapping[str, str]) -> bool:
    """Whether a fragment holds any block that `-q` prints about a GPU's state."""
    blocks = ("ecc_errors/", "remapped_rows/", "retired_pages/", "fabric/", "gpu_reset_status/")
    return any(p.startswith(blocks) or p == "gpu_recovery_action" for p in fields)
