"""All the loop asks of the outside world, as small async Protocols.

An adapter makes one attempt and classifies it (`Outcome`); who retries is decided elsewhere.
An answer that cannot be had is an exception of `sickbay.errors` or an explicit unknown, never a
default that reads as healthy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sickbay.contracts.budget import GateClosed as GateClosedMessage
from sickbay.contracts.budget import (
    PermitAdopted,
    PermitAsk,
    PermitReleased,
    WithholdAsk,
    WithholdEnded,
)
from sickbay.contracts.firmware import FlashStart, FlashTask
from sickbay.contracts.repair import Fault
from sickbay.contracts.steps import (
    Action,
    DrainResult,
    Effect,
    NodeContext,
    NodeFacts,
    PageDraft,
    Permission,
    PresentHealth,
    RepairRecord,
    StepRecord,
    TicketDraft,
)
from sickbay.domain.evidence import EvidenceRef
from sickbay.domain.firmware import FirmwareImage
from sickbay.domain.gate import Hold
from sickbay.domain.health import Health, Standing
from sickbay.domain.neighbour import Bystander
from sickbay.domain.node import Category, Node, Part, Treatment
from sickbay.domain.power import PowerState
from sickbay.domain.proof import Check
from sickbay.domain.reading import Reading


@dataclass(frozen=True)
class NodeSample:
    """One collector's answer about one node at one moment.

    `text` is the raw metrics page, None when the collector did not answer (then `error` says why).
    `events` are kernel log entries newer than the last call: (boot id, monotonic us, message, at).
    """

    node: str
    at: datetime
    text: str | None
    error: str = ""
    events: tuple["KernelEntry", ...] = ()


@dataclass(frozen=True)
class KernelEntry:
    """One record of the kernel's own log; (boot id, monotonic_us, message) is its identity."""

    boot_id: str
    monotonic_us: int
    message: str
    at: datetime


class SignalSource(Protocol):
    """Where readings come from."""

    async def read(self, nodes: Sequence[str]) -> list[NodeSample]:
        """One sample per node asked, in the same order; a silent node is a sample with an error."""


class Scheduler(Protocol):
    """The seam to whatever places jobs: the gate is its bit."""

    async def close_gate(self, node: str, *, mark: str, reason: str) -> Effect:
        """Place our mark: no new job starts. Idempotent on the mark; leaves other marks alone."""

    async def open_gate(self, node: str, *, mark: str) -> Effect:
        """Take away this mark of ours only. A mark that is already gone is a success."""

    async def drain_state(self, node: str) -> DrainResult:
        """Whether the node is truly empty; anything unclear is `unknown`."""

    async def evict(self, node: str, *, mark: str, reason: str) -> Effect:
        """End the jobs of a node whose gate our mark closes."""

    async def marks(self, node: str) -> tuple[tuple[str, str], ...]:
        """All marks on the node as (mark, reason), ours and others'."""


@dataclass(frozen=True)
class CheckOutput:
    """A check's reading and the raw text it was read from."""

    reading: Reading
    raw: bytes


class CheckRunner(Protocol):
    """Runs one check on this node."""

    async def run(
        self, check: Check, *, node: Node, deadline_s: float, neighbour: Node | None = None
    ) -> CheckOutput:
        """Run to the end or to the deadline; a timeout or a missing tool is inconclusive.

        `neighbour` is the other node of a check across two: without it that is inconclusive.
        """


class Collectors(Protocol):
    """Reads what a person would want to see of a failed node, before anything is treated."""

    async def collect(self, category: Category, *, deadline_s: float) -> bytes:
        """Everything that is to be read for this category; empty when there is nothing to read.

        A command that fails, hangs or is missing says so in the text; nothing is raised.
        """


class NodeControl(Protocol):
    """Acts on this node, and looks at it."""

    async def boot_id(self) -> str:
        """The present boot id. Raises `NodeUnreadable` while the node is down."""

    async def facts(self) -> NodeFacts:
        """The present boot id and the parts the node can see. Raises `NodeUnreadable`."""

    async def start(self, treatment: Treatment, *, part: Part | None, operation_id: str) -> None:
        """Start the act detached from this process, once per operation id; returns when started."""

    async def progress(
        self, treatment: Treatment, *, part: Part | None, operation_id: str, boot_id_before: str
    ) -> Effect | None:
        """How the started act stands: None while it runs, else the outcome the machine shows."""


class OperationJournal(Protocol):
    """The node's own synchronous record of operations: started, then done, by operation id."""

    def lookup(self, operation_id: str) -> "JournalEntry | None":
        """The entry of this operation, None when it never began here."""

    def begin(self, operation_id: str, *, boot_id: str) -> "JournalEntry":
        """The entry of this operation, made now when there is none. Durable before it returns."""

    def finish(self, operation_id: str, *, effect: Effect) -> None:
        """Record the outcome. Durable before it returns."""


@dataclass(frozen=True)
class JournalEntry:
    """What the journal knows: `fresh` is True only for the call that created the entry."""

    operation_id: str
    boot_id: str
    fresh: bool
    effect: Effect | None


class Bmc(Protocol):
    """A node's management controller: power, out of band."""

    async def power_state(self, node: str) -> PowerState:
        """What the controller says of the node's power. Raises `BmcError`."""

    async def switch(self, node: str, *, on: bool) -> Effect:
        """One attempt to switch the power on, or off without asking the host.

        What is so already is a success. Transient: it certainly did not happen. Ambiguous: the
        answer was lost, so read the state before anything else.
        """

    async def last_reset(self, node: str) -> datetime | None:
        """When the node last came out of reset; None when not told. Raises `BmcError`."""


class Firmware(Protocol):
    """Reads and writes firmware through whatever manages it."""

    async def versions(self, node: str) -> Mapping[str, str]:
        """Active version per component, empty where not told. Raises `BmcError`."""

    async def flash(
        self, node: str, *, image: FirmwareImage, components: Sequence[str]
    ) -> FlashStart:
        """Check the image's digest and send it, once; the flash itself is then followed by `task`.

        Permanent with `sent=False`: the digest differs, the image cannot be read, or the controller
        cannot take it.
        """

    async def task(self, node: str, *, task: str) -> FlashTask:
        """How a flash stands; a controller that does not answer is `unknown`, never an error."""


class Evidence(Protocol):
    """Content-addressed store of raw facts."""

    async def put(self, data: bytes, *, kind: str) -> EvidenceRef:
        """Store once by SHA-256; storing the same bytes again is the same reference."""

    async def get(self, sha256: str) -> bytes:
        """The bytes, checked against the digest. Raises `EvidenceMissing`."""


class Tickets(Protocol):
    """Requests to people, answered in days."""

    async def open(self, draft: TicketDraft) -> str:
        """The id of the ticket with this key: found again, reopened or created."""

    async def comment(self, ticket: str, *, text: str) -> Effect:
        """Add a line to the ticket."""

    async def close(self, ticket: str, *, text: str) -> Effect:
        """Close the ticket with a last line."""


class Pager(Protocol):
    """Urgent calls, answered in minutes."""

    async def page(self, draft: PageDraft) -> Effect:
        """Deliver once per key."""


class Safety(Protocol):
    """The switches that decide, at the moment of acting, whether an act may happen.

    A switch that cannot be read answers `stopped`.
    """

    async def permission(self, *, pool: str, action: Action) -> Permission:
        """What may be done now; reads the stop switch and the mode every time."""

    async def would_have(
        self, *, node: str, pool: str, action: Action, detail: str, why: str
    ) -> None:
        """Record an act that a switch withheld."""


class Inventory(Protocol):
    """All nodes on record."""

    async def nodes(self, *, pool: str | None = None) -> tuple[Node, ...]:
        """The nodes of one pool, or of the fleet."""

    async def node(self, node: str) -> Node | None:
        """One node, None when it is not on record."""


class Permits(Protocol):
    """The way to a pool's budget: messages that start it when it does not run."""

    async def ask(self, pool: str, ask: PermitAsk) -> None:
        """Ask for a permit; the answer comes to the repair as a message."""

    async def adopt(self, pool: str, message: PermitAdopted) -> None:
        """Tell that a node is out already, under a hold whose repair goes on."""

    async def gate_closed(self, pool: str, message: GateClosedMessage) -> None:
        """Tell when the gate was truly closed."""

    async def release(self, pool: str, message: PermitReleased) -> None:
        """Give a permit or a place in the queue back."""

    async def ask_withhold(self, pool: str, ask: WithholdAsk) -> None:
        """Ask to keep new work off a node without a permit."""

    async def end_withhold(self, pool: str, message: WithholdEnded) -> None:
        """Say that the reason to withhold is gone."""

    async def running(self, repairs: Mapping[str, str]) -> Mapping[str, bool]:
        """Whether each repair (id to workflow id) still runs; an unreadable one is left out."""


class Repairs(Protocol):
    """The way to a node's repair: messages that start it when it does not run."""

    async def report(self, fault: Fault, *, pool: str) -> None:
        """Start the node's repair or merge the fault into the running one."""


class Records(Protocol):
    """The read model and the ledger: everything people and reports read."""

    async def node_context(
        self, node: str, *, now: datetime, memory_s: float, probation_s: float
    ) -> NodeContext:
        """What is known when a repair starts. Raises `UnknownNode`."""

    async def save_repair(self, record: RepairRecord) -> None:
        """Write or replace a repair's row; an older `updated_at` never replaces a newer."""

    async def save_step(self, record: StepRecord) -> None:
        """Write one step, once per (repair id, ordinal)."""

    async def place_hold(self, hold: Hold) -> None:
        """Record a hold before the scheduler is asked. Idempotent on the id."""

    async def lift_hold(self, hold_id: str, *, by: str, at: datetime) -> None:
        """Record that a hold ended. Idempotent."""

    async def holds(self, node: str) -> tuple[Hold, ...]:
        """The holds that stand on a node."""

    async def borrowed(self) -> tuple[Hold, ...]:
        """The holds on borrowed neighbours that stand, of the whole fleet."""

    async def bystanders(self, pool: str) -> tuple[Bystander, ...]:
        """Every node of a pool as it stands on record, for the choice of a neighbour."""

    async def gate_moved(self, node: str, *, open_: bool, at: datetime) -> None:
        """Record the exact time the scheduler's bit changed: the ledger of usable compute."""

    async def returned(
        self, node: str, *, repair_id: str, at: datetime, proven_from: datetime | None = None
    ) -> None:
        """Record a proven return.

        `proven_from` is when its last proof began (default: `at`): that proof answers every finding
        older than this, and none newer.
        """

    async def replace_part(self, node: str, *, slot: str, part: Part, at: datetime) -> None:
        """Re-key a slot: the old part leaves it, the new one starts with an empty history."""

    async def present_health(self, node: str) -> PresentHealth:
        """The newest health on record; unknown when there is none."""

    async def save_health(
        self,
        node: str,
        *,
        health: Health,
        standing: Standing,
        at: datetime,
        rules: str,
        epoch: int | None = None,
    ) -> None:
        """Record a change of health or standing, with the rule set's version and digest.

        `epoch` is the fencing epoch of the scorer that says so. Raises `Superseded` when the pool
        has a newer one; nothing is recorded then.
        """

    async def save_permit(
        self, pool: str, *, repair_id: str, node: str, event: str, at: datetime, detail: str
    ) -> None:
        """Record a permit event: asked, granted, refused, released."""

    async def save_ticket(self, draft: TicketDraft, *, at: datetime) -> str:
        """Find by key (reopen when closed) or create a local ticket; its id."""

    async def ticket_line(self, ticket: str, *, text: str, at: datetime, close: bool) -> None:
        """Add a line to a local ticket, and close it when asked. Raises `UnknownTicket`."""

    async def save_page(self, draft: PageDraft, *, at: datetime) -> bool:
        """Record a page, once per key; True when it is new."""
