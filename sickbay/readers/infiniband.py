"""InfiniBand as the kernel's files, `ethtool -S` or `perfquery` show it.

Files come as `path: value` lines (`grep -r .`) or as `==> path <==` blocks (`tail -n +1`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers import ib_counters, ib_ports
from sickbay.readers.conclusion import conclude, contradiction, tool_finding
from sickbay.readers.ib_ports import Port

TOOL = "infiniband"
_FILE = re.compile(r"^(/?(?:[^/\s]+/){1,24}[\w.\-]{1,80}?)\s?[:=]\s*(.*)$")
_BLOCK = re.compile(r"^==> (\S+) <==$")
_PORT = re.compile(r"(?:^|/)([\w.\-]+)/ports/(\d{1,3})/(?:(?:hw_)?counters/)?([\w.\-]+)$")
_NET = re.compile(r"(?:^|/)net/([\w.\-]+)/(?:statistics/)?(\w+)$")
_PCI = re.compile(r"^(.*/[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/")
_ETHTOOL = re.compile(r"^\s*(\w{3,60}):\s+(\d{1,20})\s*$")
_PERFQUERY = re.compile(r"^(\w{3,40}):\.+(\d{1,20})\s*$")
_STATES = {"state", "phys_state", "rate", "link_layer", "lid"}
_ETHTOOL_SIGN = re.compile(r"^NIC statistics:|^\s*\w+_phy:\s+\d+\s*$", re.MULTILINE)
_PERFQUERY_SIGN = re.compile(r"^# Port counters:|^(?:SymbolErrorCounter|PortRcvData):\.+\d",
                             re.MULTILINE)  # fmt: skip
_TREE_SIGN = re.compile(r"^\S*/ports/\d+/(?:state|rate|(?:hw_)?counters/)", re.MULTILINE)


@dataclass
class _Tree:
    ports: dict[tuple[str, str], Port] = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    nets: dict[str, dict[str, str]] = field(default_factory=dict)
    net_of_pci: dict[str, list[str]] = field(default_factory=dict)
    pci_of: dict[str, str] = field(default_factory=dict)


def recognises(text: str) -> bool:
    """Whether a text looks like the kernel's files of a port, or a page of its counters."""
    return any(p.search(text) for p in (_TREE_SIGN, _ETHTOOL_SIGN, _PERFQUERY_SIGN))


def read(
    text: str, *, exit_code: int | None, ports: int | None = None, rate_gbps: float | None = None
) -> Reading:
    """What one look at the ports of a node means.

    Args:
        text: files as lines or blocks, or a page of counters.
        exit_code: the exit status, None when it is not known.
        ports: ports the class needs up, None when nobody says.
        rate_gbps: the rate the class has in Gbit/s, None when nobody says.
    """
    tree = _tree(text)
    if tree.ports or tree.nets:
        findings, good = _of_tree(tree, ports, rate_gbps)
    else:
        tree.counters = _pages(text)
        findings, good = _of_counters(tree)
    findings += contradiction(exit_code, findings)
    remarks = [f for n, c in tree.counters.items() for f in ib_counters.saturated(n or None, c)]
    return conclude(
        TOOL,
        text,
        findings,
        passed=good,
        remarks=remarks,
        measurements=[*ib_ports.measurements(list(tree.ports.values())), *_numbers(tree)],
    )


def _of_tree(
    tree: _Tree, expected: int | None, rate_gbps: float | None
) -> tuple[list[Finding], str | None]:
    ports = list(tree.ports.values())
    findings = ib_ports.findings(ports, expected=expected, rate_gbps=rate_gbps)
    down = [name for name, said in tree.nets.items() if said.get("operstate") == "down"]
    for name in down:
        devices = [p.device for p in ports if name in _nets_beside(tree, p.device)]
        where = f" beside {devices[0]}" if devices else ""
        findings.append(
            Finding(
                name,
                "netdev_down",
                Severity.WARNING,
                FindingKind.CONFIGURATION,
                category=Category.FABRIC,
                detail=f"the network device{where} is down",
            )
        )
    if not ports:
        findings.append(tool_finding("incomplete", "no port is in the output"))
    return findings, ib_ports.passed(ports, findings)


def _of_counters(tree: _Tree) -> tuple[list[Finding], str | None]:
    findings: list[Finding] = []
    for name, counters in tree.counters.items():
        lane = ib_counters.bad_lane(name or None, counters)
        counted = ib_counters.counted(name or None, counters)
        findings += [f for f in (lane, counted) if f]
    if not any(ib_counters.are_errors(c) for c in tree.counters.values()):
        findings.append(tool_finding("did_not_run", "no counter of errors is in the output"))
    return findings, "no error is counted"


def _tree(text: str) -> _Tree:
    tree = _Tree()
    for path, value in _files(text):
        port, net = _PORT.search(path), _NET.search(path)
        pci = _PCI.match(path)
        if port:
            _take_port(tree, port, value)
            if pci:
                tree.pci_of[port[1]] = pci[1]
        elif net:
            tree.nets.setdefault(net[1], {})[net[2]] = value
            if pci and net[1] not in tree.net_of_pci.setdefault(pci[1], []):
                tree.net_of_pci[pci[1]].append(net[1])
    return tree


def _files(text: str) -> Iterator[tuple[str, str]]:
    block = None
    for line in text.splitlines():
        head = _BLOCK.match(line)
        if head:
            block = head[1]
        elif block and line.strip():
            yield block, line.strip()
            block = None
        elif match := _FILE.match(line):
            yield match[1], match[2].strip()


def _take_port(tree: _Tree, match: re.Match[str], value: str) -> None:
    port = tree.ports.setdefault((match[1], match[2]), Port(match[1], match[2]))
    name = match[3]
    if name == "state":
        port.state = ib_ports.word(value)
    elif name == "phys_state":
        port.physical = ib_ports.word(value)
    elif name == "rate":
        port.rate_gbps = ib_ports.rate(value)
    elif name == "link_layer":
        port.layer = value
    elif name not in _STATES and re.fullmatch(r"\d{1,20}", value):
        tree.counters.setdefault(port.name, {})[name] = int(value)


def _nets_beside(tree: _Tree, device: str) -> list[str]:
    return tree.net_of_pci.get(tree.pci_of.get(device, ""), [])


def _pages(text: str) -> dict[str, dict[str, int]]:
    counters: dict[str, int] = {}
    for line in text.splitlines():
        query, line_of_ethtool = _PERFQUERY.match(line), _ETHTOOL.match(line)
        if query:
            name = ib_counters.PERFQUERY_NAMES.get(query[1], query[1])
            counters[name] = int(query[2])
        elif line_of_ethtool:
            counters[line_of_ethtool[1]] = int(line_of_ethtool[2])
    return {"": counters} if counters else {}


def _numbers(tree: _Tree) -> Iterator[Measurement]:
    for part, counters in tree.counters.items():
        for name, value in counters.items():
            yield Measurement(name, part or None, float(value), "count")
    for name, said in tree.nets.items():
        for key in ("carrier_changes", "carrier_down_count"):
            if re.fullmatch(r"\d{1,12}", said.get(key, "")):
                yield Measurement(key, name, float(said[key]), "count")
