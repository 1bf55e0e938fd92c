"""Flashes of firmware: what goes on inside a node while one runs, and how each ends."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sickbay.simulator.bmc.behaviours import Behaviour, Misbehaviour
from sickbay.simulator.clock import S_PER_H, S_PER_MIN
from sickbay.simulator.firmware import BadImage, Image, components, family_of
from sickbay.simulator.hardware import Node, Power
from sickbay.simulator.treatments import Treatments
from sickbay.simulator.world import NotNow, World

# Simulated. With the start that a staged version waits for, the half hour that nodes are out.
FLASH_MIN = 15.0
VERIFY_SHARE = 0.2
DEATH_SHARE = 0.5
GONE_SHARE = 0.25
SLOW_FACTOR = 10.0
KEPT = 200
WHOLE = 100


@dataclass
class Flash:
    """One flash from its start to its end.

    Attributes:
        ends_h: when it ends by itself; `ended_h` and `ended_at` (unix seconds) when it did.
        full_h: when its progress reaches 100 %.
        reset_at: the node's newest start when it began; another one means it was interrupted.
        needs: the kind of start its version waits for; empty when it runs at once.
        state: running, done or failed.
        why: of a failure, for people; `failure` is the name of its message.
    """

    id: str
    node: str
    components: list[str]
    family: str
    version: str
    started_h: float
    started_at: float
    full_h: float
    ends_h: float
    reset_at: float
    needs: str = ""
    behaviour: str = ""
    state: str = "running"
    failure: str = ""
    why: str = ""
    ended_h: float | None = None
    ended_at: float | None = None

    def percent(self, *, now_h: float) -> int:
        """How far it is; a failed one stays where it was said to be."""
        if self.state == "done" or (self.critical and self.state == "failed"):
            return WHOLE
        return self._share(now_h)

    @property
    def critical(self) -> bool:
        """Whether it says Completed although it failed."""
        return self.behaviour == Behaviour.COMPLETED_CRITICAL

    def gone(self, *, now_h: float) -> bool:
        """Whether the controller has lost track of it."""
        if self.behaviour not in (Behaviour.TASK_GONE, Behaviour.TASK_DIED):
            return False
        return now_h >= self.started_h + GONE_SHARE * (self.full_h - self.started_h)

    def _share(self, now_h: float) -> int:
        whole = max(self.full_h - self.started_h, 1e-9)
        at_h = now_h if self.ended_h is None else self.ended_h
        return max(0, min(WHOLE, int(WHOLE * (at_h - self.started_h) / whole)))


class Flasher:
    """Runs the flashes of one world."""

    def __init__(self, world: World, *, treatments: Treatments) -> None:
        self.world = world
        self._treatments = treatments
        self.flashes = {k: Flash(**v) for k, v in world.bmc.get("flashes", {}).items()}
        world.handlers["flash_ends"] = self._due
        for flash in self.flashes.values():
            if flash.state == "running":
                world.at(flash.ends_h, event="flash_ends", key=flash.id)

    def begin(
        self,
        name: str,
        *,
        targets: Sequence[str],
        image: Image | BadImage | OSError,
        needs: str = "",
        spoiled: Misbehaviour | None = None,
    ) -> Flash:
        """Start a flash; an image that is none, or is for something else, fails on its way.

        Args:
            name: the node.
            targets: the components to write.
            image: what is written, or why there is nothing to write.
            needs: boot or power_cycle when the version waits for one.
            spoiled: how this flash goes wrong.

        Raises:
            NotThere: no such node.
            NotNow: another flash runs (`field` "busy"), or there is no power (`field` "off").
        """
        node = self.world.node(name)
        self.check(name)
        if any(f.node == name and f.state == "running" for f in self.flashes.values()):
            raise NotNow(f"{name} is being flashed", field="busy")
        if node.power is not Power.ON:
            raise NotNow(f"{name} has no power", field="off")
        flash = self._new(node, targets, needs)
        self._load(flash, image)
        if spoiled is not None:
            self._spoil(flash, spoiled)
        if flash.failure:
            flash.ends_h = flash.started_h + VERIFY_SHARE * (flash.full_h - flash.started_h)
        self.flashes[flash.id] = flash
        for old in list(self.flashes)[:-KEPT]:
            del self.flashes[old]
        self.world.log(
            "flash_started",
            node=name,
            task=flash.id,
            components=flash.components,
            version=flash.version,
        )
        self.world.at(flash.ends_h, event="flash_ends", key=flash.id)
        self._save()
        return flash

    def check(self, name: str) -> None:
        """End the node's flash if its power went or it was started anew meanwhile."""
        node = self.world.node(name)
        for flash in self.flashes.values():
            if flash.node != name or flash.state != "running":
                continue
            if node.power is not Power.ON or node.last_reset_at != flash.reset_at:
                self._fail(flash, failure="ApplyFailed", why="the node lost its power or restarted")

    def _new(self, node: Node, targets: Sequence[str], needs: str) -> Flash:
        number = self.world.number("flash")
        now_h = self.world.now_h
        share = self.world.draws.keyed("flash", node.name, number).uniform(0.9, 1.1)
        full_h = now_h + FLASH_MIN * share * S_PER_MIN / S_PER_H
        return Flash(
            id=str(number),
            node=node.name,
            components=list(targets),
            family="",
            version="",
            started_h=now_h,
            started_at=self.world.clock.wall(),
            full_h=full_h,
            ends_h=full_h,
            reset_at=node.last_reset_at,
            needs=needs,
        )

    def _load(self, flash: Flash, image: Image | BadImage | OSError) -> None:
        """Take over what the image is for; one that does not fit fails later, as in life."""
        if isinstance(image, Image):
            flash.family, flash.version = image.family, image.version
            if any(family_of(target) != image.family for target in flash.components):
                flash.failure, flash.why = "ApplyFailed", f"the image is for {image.family}"
            return
        bad = isinstance(image, BadImage)
        flash.failure, flash.why = "VerificationFailed" if bad else "TransferFailed", str(image)

    def _spoil(self, flash: Flash, spoiled: Misbehaviour) -> None:
        flash.behaviour = spoiled.behaviour
        lasts_h = flash.full_h - flash.started_h
        if spoiled.behaviour is Behaviour.STAGED:
            flash.needs = spoiled.needs
        elif spoiled.behaviour is Behaviour.SLOW:
            flash.full_h = flash.started_h + SLOW_FACTOR * lasts_h
            flash.ends_h = flash.full_h
        elif spoiled.behaviour is Behaviour.STUCK_AT_100:
            flash.ends_h = flash.full_h + spoiled.minutes * S_PER_MIN / S_PER_H
        elif spoiled.behaviour is Behaviour.TASK_DIED:
            flash.ends_h = flash.started_h + DEATH_SHARE * lasts_h
        elif spoiled.behaviour is Behaviour.WRONG_DIGEST:
            flash.failure, flash.why = "VerificationFailed", "the image's digest is wrong"

    def _due(self, key: str) -> None:
        flash = self.flashes.get(key)
        if flash is None:
            return
        self.check(flash.node)
        if flash.state != "running":
            return
        node = self.world.node(flash.node)
        parts = components(node)
        lost = [c for c in flash.components if (gpu := parts[c]) is not None and not gpu.answers]
        if flash.failure:
            self._fail(flash, failure=flash.failure, why=flash.why)
        elif flash.critical:
            self._fail(flash, failure="ApplyFailed", why="no progress in the allocated time")
        elif flash.behaviour == Behaviour.TASK_DIED:
            self._fail(flash, failure="ApplyFailed", why="the update process died")
        elif lost:
            self._fail(flash, failure="ApplyFailed", why=f"{lost[0]} does not answer")
        else:
            self._succeed(flash, node)

    def _succeed(self, flash: Flash, node: Node) -> None:
        flash.state = "done"
        self._end(flash)
        self.world.log(
            "flash_done",
            node=flash.node,
            task=flash.id,
            components=flash.components,
            version=flash.version,
            needs=flash.needs or "nothing",
        )
        for component in flash.components:
            if flash.needs:
                node.staged[component] = [flash.version, flash.needs]
                self.world.touch(node)
            else:
                self._treatments.run_firmware(node, component=component, version=flash.version)
        self._save()

    def _fail(self, flash: Flash, *, failure: str, why: str) -> None:
        flash.state, flash.failure, flash.why = "failed", failure, why
        self._end(flash)
        self.world.log("flash_failed", node=flash.node, task=flash.id, why=why)
        self._save()

    def _end(self, flash: Flash) -> None:
        flash.ended_h, flash.ended_at = self.world.now_h, self.world.clock.wall()

    def _save(self) -> None:
        self.world.bmc["flashes"] = {key: asdict(f) for key, f in self.flashes.items()}
        self.world.bmc_changed = True
