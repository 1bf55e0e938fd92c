"""`ibstat`, `ibstatus`, `ibv_devinfo` and `rdma link`: the ports of a node.

A device that is not listed is no port that is down: only a class that expects it can miss it.
"""

import re
from collections.abc import Sequence

from sickbay.domain.reading import Finding, Reading
from sickbay.readers import ib_ports
from sickbay.readers.conclusion import conclude, contradiction, first_line, tool_finding
from sickbay.readers.ib_ports import Port

TOOL = "ibstat"
_DEVICE = re.compile(
    r"^\s*(?:CA '([\w.\-]+)'|hca_id:\s*([\w.\-]+)"
    r"|Infiniband device '([\w.\-]+)' port (\d{1,3}) status:)"
)
_PORT = re.compile(r"^\s*[Pp]ort:?\s+(\d{1,3}):?\s*$")
_LINK = re.compile(
    r"^(?:\d+/\d+: )?link ([\w.\-]+)/(\d{1,3}) .*?\bstate (\w+)(?: .*?physical_state (\w+))?"
)
_LID = re.compile(r"\blid (\d{1,6})\b")
_PORTS = re.compile(r"^\s*Number of ports:\s*(\d{1,3})\s*$")
_FIELD = re.compile(r"^\s+([A-Za-z][\w ]{1,30}?)\s*:\s*(\S.*?)\s*$")
_GONE = re.compile(r"ibpanic: .*?(?:'([\w.\-]+)'|$)|Failed to get IB devices list", re.MULTILINE)
_SIGN = (
    r"^(?:CA '|hca_id:|Infiniband device '|ibpanic: |(?:\d+/\d+: )?link \S+/\d+ .*\bstate [A-Z]+)"
)
_KEYS = {
    "state": "state",
    "physical state": "physical",
    "phys state": "physical",
    "phys_state": "physical",
    "rate": "rate",
    "link layer": "layer",
    "link_layer": "layer",
    "base lid": "lid",
    "port_lid": "lid",
}


def recognises(text: str) -> bool:
    """Whether a text looks like a listing of adapters."""
    return bool(re.search(_SIGN, text, re.MULTILINE))


def read(
    text: str, *, exit_code: int | None, ports: int | None = None, rate_gbps: float | None = None
) -> Reading:
    """What one listing of the adapters means.

    Args:
        text: what was printed.
        exit_code: the exit status, None when it is not known.
        ports: ports the class needs up, None when nobody says.
        rate_gbps: the rate the class has in Gbit/s, None when nobody says.
    """
    shown, missing = _ports(text)
    findings = ib_ports.findings(shown, expected=ports, rate_gbps=rate_gbps)
    findings += [tool_finding("incomplete", "its ports are not shown", name) for name in missing]
    findings += _cut(shown)
    gone = _GONE.search(text)
    if gone:
        findings.append(tool_finding("device_not_found", gone[0], gone[1]))
    if not shown and not findings:
        findings.append(tool_finding("did_not_run", first_line(text)))
    findings += contradiction(exit_code, findings)
    return conclude(
        TOOL,
        text,
        findings,
        passed=ib_ports.passed(shown, findings),
        measurements=list(ib_ports.measurements(shown)),
    )


def _cut(ports: Sequence[Port]) -> list[Finding]:
    """The last port, when it lacks lines that all ports before it have."""
    if len(ports) < 2:  # noqa: PLR2004 - one port has no others to compare with
        return []
    last, others = ports[-1], ports[:-1]
    lacks = [
        name
        for name in ("rate_gbps", "layer")
        if getattr(last, name) is None and all(getattr(p, name) is not None for p in others)
    ]
    return [tool_finding("incomplete", f"no {lacks[0]} is shown", last.name)] if lacks else []


def _ports(text: str) -> tuple[list[Port], list[str]]:
    """The ports, and the devices that announce more of them than are shown."""
    found: list[Port] = []
    announced: dict[str, int] = {}
    device = ""
    for line in text.splitlines():
        link = _LINK.match(line)
        if link:
            found.append(_of_link(link, line))
            continue
        head, port, count, said = (p.match(line) for p in (_DEVICE, _PORT, _PORTS, _FIELD))
        if head:
            device = head[1] or head[2] or head[3]
            announced.setdefault(device, 1)
            if head[4]:
                found.append(Port(device, head[4]))
        elif port and device:
            found.append(Port(device, port[1]))
        elif count and device:
            announced[device] = int(count[1])
        elif said and found and found[-1].device == device:
            _take(found[-1], _KEYS.get(said[1].lower(), ""), said[2])
    shown = [p.device for p in found]
    return found, [name for name, count in announced.items() if shown.count(name) < count]


def _of_link(link: re.Match[str], line: str) -> Port:
    """A port of `rdma link`; the one without a lid is Ethernet."""
    lid = _LID.search(line)
    return Port(
        link[1],
        link[2],
        state=ib_ports.word(link[3]),
        physical=ib_ports.word(link[4]) if link[4] else None,
        layer="InfiniBand" if lid else "Ethernet",
        lid=int(lid[1]) if lid else None,
    )


def _take(port: Port, key: str, value: str) -> None:
    if key == "state":
        port.state = ib_ports.word(value)
    elif key == "physical":
        port.physical = ib_ports.word(value)
    elif key == "rate":
        port.rate_gbps = ib_ports.rate(value)
    elif key == "layer":
        port.layer = value
    elif key == "lid":
        number = re.match(r"(0x[0-9a-fA-F]{1,8}|\d{1,8})", value)
        port.lid = int(number[1], 0) if number and not re.match(r"0\d", number[1]) else None
