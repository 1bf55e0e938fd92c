"""A scheduler in memory: marks of everybody, jobs, and a gate that is open when no mark stands."""

# ruff: noqa: ARG002 - the signatures are the port's, whatever memory needs of them

from sickbay.contracts.steps import DrainResult, DrainState, Effect, Outcome
from sickbay.domain.gate import is_ours
from sickbay.testing.fleet import MemoryFleet


class MemoryScheduler:
    """The Scheduler port on a `MemoryFleet`.

    Verbs to script: `scheduler.close_gate`, `scheduler.open_gate`, `scheduler.evict` (an `Effect`;
    an ambiguous one took effect) and `scheduler.drain_state` (a `DrainResult`).
    """

    def __init__(self, fleet: MemoryFleet) -> None:
        self._fleet = fleet

    async def close_gate(self, node: str, *, mark: str, reason: str) -> Effect:
        """Place the mark; twice is once."""
        effect = self._call("close_gate", node, mark)
        if _took_effect(effect):
            self._fleet.mark(node, mark, reason=reason)
        return effect

    async def open_gate(self, node: str, *, mark: str) -> Effect:
        """Take the mark away; physics refuses to let sickbay take another's."""
        effect = self._call("open_gate", node, mark)
        self._fleet.must(is_ours(mark), f"{mark} on {node} is not ours to take away")
        if _took_effect(effect):
            self._fleet.unmark(node, mark)
        return effect

    async def drain_state(self, node: str) -> DrainResult:
        """Whether the node is empty, with the jobs that block."""
        fleet = self._fleet
        fleet.log.add("scheduler.drain_state", node=node)
        scripted: DrainResult | None = fleet.log.scripted("scheduler.drain_state", node=node)
        if scripted is not None:
            return scripted
        machine = fleet[node]
        if machine.jobs:
            return DrainResult(DrainState.DRAINING, blocking=tuple(machine.jobs))
        if not machine.drained:
            return DrainResult(DrainState.UNKNOWN, detail="no mark of ours stands on the node")
        return DrainResult(DrainState.DRAINED)

    async def evict(self, node: str, *, mark: str, reason: str) -> Effect:
        """End the jobs, when our mark closes the gate."""
        effect = self._call("evict", node, mark)
        if mark not in self._fleet[node].marks:
            return Effect(Outcome.PERMANENT, f"no mark {mark} on {node}")
        if _took_effect(effect):
            self._fleet[node].jobs.clear()
        return effect

    async def marks(self, node: str) -> tuple[tuple[str, str], ...]:
        """All marks, ours and others'."""
        self._fleet.log.add("scheduler.marks", node=node)
        return tuple(self._fleet[node].marks.items())

    def _call(self, verb: str, node: str, mark: str) -> Effect:
        name = f"scheduler.{verb}"
        self._fleet.log.add(name, node=node, detail=mark, changes=True)
        scripted: Effect | None = self._fleet.log.scripted(name, node=node)
        return scripted or Effect(Outcome.SUCCEEDED)


def _took_effect(effect: Effect) -> bool:
    """An ambiguous answer was lost on its way back: the request itself arrived."""
    return effect.outcome in {Outcome.SUCCEEDED, Outcome.AMBIGUOUS}
