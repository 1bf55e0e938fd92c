"""How the management controllers of single nodes misbehave, for tests: chosen per node.

All of these were seen in the field. They change what a controller does and says; what is true of
the hardware stays in the model.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sickbay.simulator.clock import S_PER_H, S_PER_MIN
from sickbay.simulator.world import NotThere, World

# Longer than the two minutes that tools like to wait for a controller.
SILENT_MIN = 4.0


class Behaviour(StrEnum):
    """One way to misbehave."""

    STAGED = "staged"
    COMPLETED_CRITICAL = "completed_critical"
    STUCK_AT_100 = "stuck_at_100"
    TASK_GONE = "task_gone"
    TASK_DIED = "task_died"
    SLOW = "slow"
    WRONG_DIGEST = "wrong_digest"
    LOST_ANSWER = "lost_answer"
    REFUSED = "refused"
    SLOW_BMC = "slow_bmc"
    UNREACHABLE = "unreachable"


BEHAVIOUR_SAYS: dict[Behaviour, str] = {
    Behaviour.STAGED: "a flash ends well, and the new version runs after the next start",
    Behaviour.COMPLETED_CRITICAL: "a flash is Completed and Critical, and changes nothing",
    Behaviour.STUCK_AT_100: "a flash stays Running at 100 % for some minutes before it ends",
    Behaviour.TASK_GONE: "a flash goes on while its task cannot be found any more",
    Behaviour.TASK_DIED: "a flash dies half-way and its task cannot be found any more",
    Behaviour.SLOW: "a flash takes ten times as long",
    Behaviour.WRONG_DIGEST: "the image's digest is found wrong, and nothing changes",
    Behaviour.LOST_ANSWER: "an act is done, and its answer never comes",
    Behaviour.REFUSED: "an act is refused, and not done",
    Behaviour.SLOW_BMC: "after a change of power the controller is silent for some minutes",
    Behaviour.UNREACHABLE: "the controller does not answer at all",
}
FLASH = frozenset(
    (
        Behaviour.STAGED,
        Behaviour.COMPLETED_CRITICAL,
        Behaviour.STUCK_AT_100,
        Behaviour.TASK_GONE,
        Behaviour.TASK_DIED,
        Behaviour.SLOW,
        Behaviour.WRONG_DIGEST,
    )
)
ACTS = ("", "power", "flash")
NEEDS = ("boot", "power_cycle")


@dataclass
class Misbehaviour:
    """One that is set for a node.

    Attributes:
        times: how many acts it still spoils; 0 for all until it is cleared.
        act: power, flash, or any when empty (`lost_answer` and `refused`).
        status: of a refusal.
        minutes: simulated; how long `stuck_at_100` and `slow_bmc` last.
        needs: what a `staged` version waits for, boot or power_cycle.
        hang_s: real seconds that a lost answer keeps its client waiting.
    """

    node: str
    behaviour: Behaviour
    times: int = 1
    act: str = ""
    status: int = 503
    minutes: float = SILENT_MIN
    needs: str = "power_cycle"
    hang_s: float = 0.0

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Misbehaviour":
        """From saved state."""
        return cls(**{**data, "behaviour": Behaviour(data["behaviour"])})


class Behaviours:
    """What is set for which node, and which controller is silent until when."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = [Misbehaviour.from_dict(d) for d in world.bmc.get("misbehaviours", [])]
        self._silent: dict[str, float] = dict(world.bmc.get("silent", {}))

    def add(self, wanted: Misbehaviour) -> None:
        """Set one; the same one again replaces it. Raises `NotThere`."""
        self._world.node(wanted.node)
        self._set = [m for m in self._set if not _same(m, wanted)]
        self._set.append(wanted)
        self._world.log("bmc_fault", **asdict(wanted))
        self._save()

    def clear(self, node: str, *, behaviour: Behaviour | None = None) -> int:
        """Take away one or all of a node, its silence included; how many."""
        self._world.node(node)
        kept = [
            m
            for m in self._set
            if m.node != node or (behaviour is not None and m.behaviour is not behaviour)
        ]
        count = len(self._set) - len(kept)
        self._set = kept
        if behaviour is None:
            self._silent.pop(node, None)
        self._world.log("bmc_fault_cleared", node=node, behaviour=behaviour or "all")
        self._save()
        return count

    def listed(self) -> list[dict[str, Any]]:
        """All that are set."""
        return [asdict(m) for m in self._set]

    def take(self, node: str, *, behaviour: Behaviour, act: str = "") -> Misbehaviour | None:
        """The one of this kind that spoils this act, used up once more."""
        for found in self._set:
            if found.node == node and found.behaviour is behaviour and found.act in ("", act):
                if found.times == 1:
                    self._set.remove(found)
                found.times = max(0, found.times - 1)
                self._save()
                return found
        return None

    def next_flash(self, node: str) -> Misbehaviour | None:
        """The one that spoils the next flash; it is not used up by being looked at."""
        return next((m for m in self._set if m.node == node and m.behaviour in FLASH), None)

    def take_flash(self, node: str) -> None:
        """Use up the one that spoiled the flash that began, once."""
        found = self.next_flash(node)
        if found is not None:
            self.take(node, behaviour=found.behaviour)

    def silence(self, node: str, *, minutes: float) -> None:
        """The controller says nothing for a while."""
        self._silent[node] = self._world.now_h + minutes * S_PER_MIN / S_PER_H
        self._save()

    def reachable(self, node: str) -> bool:
        """Whether the node's controller answers now. Raises `NotThere`."""
        if node not in self._world.nodes:
            raise NotThere(f"no node {node!r}")
        if self._silent.get(node, 0.0) > self._world.now_h:
            return False
        return not any(m.node == node and m.behaviour is Behaviour.UNREACHABLE for m in self._set)

    def _save(self) -> None:
        self._world.bmc["misbehaviours"] = self.listed()
        self._world.bmc["silent"] = self._silent
        self._world.bmc_changed = True


def _same(one: Misbehaviour, other: Misbehaviour) -> bool:
    return (one.node, one.behaviour, one.act) == (other.node, other.behaviour, other.act)
