"""Network links that come and go in a log: a flapping link, and one that stayed down.

A link that goes down once and comes back is everyday life (a switch was restarted); two times
within an hour is flapping, as Azure's node health checks count it.
"""

import re
from collections import deque
from dataclasses import dataclass, field

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers.kernel_lines import KERNEL, LogLine
from sickbay.readers.parts import bus_id

WINDOW_S = 3600.0
FLAPS = 2
"""Times a link may go down within the window before it flaps."""

_NETWORKD = "systemd-networkd"
_MANAGER = "NetworkManager"
# Interfaces of containers and bridges come and go with what they belong to.
_VIRTUAL = re.compile(r"(?:veth|cali|cilium|lxc|cni|docker|br-|virbr|flannel|tap|tun|vxlan|lo$)")
_CARD = re.compile(
    r"(?:mlx5_core|mlx5_ib|bnxt_en|ice|i40e|igb|ixgbe) (?P<bus>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}"
    r"\.[0-7]):? (?P<name>[\w@.-]+): (?:NIC )?Link (?:is )?(?P<state>down|up)\b",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?:\S+: )?(?P<name>[a-z][\w@.-]{1,20}): (?:NIC )?Link (?:is )?(?P<state>down|up)\b",
    re.IGNORECASE,
)
_CARRIER = re.compile(r"(?P<name>[\w@.-]+): (?P<state>lost|gained) carrier\b", re.IGNORECASE)
_LINK_STATE = re.compile(
    r"<\w+> .*device \((?P<name>[\w@.-]+)\): carrier: link (?P<state>dis)?conn"
)
_DOWN = {"down", "lost", "dis"}
_MOST_LINKS = 4_096


@dataclass
class _Link:
    downs: int = 0
    is_down: bool = False
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=FLAPS))
    flaps: bool = False
    line: str = ""


@dataclass
class LinkLog:
    """Ups and downs per link; fed line by line."""

    _links: dict[str, _Link] = field(default_factory=dict)

    def feed(self, line: LogLine) -> None:
        """Take one line."""
        match = _event(line)
        if match is None or _VIRTUAL.match(match["name"]):
            return
        part = bus_id(match.groupdict().get("bus") or "") or match["name"]
        if part not in self._links and len(self._links) >= _MOST_LINKS:
            return
        link = self._links.setdefault(part, _Link())
        link.is_down = (match["state"] or "").lower() in _DOWN
        if not link.is_down:
            return
        link.downs += 1
        link.line = line.message[:300]
        if line.at_s is None:
            link.flaps = link.flaps or link.downs >= FLAPS
            return
        link.recent.append(line.at_s)
        full = len(link.recent) == FLAPS
        link.flaps = link.flaps or (full and line.at_s - link.recent[0] <= WINDOW_S)

    def findings(self) -> list[Finding]:
        """The links that flap or stayed down."""
        return [
            Finding(
                part,
                "link_flap" if link.flaps else "link_down",
                Severity.MAJOR,
                FindingKind.HARDWARE,
                None,
                Category.FABRIC,
                f"went down {link.downs} times: {link.line}",
            )
            for part, link in self._links.items()
            if link.flaps or link.is_down
        ]


def _event(line: LogLine) -> re.Match[str] | None:
    if line.program == _NETWORKD:
        return _CARRIER.match(line.message)
    if line.program == _MANAGER:
        return _LINK_STATE.match(line.message)
    if line.program != KERNEL:
        return None
    return _CARD.match(line.message) or _NAMED.match(line.message)
