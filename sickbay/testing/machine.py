"""A node's own ports in memory: its checks, its hands and its operation journal."""

# ruff: noqa: ARG002 - the signatures are the port's, whatever memory needs of them

import asyncio

from sickbay.contracts.steps import Effect, NodeFacts, Outcome
from sickbay.domain.node import Category, Node, Part, Severity, Treatment
from sickbay.domain.proof import Check, CheckName
from sickbay.domain.reading import Finding, FindingKind, Reading, Verdict
from sickbay.errors import NodeUnreadable
from sickbay.ports import CheckOutput, JournalEntry
from sickbay.testing.fleet import Defect, MemoryFleet, MemoryNode

NOT_ACTS = frozenset({Treatment.SWAP, Treatment.RESTART_APP})


class MemoryCheckRunner:
    """The CheckRunner port: a check fails exactly when it sees a defect that is there.

    Verbs to script: `checks.<check name>` with a `Verdict`, a whole `Reading` or a `CheckOutput`.
    `hold` keeps a node's checks running until `let_go`.
    """

    def __init__(self, fleet: MemoryFleet) -> None:
        self._fleet = fleet
        self._held: dict[str, asyncio.Event] = {}

    def hold(self, node: str) -> None:
        """The next checks of this node do not end."""
        self._held[node] = asyncio.Event()

    def let_go(self, node: str) -> None:
        """The held checks go on."""
        self._held.pop(node).set()

    async def run(
        self, check: Check, *, node: Node, deadline_s: float, neighbour: Node | None = None
    ) -> CheckOutput:
        """Look at the machine; physics refuses an active test beside a job.

        A check across two nodes sees what is wrong with either, and cannot tell which.
        """
        fleet, machine = self._fleet, self._fleet[node.id]
        verb = f"checks.{check.name}"
        fleet.log.add(verb, node=node.id, detail=check.label)
        fleet.must(not machine.jobs, f"{check.label} on {node.id} beside {machine.jobs}")
        if node.id in self._held:
            await self._held[node.id].wait()
        seen = [d for d in machine.defects if check.name in d.seen_by]
        if check.name is CheckName.NCCL_PAIR:
            return self._across(check, machine, other=neighbour)
        scripted = fleet.log.scripted(verb, node=node.id)
        if isinstance(scripted, CheckOutput):
            return scripted
        if isinstance(scripted, Reading):
            return CheckOutput(scripted, scripted.why.encode())
        verdict = scripted or (Verdict.FAIL if seen else Verdict.PASS)
        found = tuple(_finding(machine, d) for d in seen) if verdict is Verdict.FAIL else ()
        why = ", ".join(f.reason for f in found) or str(verdict)
        raw = f"{check.label} of {node.id} in {machine.boot_id}: {why}".encode()
        return CheckOutput(Reading(str(check.name), verdict, why, findings=found), raw)

    def _across(self, check: Check, machine: MemoryNode, *, other: Node | None) -> CheckOutput:
        """One run over two nodes; physics wants the other one idle and behind a mark of ours."""
        if other is None:
            return CheckOutput(Reading(str(check.name), Verdict.INCONCLUSIVE, "no neighbour"), b"")
        fleet, there = self._fleet, self._fleet[other.id]
        fleet.log.add("checks.across", node=other.id, detail=machine.id)
        fleet.must(there.drained, f"{check.label} uses {other.id}, which is not drained")
        defects = [d for d in (*machine.defects, *there.defects) if check.name in d.seen_by]
        scripted = fleet.log.scripted(f"checks.{check.name}", node=machine.id)
        verdict = scripted or (Verdict.FAIL if defects else Verdict.PASS)
        slow = Finding(
            part=None,
            reason="bandwidth_below_floor",
            severity=Severity.MAJOR,
            kind=FindingKind.HARDWARE,
            treatment=Treatment.REBOOT,
            category=Category.FABRIC,
        )
        findings = (slow,) if verdict is Verdict.FAIL else ()
        why = f"{check.label} of {machine.id} with {other.id} in {machine.boot_id}: {verdict}"
        return CheckOutput(Reading(str(check.name), verdict, why, findings=findings), why.encode())


def _finding(machine: MemoryNode, defect: Defect) -> Finding:
    return Finding(
        part=machine.part(defect.slot).bus_id if defect.slot else None,
        reason=defect.reason,
        severity=defect.severity,
        kind=FindingKind.HARDWARE,
        treatment=defect.first_rung,
        category=defect.category,
    )


class MemoryNodeControl:
    """The NodeControl port of one node.

    Verbs to script: `control.<treatment>` with an `Effect`; a permanent one had no effect, an
    ambiguous one had. `hold` keeps acts, and `hold_facts` facts, from ending until `let_go`.
    """

    def __init__(self, fleet: MemoryFleet, *, node: str) -> None:
        self._fleet = fleet
        self._node = node
        self._effects: dict[str, Effect] = {}
        self._free = asyncio.Event()
        self._free.set()
        self._facts_free = asyncio.Event()
        self._facts_free.set()

    def hold(self) -> None:
        """The next acts do not end."""
        self._free.clear()

    def hold_facts(self) -> None:
        """The next facts are not given."""
        self._facts_free.clear()

    def let_go(self) -> None:
        """What was held ends."""
        self._free.set()
        self._facts_free.set()

    async def boot_id(self) -> str:
        """The present boot id. Raises `NodeUnreadable` while the node is down."""
        return self._machine().boot_id

    async def facts(self) -> NodeFacts:
        """What the node sees of itself. Raises `NodeUnreadable` while it is down."""
        self._fleet.log.add("control.facts", node=self._node)
        await self._facts_free.wait()
        machine = self._machine()
        return NodeFacts(machine.boot_id, parts=tuple(machine.parts))

    async def start(self, treatment: Treatment, *, part: Part | None, operation_id: str) -> None:
        """Act once per operation id; physics refuses an act on a node that is not drained."""
        fleet, node = self._fleet, self._node
        verb = f"control.{treatment}"
        fleet.log.add(verb, node=node, detail=operation_id, changes=True)
        fleet.must(treatment not in NOT_ACTS, f"{treatment} is no act of a node")
        fleet.must(fleet[node].drained, f"{treatment} of {node}, which is not drained")
        fleet.must(operation_id not in self._effects, f"{operation_id} was started twice")
        effect = fleet.log.scripted(verb, node=node) or Effect(Outcome.SUCCEEDED)
        self._effects[operation_id] = effect
        if effect.outcome is not Outcome.PERMANENT:
            slot = part.slot if part else None
            fleet.treat(node, treatment, slot=slot, operation=operation_id)

    async def progress(
        self, treatment: Treatment, *, part: Part | None, operation_id: str, boot_id_before: str
    ) -> Effect | None:
        """The outcome, None while the act is held. Raises `NodeUnreadable` while down."""
        self._machine()
        return self._effects.get(operation_id) if self._free.is_set() else None

    def _machine(self) -> MemoryNode:
        machine = self._fleet[self._node]
        if not machine.up:
            raise NodeUnreadable(f"{self._node} is down")
        return machine


class MemoryJournal:
    """The OperationJournal port; it outlives the worker objects a test throws away."""

    def __init__(self) -> None:
        self.entries: dict[str, JournalEntry] = {}

    def lookup(self, operation_id: str) -> JournalEntry | None:
        """The entry, None when the operation never began."""
        return self.entries.get(operation_id)

    def begin(self, operation_id: str, *, boot_id: str) -> JournalEntry:
        """The entry, made now when there is none."""
        known = self.entries.get(operation_id)
        if known is not None:
            return known
        self.entries[operation_id] = JournalEntry(
            operation_id, boot_id=boot_id, fresh=False, effect=None
        )
        return JournalEntry(operation_id, boot_id=boot_id, fresh=True, effect=None)

    def finish(self, operation_id: str, *, effect: Effect) -> None:
        """Record the outcome. Raises `LookupError` when the operation never began."""
        if operation_id not in self.entries:
            raise LookupError(f"{operation_id} never began here")
        boot_id = self.entries[operation_id].boot_id
        self.entries[operation_id] = JournalEntry(
            operation_id, boot_id=boot_id, fresh=False, effect=effect
        )
