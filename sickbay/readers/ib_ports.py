"""What the state of an InfiniBand or RoCE port means, whichever tool shows it.

A port that trains for a partner in vain is hardware; one that is switched off, or up without a
subnet manager, is configuration. The rate of a port without a link is a default, never a speed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement
from sickbay.readers.bandwidth import finite
from sickbay.readers.conclusion import tool_finding

_UP = {"active"}
_WITHOUT_MANAGER = {"init", "initialize", "initializing", "armed", "actdefer"}
_LINKED = {"linkup", "link_up"}
_SWITCHED_OFF = {"disabled", "sleep"}
_SEARCHING = {"polling", "linkerrorrecovery", "link_error_recovery"}
_TRAINING = {"portconfigurationtraining", "training"}
_STATES = _UP | _WITHOUT_MANAGER | {"down"}
_PHYSICAL = _LINKED | _SWITCHED_OFF | _SEARCHING | _TRAINING
_LID_UNSET = 65535
# Rates of names below a link's own are its lanes or its speed lost; a tenth is rounding.
_RATE_SLACK = 0.9


@dataclass
class Port:
    """One port as shown; None is what the output does not say."""

    device: str
    number: str = "1"
    state: str | None = None
    physical: str | None = None
    rate_gbps: float | None = None
    layer: str | None = None
    lid: int | None = None
    netdev_down: bool = False

    @property
    def name(self) -> str:
        """The device, with the port's number unless it is the first."""
        return self.device if self.number == "1" else f"{self.device}/{self.number}"

    @property
    def is_up(self) -> bool:
        """Whether it carries traffic."""
        return self.state in _UP and self.physical in {None, *_LINKED}

    @property
    def is_known(self) -> bool:
        """Whether the output says enough to judge it."""
        if self.state in _UP:
            return self.physical is None or self.physical in _PHYSICAL
        return self.state in _STATES and self.physical in _PHYSICAL


def word(printed: str) -> str:
    """`4: ACTIVE`, `PORT_ACTIVE (4)` or `Active` as `active`."""
    found = re.sub(r"^\s*\d+\s*:\s*|\(\d+\)|^\s*PORT_", "", printed).strip()
    return found.lower().replace(" ", "").replace("-", "")


def rate(printed: str) -> float | None:
    """`200 Gb/sec (4X HDR)` or `200` as Gbit/s."""
    found = re.match(r"\s*(\d{1,6}(?:\.\d+)?)", printed)
    return finite(found[1]) if found else None


def findings(
    ports: Sequence[Port], *, expected: int | None, rate_gbps: float | None
) -> list[Finding]:
    """What the ports of one node say.

    Args:
        ports: the ports as shown.
        expected: ports the class needs up; the others may be down. None when nobody says.
        rate_gbps: the rate the class has, Gbit/s, None when nobody says.
    """
    found = [f for port in ports for f in _of_port(port, rate_gbps)]
    if expected is None:
        return found
    fit = [p for p in ports if p.is_up and not _is_slow(p, rate_gbps)]
    if len(fit) >= expected:
        return [_excused(f) for f in found]
    if ports and len(ports) < expected:
        detail = f"{len(ports)} ports are shown, {expected} are expected"
        found.append(_hardware(None, "port_missing", detail))
    elif not any(f.kind is FindingKind.HARDWARE for f in found):
        found.append(tool_finding("ports_not_up", f"{len(fit)} of {expected} ports are up"))
    return found


def measurements(ports: Sequence[Port]) -> Iterator[Measurement]:
    """The rates of the ports that have a link."""
    for port in ports:
        linked = port.physical in _LINKED or (port.physical is None and port.is_up)
        if port.rate_gbps is not None and linked:
            yield Measurement("rate_gbps", port.name, port.rate_gbps, "Gb/s")


def passed(ports: Sequence[Port], found: Sequence[Finding]) -> str | None:
    """What is good, in words; None while no port is up or one waits for its subnet manager."""
    up = [p for p in ports if p.is_up]
    if not up or any(f.reason == "no_subnet_manager" for f in found):
        return None
    return f"{len(up)} ports are up"


def _of_port(port: Port, rate_gbps: float | None) -> Iterator[Finding]:
    shown = f"state {port.state}, physical state {port.physical}, link layer {port.layer}"
    ethernet = (port.layer or "").lower() == "ethernet"
    if port.physical in _SEARCHING and port.state not in _UP:
        yield _hardware(port.name, "link_down", shown)
    elif not port.is_known:
        yield tool_finding("incomplete", f"not all of the port is shown: {shown}", port.name)
    elif port.state in _UP:
        if _is_slow(port, rate_gbps):
            detail = f"{port.rate_gbps:g} Gb/s, {rate_gbps:g} Gb/s are expected"
            yield _hardware(port.name, "link_rate_low", detail)
        if port.physical not in {None, *_LINKED}:
            yield tool_finding("states_contradict", shown, port.name)
    elif port.physical in _SWITCHED_OFF:
        yield _configuration(port.name, "port_disabled", shown)
    elif port.physical in _TRAINING:
        yield tool_finding("link_training", shown, port.name)
    elif ethernet:
        yield _configuration(port.name, "netdev_down", shown)
        yield tool_finding("port_not_active", shown, port.name)
    else:
        detail = shown + (", no lid was given" if port.lid in {0, _LID_UNSET} else "")
        yield _configuration(port.name, "no_subnet_manager", detail)
    if port.netdev_down and not ethernet:
        yield _configuration(port.name, "netdev_down", "the network device on it is down")


def _is_slow(port: Port, rate_gbps: float | None) -> bool:
    if rate_gbps is None or port.rate_gbps is None or not port.is_up:
        return False
    return port.rate_gbps < rate_gbps * _RATE_SLACK


def _excused(finding: Finding) -> Finding:
    """A port beyond those the class needs: told, and nobody's fault."""
    if finding.reason == "incomplete":
        return finding
    return replace(finding, kind=FindingKind.CONFIGURATION, severity=Severity.INFO)


def _hardware(part: str | None, reason: str, detail: str) -> Finding:
    return Finding(
        part,
        reason,
        Severity.MAJOR,
        FindingKind.HARDWARE,
        category=Category.FABRIC,
        detail=detail,
    )


def _configuration(part: str | None, reason: str, detail: str) -> Finding:
    return Finding(
        part,
        reason,
        Severity.WARNING,
        FindingKind.CONFIGURATION,
        category=Category.FABRIC,
        detail=detail,
    )
