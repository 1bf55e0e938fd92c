"""The configuration of one simulated fleet, as a JSON file."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sickbay.errors import UsageError
from sickbay.simulator.kinds import FaultKind

# Shares of the fault kinds in a plan. Loosely the mix of published fleets (memory and interconnect
# first, silent slowness rare), with rare kinds raised so that a short demo shows each of them.
# Published rates per 1,000 node-days of the two that need power or firmware: a GPU off the bus
# 0.45, of which a reboot cures some 45 %; a firmware mismatch 0.10, against some 6 of all kinds.
# How many GPUs off the bus come back with cold power alone is nowhere published: assumed.
DEFAULT_WEIGHTS: Mapping[FaultKind, float] = {
    FaultKind.REMAP_PENDING: 16,
    FaultKind.ECC_UNCORRECTABLE: 16,
    FaultKind.ECC_RECURRING: 6,
    FaultKind.REMAP_FAILURE: 4,
    FaultKind.GSP_HANG: 8,
    FaultKind.OFF_BUS: 8,
    FaultKind.OFF_BUS_COLD: 6,
    FaultKind.OFF_BUS_DEAD: 4,
    FaultKind.FIRMWARE_WEDGED: 5,
    FaultKind.MARGINAL_MEMORY: 5,
    FaultKind.SLOW_GPU: 5,
    FaultKind.THERMAL: 5,
    FaultKind.NVLINK_DOWN: 8,
    FaultKind.APP_ERROR: 15,
}


@dataclass(frozen=True)
class FaultPlan:
    """Faults that come by themselves: `count` spread over the time, plus `rate_per_h` at random.

    Attributes:
        count: how many, between `start_after_h` and `until_h`.
        rate_per_h: expected faults of the whole fleet per simulated hour.
        weights: share per fault kind; an empty mapping means the default mix.
        start_after_h: first simulated hour with a fault.
        until_h: last simulated hour with a fault.
    """

    count: int = 0
    rate_per_h: float = 0.0
    weights: Mapping[str, float] = field(default_factory=dict)
    start_after_h: float = 0.5
    until_h: float = 24.0


@dataclass(frozen=True)
class JobLoad:
    """The synthetic load: `busy` is the share of nodes with a job, durations are log-normal."""

    busy: float = 0.6
    median_h: float = 1.0
    sigma: float = 0.8


@dataclass(frozen=True)
class SimulatorConfig:
    """One simulated fleet.

    Attributes:
        dir: where its state, its log, its socket and its tools lie.
        port: on loopback; 0 takes any free one.
        pools: number of pools; nodes are split evenly.
        group_size: consecutive nodes of one group; a group never spans pools.
        time_scale: simulated seconds per wall second.
        dcgm3_share: share of nodes whose diagnostics speak the 3.x layout.
        bmc_port: of the management controllers, on loopback; 0 takes any free one.
        bmc_tls: whether they speak HTTPS, with a certificate of an authority of their own.
        bmc_user: the account; its password is written to `bmc_password` in `dir`.
        bmc_session_s: real seconds after which an unused session ends.
    """

    dir: Path
    port: int = 0
    nodes: int = 64
    gpus_per_node: int = 8
    pools: int = 4
    group_size: int = 4
    nodes_per_rack: int = 8
    seed: int = 7
    time_scale: float = 1.0
    dcgm3_share: float = 0.25
    bmc_port: int = 0
    bmc_tls: bool = True
    bmc_user: str = "admin"
    bmc_session_s: float = 1800.0
    faults: FaultPlan = field(default_factory=FaultPlan)
    jobs: JobLoad = field(default_factory=JobLoad)

    def __post_init__(self) -> None:
        """Refuse values no fleet can have. Raises `UsageError`."""
        for name, low, high in _RANGES:
            _check_number(name, getattr(self, name), low=low, high=high)
        for name, low, high in _PLAN_RANGES:
            _check_number(f"faults.{name}", getattr(self.faults, name), low=low, high=high)
        for name, low, high in _JOB_RANGES:
            _check_number(f"jobs.{name}", getattr(self.jobs, name), low=low, high=high)
        _check_bmc(tls=self.bmc_tls, user=self.bmc_user)
        if self.pools > self.nodes:
            raise _wrong("pools", self.pools, f"at most one pool per node ({self.nodes})")
        if self.faults.until_h < self.faults.start_after_h:
            raise _wrong("faults.until_h", self.faults.until_h, "not before start_after_h")
        _check_weights(self.faults.weights)

    def save(self, path: Path) -> None:
        """Write it as JSON for `python -m sickbay.simulator --config`."""
        data = asdict(self) | {"dir": str(self.dir)}
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "SimulatorConfig":
        """Read it from JSON.

        Raises:
            UsageError: the file cannot be read, or a key is unknown or has a wrong value.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be read ({error.strerror})", field="config"
            ) from error
        except ValueError as error:
            raise UsageError(f"{path}: is no JSON: {error}", field="config") from error
        if not isinstance(data, dict):
            raise UsageError(f"{path}: must hold one object", field="config")
        return cls.from_mapping(data)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "SimulatorConfig":
        """Build it from parsed JSON. Raises `UsageError`."""
        known = _known(data, cls, "")
        if "dir" not in known or not isinstance(known["dir"], str | Path):
            raise UsageError("dir is missing", field="dir", remedy="name the fleet's directory")
        known["dir"] = Path(known["dir"])
        for name, part in (("faults", FaultPlan), ("jobs", JobLoad)):
            if name in known:
                inner = known[name]
                if not isinstance(inner, Mapping):
                    raise _wrong(name, inner, "an object")
                known[name] = part(**_known(inner, part, f"{name}."))
        return cls(**known)


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("port", 0, 65535),
    ("nodes", 1, 5000),
    ("gpus_per_node", 1, 16),
    ("pools", 1, 5000),
    ("group_size", 1, 5000),
    ("nodes_per_rack", 1, 5000),
    ("seed", -(2**63), 2**63),
    ("time_scale", 0.001, 1e6),
    ("dcgm3_share", 0, 1),
    ("bmc_port", 0, 65535),
    ("bmc_session_s", 0.1, 1e6),
)
_PLAN_RANGES: tuple[tuple[str, float, float], ...] = (
    ("count", 0, 1e6),
    ("rate_per_h", 0, 1e4),
    ("start_after_h", 0, 1e9),
    ("until_h", 0, 1e9),
)
_JOB_RANGES: tuple[tuple[str, float, float], ...] = (
    ("busy", 0, 1),
    ("median_h", 1e-4, 1e6),
    ("sigma", 0, 5),
)
_WHOLE = frozenset(
    ("port", "nodes", "gpus_per_node", "pools", "group_size", "nodes_per_rack", "seed", "bmc_port")
) | {"faults.count"}


def _check_number(name: str, value: Any, *, low: float, high: float) -> None:
    kinds = (int,) if name in _WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise _wrong(name, value, "a whole number" if name in _WHOLE else "a number")
    if not math.isfinite(value) or not low <= value <= high:
        raise _wrong(name, value, f"between {low:g} and {high:g}")


def _check_bmc(*, tls: Any, user: Any) -> None:
    if not isinstance(tls, bool):
        raise _wrong("bmc_tls", tls, "true or false")
    if not isinstance(user, str) or not user or ":" in user:
        raise _wrong("bmc_user", user, "a name without a colon")


def _check_weights(weights: Any) -> None:
    if not isinstance(weights, Mapping):
        raise _wrong("faults.weights", weights, "an object of kind and share")
    for kind, share in weights.items():
        if kind not in set(FaultKind):
            raise UsageError(
                f"faults.weights: no fault kind {kind!r}",
                field="faults.weights",
                remedy=f"the kinds are: {', '.join(FaultKind)}",
            )
        _check_number(f"faults.weights.{kind}", share, low=0, high=1e9)
    if weights and not any(weights.values()):
        raise _wrong("faults.weights", dict(weights), "at least one share above 0")


def _known(data: Mapping[str, Any], shape: type[Any], prefix: str) -> dict[str, Any]:
    names = [f.name for f in fields(shape)]
    for key in data:
        if key not in names:
            raise UsageError(
                f"unknown key {prefix}{key}",
                field=f"{prefix}{key}",
                remedy=f"the keys are: {', '.join(names)}",
            )
    return dict(data)


def _wrong(name: str, value: object, wanted: str) -> UsageError:
    return UsageError(f"{name}: {value!r} is not {wanted}", field=name, remedy=f"give {wanted}")
