"""What one step of a repair asks of an activity, and what it answers."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sickbay.domain.firmware import FirmwareTarget
from sickbay.domain.gate import Hold
from sickbay.domain.health import Health, Standing
from sickbay.domain.neighbour import Borrowed
from sickbay.domain.node import Node, Part, Severity, Treatment
from sickbay.domain.proof import Suite, SuiteResult
from sickbay.domain.repair import Attempt


class Outcome(StrEnum):
    """The closed set of answers of one attempt at an outside effect.

    Ambiguous (the answer was lost) is never retried blindly: the state is read again first.
    """

    SUCCEEDED = "succeeded"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    AMBIGUOUS = "ambiguous"


class Permission(StrEnum):
    """What the safety switches say about one action on one pool, at the moment of acting."""

    ACT = "act"
    APPROVE = "approve"
    OBSERVE = "observe"
    STOPPED = "stopped"


class Action(StrEnum):
    """An act on the outside world that the safety switches govern, each by itself."""

    CLOSE_GATE = "close_gate"
    EVICT = "evict"
    DIAGNOSE = "diagnose"
    RESET = "reset"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    REFLASH = "reflash"
    TICKET = "ticket"


@dataclass(frozen=True)
class Effect:
    """One attempt's outcome, with a sentence for people."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class StepRequest:
    """Who acts on which node, and under which operation id. `approved_by` names the approver."""

    repair_id: str
    operation_id: str
    node: str
    pool: str
    approved_by: str | None = None


@dataclass(frozen=True)
class StepResult:
    """Whether an act happened. `withheld` is set when a safety switch kept it from happening."""

    effect: Effect
    withheld: Permission | None = None
    at: datetime | None = None

    @property
    def ok(self) -> bool:
        """Whether the act took effect, now or in an earlier attempt."""
        return self.withheld is None and self.effect.outcome is Outcome.SUCCEEDED


@dataclass(frozen=True)
class GateRequest:
    """Close a node's gate with a hold of ours, or take that hold away."""

    step: StepRequest
    hold: Hold


@dataclass(frozen=True)
class DrainRequest:
    """Empty a node: wait for its jobs until `deadline`, or evict at once."""

    step: StepRequest
    mark: str
    severity: Severity
    started_at: datetime
    deadline: datetime
    evict: bool
    poll_s: float


class DrainState(StrEnum):
    """Whether a node is empty; a query error is unknown, never drained."""

    DRAINED = "drained"
    DRAINING = "draining"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class DrainResult:
    """How a drain stands. `blocking` names what still runs (jobs, pods)."""

    state: DrainState
    blocking: tuple[str, ...] = ()
    detail: str = ""
    withheld: Permission | None = None


@dataclass(frozen=True)
class SuiteRequest:
    """Run a suite on the node: all of it ends by `deadline_s`, each check by `check_deadline_s`.

    `limits_s` are the checks' own outer deadlines, in the suite's order; none is as before there
    were any. `neighbour` is the borrowed node of a check that needs one; such a check ends before
    the borrow.
    """

    step: StepRequest
    suite: Suite
    deadline_s: float
    check_deadline_s: float
    neighbour: Borrowed | None = None
    limits_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class SuiteAnswer:
    """A suite's result, or why none may be had.

    `parts` names the parts (UUID, else serial) that were there when it ended: empty when the node
    could not say, None when it was not asked. `waits` says for whom a suite waited in vain: nothing
    of it has run.
    """

    result: SuiteResult | None
    withheld: Permission | None = None
    parts: tuple[str, ...] | None = None
    waits: str = ""


@dataclass(frozen=True)
class TreatmentRequest:
    """Do `treatment` to one part (or the whole node) once, under the step's operation id.

    `radius` lists the nodes this act can disturb; all must be drained. `firmware` is the wanted
    version of a reflash (None: what the allow-list wants and the node lacks). `silent` says that
    the node's own worker does not answer.
    """

    step: StepRequest
    treatment: Treatment
    part: Part | None
    radius: tuple[str, ...]
    mark: str
    deadline_s: float
    firmware: FirmwareTarget | None = None
    silent: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself now: its boot and the parts it can see."""

    boot_id: str
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class NodeContext:
    """What the store knows of a node when a repair starts.

    `last_return_at` is when the last return's final proof began: findings older than that were
    answered by it. `last_step` is the highest step of the repair whose hold stands, 0 without one.
    """

    node: Node
    last_return_at: datetime | None
    attempts: tuple[Attempt, ...] = ()
    holds: tuple[Hold, ...] = ()
    in_probation: bool = False
    last_step: int = 0


@dataclass(frozen=True)
class PresentHealth:
    """A node's newest health and standing, as scored, and when."""

    health: Health
    standing: Standing
    at: datetime | None

    def recovered_since(self, moment: datetime) -> bool:
        """Whether the node was seen well after `moment`; unknown is no recovery."""
        well = self.standing in {Standing.HEALTHY, Standing.DEGRADED}
        seen = self.at is not None and self.at > moment
        return seen and well and self.health.value is not None


@dataclass(frozen=True)
class StepRecord:
    """One row of a node's history: which stage ended how."""

    repair_id: str
    node: str
    ordinal: int
    stage: str
    outcome: str
    started_at: datetime
    ended_at: datetime
    detail: str = ""
    operation_id: str = ""
    treatment: Treatment | None = None
    part: str = ""
    category: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class RepairRecord:
    """The store's row of one repair; written at start, at each change of stage, and at the end."""

    repair_id: str
    workflow_id: str
    node: str
    pool: str
    stage: str
    reason: str
    severity: Severity
    started_at: datetime
    updated_at: datetime
    part: str = ""
    category: str = ""
    next_step: str = ""
    deadline: datetime | None = None
    confirmed: bool | None = None
    cured_by: Treatment | None = None
    ending: str | None = None
    ended_at: datetime | None = None
    ended_by: str = ""
    paused_by: str | None = None


@dataclass(frozen=True)
class TicketDraft:
    """A request to people about one part of one node: `key` finds the same ticket again."""

    key: str
    node: str
    pool: str
    rack: str
    slot: str
    part_uuid: str
    part_serial: str
    category: str
    title: str
    body: str
    repair_id: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class TicketRequest:
    """Ask people for work on a part, where the safety switches let us."""

    step: StepRequest
    draft: TicketDraft


@dataclass(frozen=True)
class TicketAnswer:
    """The ticket's id, or the switch that withheld it."""

    ticket: str | None
    withheld: Permission | None = None


@dataclass(frozen=True)
class PageDraft:
    """An urgent call. The same `key` is one page, however often it is asked."""

    key: str
    pool: str
    summary: str
    detail: str = ""
    node: str | None = None
    urgent: bool = True
    labels: dict[str, str] = field(default_factory=dict)
