"""What a kernel log says beside the GPU driver: PCIe, network cards, disks, memory, processors.

One row per sentence. A row says whose fault it is and how bad; a row that is only worth keeping
changes no verdict. Sentences are matched from their beginning, so that a quoted one is none.
"""

import re
from dataclasses import dataclass, field, replace

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind
from sickbay.readers.kernel_lines import FABRIC_MANAGER, KERNEL, LogLine
from sickbay.readers.parts import bus_id

_HARDWARE, _SETTING = FindingKind.HARDWARE, FindingKind.CONFIGURATION
_JOB, _TOOL = FindingKind.APPLICATION, FindingKind.TOOL
_MOST_FINDINGS = 2_000
_DETAIL_CHARS = 300
# No disk that holds anything of a job.
_NO_DISK = re.compile(r"(?:loop|fd|sr|ram|zram|nbd)\d")
# Made of other devices: what goes wrong on them went wrong below.
_BUILT_ON_OTHERS = re.compile(r"(?:md|dm-)\d|md/")


@dataclass(frozen=True)
class _Row:
    """One sentence. `decides` is False for what is only worth keeping."""

    pattern: re.Pattern[str]
    reason: str
    severity: Severity
    kind: FindingKind = _HARDWARE
    category: Category | None = None
    treatment: Treatment | None = None
    decides: bool = True
    program: str = KERNEL


def _row(pattern: str, reason: str, severity: Severity, **rest: object) -> _Row:
    return _Row(re.compile(pattern, re.IGNORECASE), reason, severity, **rest)  # type: ignore[arg-type]


_D = r"(?P<part>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_AER = rf"(?:\S+ {_D}: )?(?:AER: )?PCIe Bus Error: severity="
_GOT = rf"pcieport {_D}: AER: (?:Multiple )?"
# The port reports; the device behind it, where it is named, is the one that erred.
_FROM = r".*? (?:error|message) received(?: from)?:? (?P<source>[0-9a-f]{4,8}:[0-9a-f:.]{5,9})?"
_MLX = rf"mlx5_core {_D}:? ?(?:\S+: )?"
_DISK = r"(?P<part>[a-z]{2,8}[a-z0-9!/-]{0,20})"
_FS = r"(?:XFS|EXT4-fs|BTRFS|F2FS)"
_INTERCONNECT, _FABRIC = Category.INTERCONNECT, Category.FABRIC
_STORAGE, _HOST, _SOFTWARE = Category.STORAGE, Category.HOST, Category.SOFTWARE
_INFO, _WARNING = Severity.INFO, Severity.WARNING
_MAJOR, _CRITICAL = Severity.MAJOR, Severity.CRITICAL

_ROWS: tuple[_Row, ...] = (
    # PCIe. The severity words are the specification's; older kernels say Uncorrected.
    _row(_AER + r"Uncorrect(?:ed|able) \(Fatal\)", "pcie_aer_fatal", _MAJOR,
         category=_INTERCONNECT),
    _row(_AER + r"Uncorrect(?:ed|able)", "pcie_aer_uncorrected", _WARNING, category=_INTERCONNECT),
    _row(_AER + r"Correct(?:ed|able)", "pcie_aer_corrected", _INFO, category=_INTERCONNECT,
         decides=False),
    _row(_GOT + r"Uncorrect(?:ed|able) \(Fatal\)" + _FROM, "pcie_aer_fatal", _MAJOR,
         category=_INTERCONNECT),
    _row(_GOT + r"Uncorrect(?:ed|able) \(Non-?Fatal\)" + _FROM, "pcie_aer_uncorrected", _WARNING,
         category=_INTERCONNECT),
    _row(_GOT + r"Correct(?:ed|able)" + _FROM, "pcie_aer_corrected", _INFO, category=_INTERCONNECT,
         decides=False),
    _row(rf"pcieport {_D}: DPC: containment event", "pcie_link_contained", _MAJOR,
         category=_INTERCONNECT),
    # Mellanox cards.
    _row(_MLX + r".*(?:device's health compromised|handling bad device|FW fatal|fatal error"
         r"|firmware internal error|health recovery (?:failed|timed out))", "nic_firmware_fatal",
         _CRITICAL, category=_FABRIC, treatment=Treatment.REBOOT),
    _row(_MLX + r".*insufficient power on the PCIe slot", "nic_power_insufficient", _MAJOR,
         category=_FABRIC),
    _row(_MLX + r".*(?:Cable error|module \d+, .*(?:error|unsupported|shorted))", "cable_error",
         _MAJOR, category=_FABRIC),
    _row(_MLX + r".*(?:Cable unplugged|module unplugged)", "cable_unplugged", _MAJOR,
         category=_FABRIC),
    _row(_MLX + r".*High Temperature", "nic_hot", _MAJOR, category=Category.THERMAL),
    _row(_MLX + r".*timeout\. Will cause a leak of a command resource", "nic_command_timeout",
         _MAJOR, category=_FABRIC, treatment=Treatment.REBOOT),
    # Disks and what is built on them.
    _row(r"(?:blk_update_request: |print_req_error: )?(?:I/O|critical (?:medium|target|nexus|space"
         rf" allocation)) error, dev {_DISK},", "io_error", _MAJOR, category=_STORAGE),
    _row(rf"Buffer I/O error on dev(?:ice)? {_DISK},", "io_error", _MAJOR, category=_STORAGE),
    _row(rf"(?:nvme )?{_DISK}: I/O Cmd\(0x[0-9a-f]+\).*I/O Error", "io_error", _MAJOR,
         category=_STORAGE),
    _row(rf"sd \S+ \[{_DISK}\].*(?:Medium Error|Hardware Error)", "io_error", _MAJOR,
         category=_STORAGE),
    _row(rf"{_FS} \({_DISK}\):.*I/O error", "io_error", _MAJOR, category=_STORAGE),
    _row(rf"{_FS} error \(device {_DISK}\)", "filesystem_error", _MAJOR, category=_STORAGE),
    _row(rf"{_FS} \({_DISK}\):.*(?:Remounting filesystem read-only|Shutting down filesystem"
         r"|Corruption)", "filesystem_error", _MAJOR, category=_STORAGE),
    _row(rf"md/raid\S*: ?Disk failure on {_DISK},", "disk_failed", _MAJOR, category=_STORAGE),
    _row(rf"nvme {_DISK}: (?:controller is down|Removing after probe failure|Device not ready"
         r"|Disabling device after reset failure)", "nvme_controller_down", _MAJOR,
         category=_STORAGE),
    _row(rf"nvme {_DISK}: I/O (?:tag )?\d+.*timeout", "io_timeout", _WARNING, category=_STORAGE),
    # Memory and processors of the host.
    _row(r"(?:mce: )?\[Hardware Error\]: .*(?:Machine Check Exception|Uncorrected|UnCorrectable)",
         "mce_uncorrected", _CRITICAL, category=_HOST),
    _row(r"(?:\{\d+\})?\[Hardware Error\]: *event severity: (?:fatal|recoverable)",
         "mce_uncorrected", _CRITICAL, category=_HOST),
    _row(r"Kernel panic - not syncing: .*machine check", "mce_uncorrected", _CRITICAL,
         category=_HOST),
    _row(r"(?:mce: )?\[Hardware Error\]: .*(?:Machine check events logged|Corrected error)",
         "mce_corrected", _INFO, category=_HOST, decides=False),
    _row(r"EDAC MC\d+: \d+ UE\b.* on (?:unknown memory|(?P<part>\S+))", "memory_uncorrected",
         _CRITICAL, category=_HOST, treatment=Treatment.SWAP),
    _row(r"EDAC MC\d+: \d+ CE\b.* on (?:unknown memory|(?P<part>\S+))", "memory_corrected",
         _INFO, category=_HOST, decides=False),
    # Not the hardware's fault.
    _row(r"NVRM: API mismatch", "driver_mismatch", _WARNING, kind=_SETTING, category=_SOFTWARE),
    _row(r"(?:Memory cgroup )?out of memory: Killed process|oom-kill:constraint=|\S+ invoked"
         r" oom-killer", "oom_kill", _INFO, kind=_JOB, decides=False),
    _row(r"(?:nvidia[\w-]*|NVRM|__ratelimit|pcieport \S+): \d+ callbacks suppressed",
         "lines_suppressed", _INFO, kind=_TOOL, decides=False),
    # The fabric manager's own log.
    _row(r"detected NVSwitch non-fatal error (?P<code>\d+) on .*?pci bus id (?P<part>\S+)",
         "nvswitch_nonfatal", _WARNING, category=_FABRIC, decides=False, program=FABRIC_MANAGER),
    _row(r"detected NVSwitch fatal error (?P<code>\d+) on .*?pci bus id (?P<part>\S+)",
         "nvswitch_fatal", _MAJOR, category=_FABRIC, program=FABRIC_MANAGER),
)  # fmt: skip


@dataclass
class HostLog:
    """Everything but the GPU driver's words; fed line by line, each thing kept once."""

    _found: dict[tuple[str, str | None], tuple[_Row, Finding]] = field(default_factory=dict)

    def feed(self, line: LogLine) -> None:
        """Take one line."""
        for row in _ROWS:
            if row.program != line.program:
                continue
            match = row.pattern.match(line.message)
            if match:
                self._keep(row, match)
                return

    def findings(self, *, echo: bool) -> tuple[list[Finding], list[Finding]]:
        """What was found, and what is worth keeping but changes no verdict.

        Args:
            echo: a GPU of the node is lost: what PCIe says follows from that.
        """
        whole = any(
            row.category is _STORAGE and not _BUILT_ON_OTHERS.match(found.part or "")
            for row, found in self._found.values()
        )
        found: list[Finding] = []
        remarks: list[Finding] = []
        for row, one in self._found.values():
            follows = (echo and row.reason.startswith("pcie_")) or (
                whole and row.category is _STORAGE and _is_built(one.part)
            )
            if follows:
                remarks.append(replace(one, severity=_INFO, treatment=None))
            else:
                (found if row.decides else remarks).append(one)
        return found, remarks

    @property
    def driver_mismatch(self) -> bool:
        """Whether the driver's module and its library differ: then every GPU is unknown."""
        return any(reason == "driver_mismatch" for reason, _ in self._found)

    def _keep(self, row: _Row, match: re.Match[str]) -> None:
        named = match.groupdict()
        part = _part(named.get("source") or named.get("part"))
        if part and row.category is _STORAGE and _NO_DISK.match(part):
            return
        reason = f"{row.reason}_{named['code']}" if named.get("code") else row.reason
        key = (reason, part)
        if key not in self._found and len(self._found) < _MOST_FINDINGS:
            detail = " ".join(match.string.split())[:_DETAIL_CHARS]
            finding = Finding(
                part, reason, row.severity, row.kind, row.treatment, row.category, detail
            )
            self._found[key] = (row, finding)


def _is_built(part: str | None) -> bool:
    return bool(part and _BUILT_ON_OTHERS.match(part))


def _part(printed: str | None) -> str | None:
    """A bus id in its one spelling, else the device's name."""
    if printed is None:
        return None
    found = bus_id(printed)
    return found or printed.strip(",.:;!") or None
