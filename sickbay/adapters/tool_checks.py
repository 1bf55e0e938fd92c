"""Runs the checks of a suite with the node's own tools, behind the CheckRunner port."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sickbay.domain.node import Category, Node, PartKind, Severity, Treatment
from sickbay.domain.proof import Check, CheckName
from sickbay.domain.reading import FindingKind, Reading, Verdict
from sickbay.domain.suite_book import SHIPPED
from sickbay.ports import CheckOutput
from sickbay.readers import (
    dcgm_diag,
    dcgm_health,
    fio,
    host_state,
    ibstat,
    infiniband,
    kernel_log,
    nccl_tests,
    nvbandwidth,
    nvidia_smi,
)
from sickbay.readers.conclusion import conclude, tool_finding
from sickbay.readers.parts import bus_id
from sickbay.readers.peers import held_to_peers
from sickbay.tool_process import ToolRun, run_tool

# Level that contains each test (NVIDIA's `dcgmi diag` page). Before DCGM 4 `software` is no name of
# a test, and the tests that are missing here do not exist.
_LEVEL_OF = {
    "software": 1,
    "memory": 2,
    "pcie": 2,
    "diagnostic": 3,
    "memory_bandwidth": 3,
    "targeted_stress": 3,
    "targeted_power": 3,
    "memtest": 4,
    "pulse_test": 4,
}
_LAST_WITH_LEVELS = 3
PAIR_FLOOR = "nccl_pair_busbw_gbps"
"""Key of the class's floor of a run across two nodes, GB/s."""
_VERSION = re.compile(r"version:?\s*(\d+)\.", re.IGNORECASE)


# Large messages only: below them latency is measured. Each value is checked (`-c 1`).
_MESSAGES = ("-b", "512M", "-e", "8G", "-f", "2")
_COPIES = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
_COPIES_BETWEEN = ("device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_ce")
# A disk is measured past the page cache, and what was written is read back against its checksum.
_FIO = (
    "--output-format=json",
    "--name=sickbay",
    "--rw=write",
    "--ioengine=psync",
    "--direct=1",
    "--verify=crc32c",
    "--do_verify=1",
    "--verify_state_save=0",
    "--unlink=1",
)
# A folder of its own, and run in there: what a killed run left behind, or anything that bears the
# job's name where fio is started, becomes one file of all jobs and reads like a broken disk.
_DISK = (
    "command -v fio >/dev/null || exit 127; "
    'rm -rf "$1"/sickbay-disk-*; folder=$(mktemp -d "$1/sickbay-disk-XXXXXX") || exit 1; '
    'shift; cd "$folder" && fio "$@" --directory="$folder"; rc=$?; rm -rf "$folder"; exit $rc'
)
_NOT_FOUND = 127
_JOURNAL = ("journalctl", "-k", "-b", "-o", "short-iso", "--no-pager")
_NO_ENTRIES = "-- No entries --"
_PORT_FILES = ("state", "phys_state", "rate", "link_layer")
_MOST_PORTS = 256
_PACKAGES = {
    "nvidia-smi": "the NVIDIA driver",
    "dcgmi": "datacenter-gpu-manager",
    "nvbandwidth": "nvbandwidth",
    "all_reduce_perf": "nccl-tests",
    "mpirun": "Open MPI",
    "fio": "fio",
    "ibstat": "infiniband-diags",
    "journalctl": "systemd",
    "df": "coreutils",
}


@dataclass(frozen=True)
class Fittings:
    """What a node of a class has beside its GPUs.

    `ib_ports` and `ib_rate_gbps` are as a class file has them, None is not judged. `storage_dir` is
    on the disk that is tested. `root` is where the kernel's files are.
    """

    ib_ports: int | None = None
    ib_rate_gbps: float | None = None
    storage_dir: str = "/var/tmp"  # noqa: S108 - the tool makes and removes files of its own there
    root: Path = field(default=Path("/"))


class ToolCheckRunner:
    """Starts the tools of a node and reads what they print.

    Args:
        env: the environment the tools run in.
        floors: bandwidths the node's class owes, in GB/s; an absent one is not judged.
        nccl_network: the network NCCL must have used between nodes, None when any will do.
        launcher: what starts ranks on several hosts, with the site's own options.
        fittings: ports, disk and kernel files of the node.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        dcgmi: str = "dcgmi",
        nvidia_smi_tool: str = "nvidia-smi",
        floors: Mapping[str, float] | None = None,
        nccl_network: str | None = None,
        launcher: Sequence[str] = ("mpirun",),
        fittings: Fittings | None = None,
    ) -> None:
        self._fittings = fittings or Fittings()
        self._env = env
        self._dcgmi = dcgmi
        self._smi = nvidia_smi_tool
        self._floors = dict(floors or {})
        self._network = nccl_network
        self._launcher = tuple(launcher)

    async def run(
        self, check: Check, *, node: Node, deadline_s: float, neighbour: Node | None = None
    ) -> CheckOutput:
        """Run one check to its end or its deadline."""
        ends_at = time.monotonic() + deadline_s
        match check.name:
            case CheckName.GPU_STATE:
                run = await self._tool([self._smi, "-q", "-x"], ends_at)
                reading = nvidia_smi.read_state(
                    run.text, exit_code=run.exit_code, expected=node.parts
                )
            case CheckName.NVLINK_STATE:
                run = await self._tool([self._smi, "nvlink", "-s"], ends_at)
                reading = nvidia_smi.read_nvlink(
                    run.text, exit_code=run.exit_code, gpus=_gpus(node)
                )
            case CheckName.DCGM_HEALTH:
                run = await self._health(ends_at)
                reading = _states_only(dcgm_health.read(run.text, exit_code=run.exit_code))
            case CheckName.DCGM_DIAG:
                run = await self._tool(await self._diag(check.tests, ends_at), ends_at)
                reading = dcgm_diag.read(
                    run.text,
                    exit_code=run.exit_code,
                    wanted=check.tests,
                    gpus=_gpus(node),
                    bus_ids={p.serial: bus_id(p.bus_id) or p.uuid for p in node.parts if p.serial},
                )
            case CheckName.NVBANDWIDTH:
                run, reading = await self._copies(node, ends_at)
            case CheckName.NCCL_NODE:
                run, reading = await self._collective(node, None, ends_at)
            case CheckName.INFINIBAND:
                run, reading = await self._ports(ends_at)
            case CheckName.STORAGE:
                run, reading = await self._disk(ends_at)
            case CheckName.HOST:
                run, reading = await self._host(ends_at)
            case CheckName.KERNEL_LOG:
                run, reading = await self._kernel(check, ends_at)
            case CheckName.NCCL_PAIR if neighbour is None:
                return CheckOutput(_no_neighbour(), raw=b"")
            case CheckName.NCCL_PAIR:
                run, reading = await self._collective(node, neighbour, ends_at)
        if run.exit_code is None:
            reading = _no_answer(reading.tool, run)
        raw = run.text or run.why
        return CheckOutput(reading, raw=raw.encode("utf-8", errors="replace"))

    async def _copies(self, node: Node, ends_at: float) -> tuple[ToolRun, Reading]:
        """Copies to, from and between the GPUs, verified; a part is held to its peers."""
        gpus = _gpus(node)
        tests = (*_COPIES, *(_COPIES_BETWEEN if gpus != 1 else ()))
        run = await self._tool(["nvbandwidth", "-j", "-t", *tests], ends_at)
        reading = nvbandwidth.read(
            run.text, exit_code=run.exit_code, floors=self._floors, wanted=tests, gpus=gpus
        )
        return run, held_to_peers(reading)

    async def _collective(
        self, node: Node, neighbour: Node | None, ends_at: float
    ) -> tuple[ToolRun, Reading]:
        """An all-reduce over all GPUs of the node, or of the node and its neighbour."""
        gpus = _gpus(node) or 1
        hosts = [node.id] if neighbour is None else [node.id, neighbour.id]
        words = ["all_reduce_perf", *_MESSAGES]
        if neighbour is None:
            argv = [*words, "-g", str(gpus), "-c", "1"]
            key, category, treatment = nccl_tests.FLOOR, Category.INTERCONNECT, None
        else:
            ranks, slots = str(gpus * len(hosts)), ",".join(f"{h}:{gpus}" for h in hosts)
            start = [*self._launcher, "-np", ranks, "-H", slots, "-x", "NCCL_DEBUG=INFO"]
            argv = [*start, *words, "-g", "1", "-c", "1"]
            # No part is named that could be reset; what helps without hands is a fresh boot.
            key, category, treatment = PAIR_FLOOR, Category.FABRIC, Treatment.REBOOT
        floor = self._floors.get(key)
        run = await self._tool(argv, ends_at)
        reading = nccl_tests.read(
            run.text,
            exit_code=run.exit_code,
            floors={} if floor is None else {nccl_tests.FLOOR: floor},
            ranks=gpus * len(hosts),
            gpus_per_host=gpus,
            network=self._network if neighbour else None,
        )
        findings = tuple(
            replace(f, category=category, treatment=f.treatment or treatment)
            if f.kind is FindingKind.HARDWARE
            else f
            for f in reading.findings
        )
        failed = reading.verdict is Verdict.FAIL
        return run, replace(
            reading, findings=findings, category=category if failed else reading.category
        )

    async def _ports(self, ends_at: float) -> tuple[ToolRun, Reading]:
        """The ports as `ibstat` lists them, or as the kernel's files show them without it."""
        has = self._fittings
        if has.ib_ports == 0:
            says = "the class has no InfiniBand port"
            return ToolRun(says, 0), conclude(ibstat.TOOL, says, [], passed=says)
        run = await self._tool(["ibstat"], ends_at)
        if run.missing and (text := _port_files(has.root)):
            run = ToolRun(text, 0)
            return run, infiniband.read(
                text, exit_code=0, ports=has.ib_ports, rate_gbps=has.ib_rate_gbps
            )
        return run, ibstat.read(
            run.text, exit_code=run.exit_code, ports=has.ib_ports, rate_gbps=has.ib_rate_gbps
        )

    async def _disk(self, ends_at: float) -> tuple[ToolRun, Reading]:
        """Write, then read back and compare, on the class's disk."""
        how = SHIPPED.checks[CheckName.STORAGE].parameters
        words = [f"--{name}={value}" for name, value in how.items()]
        place = self._fittings.storage_dir
        run = await self._tool(["/bin/sh", "-c", _DISK, "sickbay", place, *_FIO, *words], ends_at)
        if run.exit_code == _NOT_FOUND:
            run = ToolRun("", exit_code=None, why="fio cannot be started", missing=True)
        return run, fio.read(run.text, exit_code=run.exit_code, floors=self._floors)

    async def _host(self, ends_at: float) -> tuple[ToolRun, Reading]:
        """Free space as `df` says it, and the memory controllers' counts of lost words."""
        run = await self._tool(["df", "-P", "-l"], ends_at)
        text = run.text + _memory_files(self._fittings.root)
        return replace(run, text=text), host_state.read(text, exit_code=run.exit_code)

    async def _kernel(self, check: Check, ends_at: float) -> tuple[ToolRun, Reading]:
        """What the kernel said since the suite began: an older line was not provoked by it."""
        told = await self._tool([*_JOURNAL, "-n", "1"], ends_at)
        since = [f"--since=@{check.since.timestamp():.0f}"] if check.since else []
        if told.exit_code != 0 or _NO_ENTRIES in told.text or not told.text.strip():
            why = told.why or "the journal shows no line of the kernel: is it read as root?"
            finding = tool_finding("did_not_run", why)
            return told, conclude(kernel_log.TOOL, told.text, [finding], passed=None)
        run = await self._tool([*_JOURNAL, *since], ends_at)
        if run.exit_code == 0 and run.text.strip() in {"", _NO_ENTRIES}:
            says = "the kernel said nothing since the suite began"
            return run, conclude(kernel_log.TOOL, run.text, [], passed=says)
        return run, kernel_log.read(run.text, exit_code=run.exit_code)

    async def _health(self, ends_at: float) -> ToolRun:
        """The watch's report; a watch that is off is switched on first."""
        run = await self._tool([self._dcgmi, "health", "-c", "-j"], ends_at)
        if not dcgm_health.watches_are_off(run.text):
            return run
        await self._tool([self._dcgmi, "health", "-s", "a"], ends_at)
        return await self._tool([self._dcgmi, "health", "-c", "-j"], ends_at)

    async def _diag(self, tests: Sequence[str], ends_at: float) -> list[str]:
        """The command line for these tests, by name or, before DCGM 4, by level."""
        run = await self._tool([self._dcgmi, "--version"], ends_at)
        version = _VERSION.search(run.text)
        names = ",".join(tests) or "1"
        if version and int(version[1]) <= _LAST_WITH_LEVELS:
            names = str(max((_LEVEL_OF.get(test, 1) for test in tests), default=1))
        return [self._dcgmi, "diag", "-r", names, "-j"]

    async def _tool(self, argv: Sequence[str], ends_at: float) -> ToolRun:
        left_s = max(0.0, ends_at - time.monotonic())
        return await run_tool(argv, env=self._env, deadline_s=left_s)


def _gpus(node: Node) -> int | None:
    """GPUs on record, None when none is."""
    return sum(p.kind is PartKind.GPU for p in node.parts) or None


def _no_neighbour() -> Reading:
    """A run across two nodes that was asked of one."""
    finding = tool_finding("no_neighbour", "a run across two nodes needs a borrowed neighbour")
    return conclude(nccl_tests.TOOL, "", [finding], passed=None)


def _no_answer(tool: str, run: ToolRun) -> Reading:
    """A tool that did not end by itself: what it printed so far is no verdict."""
    reason = "tool_not_installed" if run.missing else "timeout"
    why = run.why
    if run.missing and (package := _PACKAGES.get(why.partition(" ")[0])):
        why = f"{why} (it comes with {package})"
    return conclude(tool, run.text, [tool_finding(reason, why)], passed=None)


def _port_files(root: Path) -> str:
    """The files of the node's ports, as `path: value` lines; empty when there are none."""
    folders = sorted(root.glob("sys/class/infiniband/*/ports/*"))[:_MOST_PORTS]
    return _lines([folder / name for folder in folders for name in _PORT_FILES])


def _memory_files(root: Path) -> str:
    """The memory controllers' counts since they were started; empty without any."""
    return _lines(sorted(root.glob("sys/devices/system/edac/mc/mc*/ue_count"))[:_MOST_PORTS])


def _lines(files: Sequence[Path]) -> str:
    found = []
    for file in files:
        try:
            found.append(f"{file}: {file.read_text(encoding='ascii', errors='replace').strip()}\n")
        except OSError:
            continue
    return "".join(found)


def _states_only(reading: Reading) -> Reading:
    """The reading without events: an Xid the watch still holds is no state of the hardware.

    The watch keeps samples for minutes, across a reset. Events newer than a treatment reach the
    repair from the kernel's log.
    """
    events = [f for f in reading.findings if f.reason.startswith("xid_")]
    if not events or reading.verdict is not Verdict.FAIL:
        return reading
    kept = tuple(f for f in reading.findings if f not in events)
    noted = tuple(
        replace(f, kind=FindingKind.TOOL, treatment=None, severity=Severity.INFO) for f in events
    )
    findings = (*kept, *noted)
    if any(f.kind is FindingKind.HARDWARE for f in kept):
        return replace(reading, findings=findings)
    doubts = [f for f in kept if f.kind is FindingKind.TOOL and f.severity is not Severity.INFO]
    if doubts:
        verdict, why = Verdict.INCONCLUSIVE, f"{doubts[0].reason}: {doubts[0].detail}"
    else:
        past = ", ".join(f.reason for f in events)
        verdict, why = Verdict.PASS, f"only past events in the watch's samples: {past}"
    return replace(reading, verdict=verdict, category=None, why=why, findings=findings)
