"""The fault kinds: how each changes a GPU's physical state, and what each treatment does to it.

Every treatment first does to the hardware what it always does (`Gpu.clear_volatile`, a fresh
enumeration); a defect that it does not cure then shows again. Only this module, the plan and the
log know kinds; tools and pages see the physical state alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from sickbay.simulator import kernel
from sickbay.simulator.draws import Draws
from sickbay.simulator.firmware import WEDGING
from sickbay.simulator.hardware import LANES, LINKS, VBIOS, Gpu, Job, Node
from sickbay.simulator.kinds import FaultKind, Work

# Corrected errors per hour of a marginal part, link errors per hour of a link that cannot train,
# PCIe replays per hour of one that trains badly.
MARGINAL_SBE_H = 2400.0
LINK_CRC_H = 150.0 * 3600.0
WEDGED_REPLAYS_H = 600.0
SLOW_FACTOR = 0.75
BLOCKED_AIR_C = 31.0
RECUR_AFTER_H = (0.5, 2.0)
FLAKY_PER_MIN = 0.4
# A short memory test loads the memory for one minute: the first one ends before, two do not.
WEAK_AFTER_MIN = (1.1, 1.9)


class Act(StrEnum):
    """What was done to the hardware."""

    RESET = "reset"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    REFLASH = "reflash"
    WORK = "work"


@dataclass
class Defect:
    """One fault of one GPU, from its injection to its cure.

    Attributes:
        asleep: nothing shows now, though the defect is there.
        wakes_h: when it shows again by itself.
        stressed: memory tests since it fell asleep.
    """

    id: str
    kind: FaultKind
    node: str
    slot: str
    serial: str
    since_h: float
    reboot_cures: bool = False
    link: int = 0
    weak_after_min: float = 0.0
    asleep: bool = False
    wakes_h: float | None = None
    shown: int = 0
    stressed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For saving and for `/truth`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Defect":
        """From saved state."""
        return cls(**{**data, "kind": FaultKind(data["kind"])})


@dataclass
class Case:
    """A defect beside the hardware it sits in, and the lines the kernel prints meanwhile."""

    defect: Defect
    node: Node
    gpu: Gpu
    now_h: float
    lines: list[str] = field(default_factory=list)
    kills_job: bool = False

    @property
    def job(self) -> Job | None:
        """The job on this GPU."""
        return self.node.job if self.node.held(self.gpu) else None

    def xid(self, code: int, *, text: str) -> None:
        """The driver reports an error."""
        self.lines.append(kernel.xid(self.gpu, code=code, text=text, job=self.job))
        note_xid(self.gpu, code=code, now_h=self.now_h)

    def advise(self, action: int, *, gpu: Gpu | None = None) -> None:
        """The driver asks for a recovery action. This is no error event: the gauge stays."""
        target = gpu or self.gpu
        if target.recovery != action:
            line = kernel.recovery(target, before=target.recovery, after=action)
            self.lines.append(line)
            target.recovery = action


def note_xid(gpu: Gpu, *, code: int, now_h: float) -> None:
    """Remember an Xid as the driver does: the last one, and the recent ones."""
    gpu.last_xid = code
    gpu.xids = [*gpu.xids[-15:], (code, now_h)]


def new_defect(
    defect_id: str, *, kind: FaultKind, node: Node, gpu: Gpu, now_h: float, draws: Draws
) -> Defect:
    """A defect with everything that is drawn once, at its injection."""
    rng = draws.keyed("faults", defect_id, kind, node.name, gpu.slot)
    return Defect(
        id=defect_id,
        kind=kind,
        node=node.name,
        slot=gpu.slot,
        serial=gpu.serial,
        since_h=now_h,
        reboot_cures=rng.random() < 0.5,  # noqa: PLR2004 - half of them
        link=rng.randrange(LINKS),
        weak_after_min=rng.uniform(*WEAK_AFTER_MIN),
    )


def show(case: Case) -> None:
    """Let the defect act on the hardware: at its injection, and after whatever did not cure it."""
    case.defect.asleep = False
    case.defect.wakes_h = None
    case.defect.stressed = 0
    _SHOW[case.defect.kind](case)
    case.defect.shown += 1


def cured_by(case: Case, *, act: Act, work: Work | None = None) -> bool:
    """Whether this act ends the defect for good. A new part always does and is not asked here."""
    kind = case.defect.kind
    if act is Act.WORK:
        return kind is FaultKind.THERMAL and work is Work.CLEANED
    if act is Act.REFLASH or kind is FaultKind.FIRMWARE_WEDGED:
        return kind is FaultKind.FIRMWARE_WEDGED and case.gpu.vbios == VBIOS
    if act is Act.RESET:
        return kind in _RESET_CURES
    if act is Act.POWER_CYCLE and kind in _POWER_CURES:
        return True
    if kind is FaultKind.SLOW_GPU:
        return case.defect.reboot_cures
    return kind in _RESET_CURES or kind in _REBOOT_CURES


def absent_after(defect: Defect, *, act: Act) -> bool:
    """Whether the GPU does not come back on the bus with the boot that this act ends with."""
    if defect.kind is FaultKind.OFF_BUS_COLD:
        return act is not Act.POWER_CYCLE
    return defect.kind is FaultKind.OFF_BUS_DEAD


def undo(case: Case) -> None:
    """Take away what only this defect keeps up, once it is cured without a new part."""
    if case.defect.kind is FaultKind.SLOW_GPU:
        case.gpu.clock_factor = 1.0
    if case.defect.kind is FaultKind.THERMAL:
        case.gpu.heat_c = 0.0
    if case.defect.kind is FaultKind.FIRMWARE_WEDGED:
        case.gpu.lanes = LANES
        case.gpu.replays.retune(0.0, now_h=case.now_h)
        case.gpu.link_crc.retune(0.0, now_h=case.now_h)


def calm(case: Case, *, draws: Draws) -> bool:
    """Let a recurring defect fall asleep instead of showing at once; False when it is none."""
    defect = case.defect
    if defect.kind is not FaultKind.ECC_RECURRING:
        return False
    rng = draws.keyed("faults", defect.id, "recurs", defect.shown)
    defect.asleep = True
    defect.wakes_h = case.now_h + rng.uniform(*RECUR_AFTER_H)
    return True


def wakes_under_stress(case: Case, *, minutes: float, draws: Draws) -> bool:
    """Whether loading the memory makes a sleeping defect show."""
    defect = case.defect
    if not defect.asleep or case.gpu.flaky_per_min <= 0.0:
        return False
    defect.stressed += 1
    rng = draws.keyed("faults", defect.id, "stress", defect.shown, defect.stressed)
    quiet: float = (1.0 - case.gpu.flaky_per_min) ** minutes
    return rng.random() >= quiet


def _remap_pending(case: Case) -> None:
    case.gpu.remap_pending = True
    case.gpu.remap_uncorrectable += 1
    case.xid(63, text=kernel.row(case.gpu))


def _uncorrectable(case: Case) -> None:
    case.gpu.dbe += 1
    case.gpu.dbe_lifetime += 1
    case.xid(48, text=kernel.dbe(case.gpu))
    case.advise(1)
    case.kills_job = True


def _recurring(case: Case) -> None:
    case.gpu.flaky_per_min = FLAKY_PER_MIN
    _uncorrectable(case)


def _remap_failure(case: Case) -> None:
    already = case.gpu.remap_failure
    case.gpu.remap_failure = True
    if not already:
        case.gpu.remap_uncorrectable = 512
        case.xid(64, text=kernel.row_failed(case.gpu))
        case.kills_job = True


def _gsp_hang(case: Case) -> None:
    case.gpu.hung_since_h = case.now_h
    case.xid(119, text=kernel.gsp(case.gpu))
    case.advise(1)
    case.kills_job = True


def _off_bus(case: Case) -> None:
    if case.gpu.lost:
        return
    for line in kernel.off_bus(case.gpu, job=case.job):
        case.lines.append(line)
    note_xid(case.gpu, code=79, now_h=case.now_h)
    case.gpu.answers = False
    case.kills_job = True
    # After one GPU is lost the driver asks for a reboot on behalf of every GPU of the node.
    for other in case.node.gpus:
        if other.visible:
            case.advise(2, gpu=other)


def _off_bus_absent(case: Case) -> None:
    if case.defect.shown == 0:
        _off_bus(case)
    case.gpu.answers = False


def _firmware_wedged(case: Case) -> None:
    if case.defect.shown == 0:
        case.gpu.vbios = WEDGING
    case.gpu.lanes = LANES // 2
    case.gpu.replays.retune(WEDGED_REPLAYS_H, now_h=case.now_h)
    case.gpu.link_crc.retune(LINK_CRC_H, now_h=case.now_h)


def _marginal_memory(case: Case) -> None:
    case.gpu.sbe.retune(MARGINAL_SBE_H, now_h=case.now_h)
    case.gpu.weak_after_min = case.defect.weak_after_min
    if case.defect.shown == 0:
        case.gpu.stressed_min = 0.0


def _slow_gpu(case: Case) -> None:
    case.gpu.clock_factor = SLOW_FACTOR
    case.gpu.set_load(case.gpu.busy, now_h=case.now_h)


def _thermal(case: Case) -> None:
    case.gpu.heat_c = BLOCKED_AIR_C


def _nvlink_down(case: Case) -> None:
    case.gpu.links_down = [case.defect.link]
    case.gpu.link_crc.retune(LINK_CRC_H, now_h=case.now_h)
    case.xid(74, text=kernel.link_down(case.defect.link))
    case.kills_job = True


def _nothing(_: Case) -> None:
    """An application's error leaves no trace in the hardware."""


_RESET_CURES = frozenset(
    (FaultKind.REMAP_PENDING, FaultKind.ECC_UNCORRECTABLE, FaultKind.NVLINK_DOWN)
)
_REBOOT_CURES = frozenset((FaultKind.GSP_HANG, FaultKind.OFF_BUS))
_POWER_CURES = frozenset((FaultKind.OFF_BUS_COLD,))
_SHOW: Mapping[FaultKind, Callable[[Case], None]] = {
    FaultKind.REMAP_PENDING: _remap_pending,
    FaultKind.ECC_UNCORRECTABLE: _uncorrectable,
    FaultKind.ECC_RECURRING: _recurring,
    FaultKind.REMAP_FAILURE: _remap_failure,
    FaultKind.GSP_HANG: _gsp_hang,
    FaultKind.OFF_BUS: _off_bus,
    FaultKind.OFF_BUS_COLD: _off_bus_absent,
    FaultKind.OFF_BUS_DEAD: _off_bus_absent,
    FaultKind.FIRMWARE_WEDGED: _firmware_wedged,
    FaultKind.MARGINAL_MEMORY: _marginal_memory,
    FaultKind.SLOW_GPU: _slow_gpu,
    FaultKind.THERMAL: _thermal,
    FaultKind.NVLINK_DOWN: _nvlink_down,
    FaultKind.APP_ERROR: _nothing,
}
