"""Physical state of nodes and GPUs, and nothing else: no fault name, suite or verdict lives here.

Whatever a tool prints is computed from these values. Counters that grow by themselves are ramps, so
that time costs nothing until somebody looks.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

# Of one H200 SXM (data sheet: 700 W, 18 NVLinks of 25 GB/s, PCIe 5 x16).
IDLE_W = 76.0
LOAD_W = 612.0
LINKS = 18
LANES = 16
# What NCCL moves through one 400 Gb/s port: 24 GB/s per 200 Gb/s.
RAIL_GBPS = 48.0
MODEL = "NVIDIA H200"
DRIVER = "580.95.05"
VBIOS = "96.00.A5.00.01"
IDLE_MHZ = 345
BOOST_MHZ = 1980
MEMORY_MHZ = 3201
MJ_PER_WH = 3_600_000.0


class Power(StrEnum):
    """Whether a chassis has power; the two in between last some seconds."""

    ON = "on"
    OFF = "off"
    GOING_ON = "going_on"
    GOING_OFF = "going_off"


@dataclass
class Ramp:
    """A counter that grows at `rate_h` per simulated hour from `base` at `since_h`."""

    base: float = 0.0
    rate_h: float = 0.0
    since_h: float = 0.0

    def at(self, now_h: float) -> float:
        """Its value now."""
        return self.base + self.rate_h * max(0.0, now_h - self.since_h)

    def retune(self, rate_h: float, *, now_h: float) -> None:
        """Grow at another rate from now on."""
        self.base = self.at(now_h)
        self.rate_h = rate_h
        self.since_h = now_h

    def add(self, amount: float, *, now_h: float) -> None:
        """Jump up."""
        self.base = self.at(now_h) + amount
        self.since_h = now_h


@dataclass
class Gpu:
    """One GPU in one slot.

    Attributes:
        index: the number the driver gave it at boot; None when it was not enumerated.
        answers: whether it responds on the bus.
        hung_since_h: when its system processor stopped; its telemetry is stale from then on.
        clock_factor: share of the clock it reaches under load.
        heat_c: degrees above the normal under full load.
        weak_after_min: minutes of memory stress after which patterns read back wrong.
        flaky_per_min: chance per minute of memory stress that an uncorrectable error comes.
        stressed_min: minutes of memory stress it has had.
        xids: (code, simulated hour) since the last reset.
        vbios: the version of its firmware that runs; it goes where the part goes.
    """

    slot: str
    uuid: str
    serial: str
    bus_id: str
    phase: float
    index: int | None = None
    generation: int = 0
    answers: bool = True
    hung_since_h: float | None = None
    busy: bool = False
    energy_mj: Ramp = field(default_factory=Ramp)
    sbe: Ramp = field(default_factory=Ramp)
    dbe: int = 0
    dbe_lifetime: int = 0
    remap_correctable: int = 0
    remap_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failure: bool = False
    replays: Ramp = field(default_factory=Ramp)
    lanes: int = LANES
    link_crc: Ramp = field(default_factory=Ramp)
    links_down: list[int] = field(default_factory=list)
    recovery: int = 0
    last_xid: int = 0
    xids: list[tuple[int, float]] = field(default_factory=list)
    clock_factor: float = 1.0
    heat_c: float = 0.0
    weak_after_min: float | None = None
    flaky_per_min: float = 0.0
    stressed_min: float = 0.0
    resetting_until_h: float = 0.0
    vbios: str = VBIOS

    @property
    def lost(self) -> bool:
        """Enumerated at boot, and gone since."""
        return self.index is not None and not self.answers

    @property
    def visible(self) -> bool:
        """Enumerated and answering."""
        return self.index is not None and self.answers

    def set_load(self, busy: bool, *, now_h: float) -> None:  # noqa: FBT001 - a plain bit
        """Start or end load; its energy grows accordingly."""
        self.busy = busy
        self._draw_power(now_h)

    def clear_volatile(self, *, now_h: float) -> None:
        """What any reset of the GPU clears."""
        self.sbe = Ramp(since_h=now_h)
        self.replays = Ramp(since_h=now_h)
        self.link_crc = Ramp(since_h=now_h)
        self.energy_mj = Ramp(since_h=now_h)
        self.dbe = 0
        self.remap_pending = False
        self.links_down = []
        self.recovery = 0
        self.last_xid = 0
        self.xids = []
        self.hung_since_h = None
        self._draw_power(now_h)

    def _draw_power(self, now_h: float) -> None:
        watts = IDLE_W + (LOAD_W - IDLE_W) * (self.clock_factor if self.busy else 0.0)
        self.energy_mj.retune(watts * MJ_PER_WH, now_h=now_h)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Gpu":
        """From saved state."""
        ramps = {n: Ramp(**data[n]) for n in ("energy_mj", "sbe", "replays", "link_crc")}
        xids = [(int(code), float(at)) for code, at in data["xids"]]
        return cls(**{**data, **ramps, "xids": xids})


@dataclass
class Nic:
    """The network port of one rail: the GPU of the same number sends through it.

    `factor` is the share of its rate at which it really moves data.
    """

    slot: str
    serial: str
    factor: float = 1.0
    generation: int = 0

    @property
    def gbps(self) -> float:
        """GB/s it moves one way."""
        return RAIL_GBPS * self.factor


@dataclass
class Job:
    """A job on some GPUs of one node."""

    id: str
    user: str
    pid: int
    slots: list[str]
    start_h: float
    end_h: float
    started_at: float


@dataclass
class Mark:
    """Somebody's reason why no job may start on a node. `at` in unix seconds."""

    mark: str
    reason: str
    at: float


@dataclass
class Node:
    """One chassis with its GPUs, its present boot, its marks and its job.

    Attributes:
        boots: how often it was started; part of what makes its boot id.
        booted_at: wall time of the present boot; kernel time counts from here.
        down_until_h: when the boot in progress ends; None while none is.
        watch_since_h: since when the diagnostics service watches health; None when it does not.
        power_until_h: when the present state of power ends by itself; None when it stays.
        power_next: what comes after it is off: on again, or nothing.
        off_since_h: since when it has had no power.
        cold: the boot in progress began without any charge left.
        last_reset_at: unix seconds of the newest start of the chassis, warm or cold.
        firmware: versions that are not those it was delivered with, GPUs excepted.
        staged: per component the version written, and the start it waits for.
    """

    name: str
    pool: str
    group: str
    rack: str
    node_class: str
    dcgm_version: str
    gpus: list[Gpu]
    boot_id: str = ""
    boots: int = 0
    booted_at: float = 0.0
    down_until_h: float | None = None
    watch_since_h: float | None = None
    marks: dict[str, Mark] = field(default_factory=dict)
    job: Job | None = None
    power: Power = Power.ON
    power_until_h: float | None = None
    power_next: Power | None = None
    off_since_h: float | None = None
    cold: bool = False
    last_reset_at: float = 0.0
    firmware: dict[str, str] = field(default_factory=dict)
    staged: dict[str, list[str]] = field(default_factory=dict)
    nics: list[Nic] = field(default_factory=list)

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self.power is Power.ON and self.down_until_h is None

    def gpu(self, slot: str) -> Gpu | None:
        """The GPU in a slot."""
        return next((gpu for gpu in self.gpus if gpu.slot == slot), None)

    def by_bus_id(self, bus_id: str) -> Gpu | None:
        """The GPU at a bus id, in the long spelling of nvidia-smi."""
        return next((gpu for gpu in self.gpus if gpu.bus_id == bus_id), None)

    def nic(self, slot: str) -> Nic | None:
        """The NIC in a slot."""
        return next((nic for nic in self.nics if nic.slot == slot), None)

    def rail_gbps(self, gpu: Gpu) -> float:
        """What the NIC of this GPU's rail moves; nothing when it has none."""
        nic = self.nic(f"nic{gpu.slot.removeprefix('gpu')}")
        return nic.gbps if nic is not None else 0.0

    def held(self, gpu: Gpu) -> bool:
        """Whether a job holds the GPU."""
        return self.job is not None and gpu.slot in self.job.slots

    def enumerate_gpus(self) -> None:
        """Number the GPUs that answer, as a driver does at boot."""
        index = 0
        for gpu in self.gpus:
            gpu.index = index if gpu.answers else None
            index += gpu.answers

    def to_dict(self) -> dict[str, Any]:
        """For saving."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Node":
        """From saved state."""
        return cls(
            **{
                **data,
                "gpus": [Gpu.from_dict(gpu) for gpu in data["gpus"]],
                "marks": {name: Mark(**mark) for name, mark in data["marks"].items()},
                "job": Job(**data["job"]) if data["job"] else None,
                "power": Power(data.get("power", Power.ON)),
                "power_next": Power(data["power_next"]) if data.get("power_next") else None,
                "nics": [Nic(**nic) for nic in data.get("nics", [])],
            }
        )
