"""Settings of what is done, and how fast: simulated fleet, repairs, budgets, recovery, classes."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sickbay.contracts.steps import Action
from sickbay.domain.node import Treatment
from sickbay.domain.repair import LADDER
from sickbay.section import Positive, Seconds, Section

Mode = Literal["observe", "approve", "act"]
# A floor with a misspelt name would never be judged, so only names that are judged are taken.
FloorKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^((nccl_(pair_)?busbw|nvbandwidth_(host|device)_[a-z0-9_]+|h2d|d2h|p2p)_gbps"
        r"|fio_(read|write)_(iops|bytes_per_s))$"
    ),
]


class SimulatorSettings(Section):
    """The simulated fleet. `enabled` makes every node of this installation simulated."""

    enabled: bool = False
    port: int = Field(default=0, ge=0, le=65535)
    nodes: int = Field(default=64, ge=1, le=5000)
    gpus_per_node: int = Field(default=8, ge=1, le=16)
    pools: int = Field(default=4, ge=1)
    group_size: int = Field(default=4, ge=1)
    nodes_per_rack: int = Field(default=8, ge=1)
    seed: int = 7
    faults: int = Field(default=0, ge=0)
    faults_start_after_h: Seconds = 0.5
    faults_until_h: Seconds = 20.0
    fault_weights: dict[str, float] = Field(default_factory=dict)
    node_processes: int = Field(default=1, ge=1, le=64)
    technician: bool = True
    technician_h: Positive = 2.0
    bmc_port: int = Field(default=0, ge=0, le=65535)
    bmc_tls: bool = True


class PolicySettings(Section):
    """Durations in seconds of fleet time and limits of the repair loop."""

    drain_deadline_critical_s: Seconds = 0.0
    drain_deadline_major_s: Seconds = 3600.0
    drain_deadline_minor_s: Seconds = 24 * 3600.0
    drain_poll_s: Positive = 15.0
    evict_at_major_deadline: bool = True
    suite_deadline_s: Positive = 20 * 60.0
    check_deadline_s: Positive = 20 * 60.0
    treatment_deadline_s: Positive = 30 * 60.0
    reflash_deadline_s: Positive = 2 * 3600.0
    node_queue_timeout_s: Positive = 300.0
    heartbeat_timeout_s: Positive = 30.0
    inconclusive_wait_s: Positive = 120.0
    inconclusive_limit: int = Field(default=3, ge=1)
    neighbour_wait_s: Positive = 3600.0
    swap_reminder_s: Positive = 8 * 3600.0
    swap_escalation_s: Positive = 3 * 24 * 3600.0
    human_reminder_s: Positive = 8 * 3600.0
    permit_recheck_s: Positive = 900.0
    stopped_recheck_s: Positive = 60.0
    attempts_per_rung: int = Field(default=2, ge=1)
    attempt_memory_s: Positive = 30 * 24 * 3600.0
    probation_s: Seconds = 24 * 3600.0
    proof_passes: int = Field(default=2, ge=1, le=2)
    available: tuple[Treatment, ...] = LADDER


class BudgetSettings(Section):
    """Limits of one pool; `allowance`, `cap`, `max_out` replace the fractions."""

    fraction: float = Field(default=0.02, gt=0, le=1)
    window_s: Positive = 3600.0
    allowance: int | None = Field(default=None, ge=0)
    cap_fraction: float = Field(default=0.10, gt=0, le=1)
    cap_minimum: int = Field(default=3, ge=0)
    cap: int | None = Field(default=None, ge=0)
    max_out: int | None = Field(default=None, ge=0)
    per_group: int = Field(default=1, ge=1)
    storm_factor: Positive = 3.0
    storm_window_s: Positive = 600.0
    cooldown_s: Positive = 1800.0
    settle_s: Positive = 20.0
    reconcile_s: Positive = 3600.0


class RecoverySettings(Section):
    """How often store, scheduler and Temporal are compared, seconds of fleet time."""

    every_s: Positive = 3600.0


class RetentionSettings(Section):
    """For how many days of fleet time what nobody needs any more is kept; 0 keeps it for ever."""

    kernel_events_days: Seconds = 30.0
    would_have_days: Seconds = 90.0
    health_changes_days: Seconds = 90.0
    evidence_days: Seconds = 365.0


class PoolSettings(Section):
    """One pool: its mode, per-action modes, and what it overrides."""

    mode: Mode | None = None
    actions: dict[Action, Mode] = Field(default_factory=dict)
    budget: BudgetSettings | None = None
    policy: PolicySettings | None = None


class ClassSettings(Section):
    """What nodes of one class owe, and how ranks are started on two of them.

    Floors are GB/s, those of fio as they are named. A floor that is not given is not judged: a site
    measures its own.
    """

    floors: dict[FloorKey, Positive] = Field(default_factory=dict)
    nccl_network: str = ""
    nccl_launcher: tuple[str, ...] = Field(default=("mpirun",), min_length=1)
    ib_ports: int | None = Field(default=None, ge=0, le=256)
    ib_rate_gbps: Positive | None = None
    storage_dir: str = Field(default="/var/tmp", pattern="^/")  # noqa: S108 - documented default
