"""Messages and shapes of a node's repair."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sickbay.domain.health import Health
from sickbay.domain.node import Category, Node, Severity, Treatment
from sickbay.domain.repair import Ending, Limits, Progress, Stage


@dataclass(frozen=True)
class Fault:
    """One finding about a node, as reported to its repair.

    `id` makes a repeated report one report; `source` is the kind of evidence (`telemetry`,
    `kernel_log`, `person`, `dcgm`, `nvidia_smi`). `treatment` is the first rung the finding names.
    """

    id: str
    node: str
    observed_at: datetime
    reason: str
    severity: Severity
    category: Category | None
    source: str
    hard: bool
    slot: str | None = None
    part_uuid: str | None = None
    treatment: Treatment | None = None
    health: Health | None = None
    detail: str = ""


@dataclass(frozen=True)
class RepairPolicy:
    """Durations (seconds, already divided by the time scale), limits and choices of one pool."""

    drain_deadline_critical_s: float = 0.0
    drain_deadline_major_s: float = 3600.0
    drain_deadline_minor_s: float = 24 * 3600.0
    drain_poll_s: float = 15.0
    evict_at_major_deadline: bool = True
    suite_deadline_s: float = 20 * 60.0
    check_deadline_s: float = 20 * 60.0
    treatment_deadline_s: float = 30 * 60.0
    reflash_deadline_s: float = 2 * 3600.0
    node_queue_timeout_s: float = 300.0
    heartbeat_timeout_s: float = 30.0
    inconclusive_wait_s: float = 120.0
    inconclusive_limit: int = 3
    neighbour_wait_s: float = 3600.0
    swap_reminder_s: float = 8 * 3600.0
    swap_escalation_s: float = 3 * 24 * 3600.0
    human_reminder_s: float = 8 * 3600.0
    permit_recheck_s: float = 900.0
    stopped_recheck_s: float = 60.0
    hour_s: float = 3600.0
    attempts_per_rung: int = 2
    attempt_memory_s: float = 30 * 24 * 3600.0
    probation_s: float = 24 * 3600.0
    proof_passes: int = 2
    available: tuple[Treatment, ...] = (Treatment.RESET, Treatment.REBOOT, Treatment.SWAP)

    def limits(self) -> Limits:
        """What of this bounds the ladder."""
        return Limits(
            attempts_per_rung=self.attempts_per_rung,
            inconclusive=self.inconclusive_limit,
            proof_passes=self.proof_passes,
            available=self.available,
        )

    def drain_deadline_s(self, severity: Severity) -> float:
        """How long jobs may take to end before the drain is paged, by severity."""
        if severity is Severity.CRITICAL:
            return self.drain_deadline_critical_s
        if severity is Severity.MAJOR:
            return self.drain_deadline_major_s
        return self.drain_deadline_minor_s


class Work(StrEnum):
    """Hands-on work that changes no serial."""

    RESEATED = "reseated"
    CLEANED = "cleaned"
    CABLE = "cable"
    OTHER = "other"


@dataclass(frozen=True)
class PartReplaced:
    """A technician replaced the part in `slot`; `serial` is the new part's."""

    slot: str
    serial: str
    by: str


@dataclass(frozen=True)
class WorkDone:
    """A technician did work that changed no serial."""

    work: Work
    by: str
    slot: str | None = None
    note: str = ""


@dataclass(frozen=True)
class OperatorNote:
    """A person asks for something, with a name and a reason."""

    by: str
    reason: str = ""


@dataclass(frozen=True)
class NeedsTime:
    """The technician needs `hours` more before the next reminder."""

    hours: float
    by: str
    reason: str = ""


@dataclass(frozen=True)
class Skip:
    """A person sends the repair to another stage."""

    stage: str
    by: str
    reason: str = ""


class CommandKind(StrEnum):
    """What a person may make a repair do."""

    ABORT = "abort"
    SKIP = "skip"
    RELEASE = "release"
    RESUME = "resume"


@dataclass(frozen=True)
class Command:
    """A person's accepted order, carried until the loop has obeyed it."""

    kind: CommandKind
    by: str
    reason: str = ""
    stage: Stage | None = None


@dataclass(frozen=True)
class StepView:
    """One finished stage, for people."""

    ordinal: int
    stage: str
    outcome: str
    detail: str
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True)
class RepairView:
    """Answer of the `status` query and of every update."""

    repair_id: str
    node: str
    pool: str
    stage: str
    since: datetime
    reason: str
    severity: Severity
    next_step: str
    deadline: datetime | None
    slot: str | None
    serial: str | None
    passes: int
    passes_owed: int
    paused_by: str | None
    waiting_for: str
    ending: str | None


@dataclass(frozen=True)
class RepairState:
    """All a repair knows, carried whole over continue-as-new. `run` names one that was adopted."""

    repair_id: str
    started_at: datetime
    stage_since: datetime
    node: Node
    last_return_at: datetime | None = None
    progress: Progress = field(default_factory=Progress)
    faults: tuple[Fault, ...] = ()
    reason: str = ""
    ordinal: int = 0
    deadline: datetime | None = None
    waiting_for: str = ""
    permit: bool = False
    gate_closed: bool = False
    clean_since: datetime | None = None
    proven_from: datetime | None = None
    proven_parts: tuple[str, ...] | None = None
    command: Command | None = None
    tickets: tuple[str, ...] = ()
    steps: tuple[StepView, ...] = ()
    paused_by: str | None = None
    ending: Ending | None = None
    ended_by: str = ""
    run: str = ""


@dataclass(frozen=True)
class AdoptedHold:
    """A standing hold of ours whose repair was lost: the new run goes on under the same hold.

    `ordinal` is the last step on record, `part` the key its attempts are counted under, `tickets`
    those it opened and that are still open: they close when the node is proven.
    """

    repair_id: str
    reason: str
    placed_at: datetime
    start_at: Stage = Stage.DIAGNOSE
    severity: Severity = Severity.MAJOR
    category: Category | None = None
    part: str = ""
    started_at: datetime | None = None
    ordinal: int = 0
    tickets: tuple[str, ...] = ()


@dataclass(frozen=True)
class RepairInput:
    """Argument of `NodeRepair`. `carried` is the state of the run before, on continue-as-new.

    `faults` that came while a repair was ending begin the next one, of the next `generation`.
    `adopted` makes this run go on under a hold whose repair was lost.
    """

    node: str
    pool: str
    policy: RepairPolicy
    carried: RepairState | None = None
    faults: tuple[Fault, ...] = ()
    generation: int = 0
    adopted: AdoptedHold | None = None
