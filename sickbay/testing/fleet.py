"""The outside in memory: nodes with parts, marks, jobs, boots and defects, and their physics."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sickbay.domain.gate import is_ours
from sickbay.domain.node import Category, Node, Part, PartKind, Severity, Treatment
from sickbay.domain.proof import CheckName
from sickbay.testing.calls import CallLog, PhysicsBroken

SEEN_BY = frozenset({CheckName.GPU_STATE, CheckName.DCGM_DIAG})
BOOTS = frozenset({Treatment.REBOOT, Treatment.POWER_CYCLE})


@dataclass(frozen=True)
class Defect:
    """Something truly broken: where, which checks see it, and which treatments cure it.

    `first_rung` is the treatment that the finding of a check names. `slot` None is the node itself.
    """

    slot: str | None
    reason: str
    category: Category
    cured_by: frozenset[Treatment]
    severity: Severity = Severity.MAJOR
    first_rung: Treatment | None = None
    seen_by: frozenset[CheckName] = SEEN_BY

    def is_cured_by(self, treatment: Treatment, *, slot: str | None) -> bool:
        """Whether this treatment of `slot` (None: of the whole node) ends it."""
        here = treatment in BOOTS or slot in {None, self.slot}
        return here and treatment in self.cured_by


@dataclass(frozen=True)
class DoneAct:
    """One act that truly happened to a machine."""

    node: str
    treatment: Treatment
    slot: str | None
    operation_id: str


@dataclass
class MemoryNode:
    """One machine as it truly is; `parts` is what sits in it, whatever the records say."""

    id: str
    parts: list[Part]
    marks: dict[str, str] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    boots: int = 1
    up: bool = True

    @property
    def boot_id(self) -> str:
        """The present boot."""
        return f"{self.id}-boot-{self.boots}"

    @property
    def gate_open(self) -> bool:
        """The scheduler's bit."""
        return not self.marks

    @property
    def drained(self) -> bool:
        """A mark of ours stands and no job runs."""
        return any(is_ours(mark) for mark in self.marks) and not self.jobs

    def part(self, slot: str) -> Part:
        """The part that truly sits in `slot`."""
        return next(p for p in self.parts if p.slot == slot)


class MemoryFleet:
    """All machines, the log of calls, and the acts that truly happened.

    Args:
        nodes: the nodes as the records know them at the start.
        now: the clock of everything here.
    """

    def __init__(self, nodes: Sequence[Node], *, now: Callable[[], datetime]) -> None:
        self.nodes = {n.id: MemoryNode(n.id, parts=list(n.parts)) for n in nodes}
        self.records = {n.id: n for n in nodes}
        self.now = now
        self.log = CallLog()
        self.acts: list[DoneAct] = []
        self.gate_moves: list[tuple[datetime, str, bool]] = []
        self.broken: list[str] = []

    def __getitem__(self, node: str) -> MemoryNode:
        return self.nodes[node]

    def script(self, verb: str, *answers: Any, node: str = "") -> None:
        """Answer the next calls of a verb with these, e.g. `checks.dcgm_diag`, `control.reset`."""
        self.log.script(verb, *answers, node=node)

    def must(self, allowed: bool, why: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Refuse what physics does not allow, and keep it on record.

        Raises:
            PhysicsBroken: it is not allowed.
        """
        if not allowed:
            self.broken.append(why)
            raise PhysicsBroken(why)

    # --- what happens to machines ---------------------------------------------------------------

    def break_part(
        self,
        node: str,
        slot: str | None,
        *,
        cured_by: Collection[Treatment],
        reason: str = "xid_79",
        category: Category = Category.COMPUTE,
        severity: Severity = Severity.MAJOR,
        first_rung: Treatment | None = None,
        seen_by: Collection[CheckName] = SEEN_BY,
    ) -> Defect:
        """Break a part (or, without a slot, the node)."""
        defect = Defect(
            slot,
            reason=reason,
            category=category,
            cured_by=frozenset(cured_by),
            severity=severity,
            first_rung=first_rung,
            seen_by=frozenset(seen_by),
        )
        self[node].defects.append(defect)
        return defect

    def mend(self, node: str) -> None:
        """Everything wrong with a node goes away by itself."""
        self[node].defects.clear()

    def swap_part(self, node: str, slot: str, *, serial: str) -> Part:
        """A technician puts another part into `slot`; what was wrong with the old one leaves."""
        machine = self[node]
        new = replace(machine.part(slot), uuid=f"GPU-{serial}", serial=serial)
        machine.parts = [new if p.slot == slot else p for p in machine.parts]
        machine.defects = [d for d in machine.defects if d.slot != slot]
        return new

    def treat(self, node: str, treatment: Treatment, *, slot: str | None, operation: str) -> None:
        """An act takes effect: boots change, and defects that it cures are gone."""
        machine = self[node]
        machine.boots += treatment in BOOTS
        machine.defects = [d for d in machine.defects if not d.is_cured_by(treatment, slot=slot)]
        self.acts.append(DoneAct(node, treatment, slot, operation))

    def mark(self, node: str, mark: str, *, reason: str) -> None:
        """A mark is placed, by whomever."""
        was_open = self[node].gate_open
        self[node].marks.setdefault(mark, reason)
        if was_open:
            self.gate_moves.append((self.now(), node, False))

    def unmark(self, node: str, mark: str) -> None:
        """A mark is taken away, by whomever."""
        was_open = self[node].gate_open
        self[node].marks.pop(mark, None)
        if self[node].gate_open and not was_open:
            self.gate_moves.append((self.now(), node, True))

    def done(self, node: str | None = None) -> list[Treatment]:
        """Treatments that truly happened, in order."""
        return [a.treatment for a in self.acts if node in {None, a.node}]


def some_nodes(
    count: int, *, pool: str = "train", gpus: int = 2, group_size: int = 4
) -> tuple[Node, ...]:
    """Nodes `n001`, `n002`, … of one pool with GPUs, in groups and racks of `group_size`."""
    return tuple(
        Node(
            id=f"n{i + 1:03d}",
            pool=pool,
            group=f"{pool}-g{i // group_size}",
            rack=f"rack{i // group_size}",
            node_class="hgx-8",
            parts=tuple(
                Part(
                    slot=f"gpu{g}",
                    kind=PartKind.GPU,
                    uuid=f"GPU-n{i + 1:03d}-{g}",
                    serial=f"S{i + 1:03d}{g}",
                    bus_id=f"0000:{g + 1:02x}:00",
                )
                for g in range(gpus)
            ),
        )
        for i in range(count)
    )
