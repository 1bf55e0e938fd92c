"""The power of each chassis: on, off and back, with the seconds that takes.

What is done here needs no help of the node: power goes whether or not its system answers.
"""

from enum import StrEnum

from sickbay.simulator.clock import S_PER_H
from sickbay.simulator.hardware import Node, Power
from sickbay.simulator.scheduler import Scheduler
from sickbay.simulator.treatments import Treatments
from sickbay.simulator.world import NotNow, World

# Simulated seconds, of the order of what management controllers were seen to take.
SWITCH_S = 5.0
SHUTDOWN_S = 60.0
CYCLE_OFF_S = 10.0
# Shorter without power, and the charge in the capacitors keeps a wedged part wedged.
DRAIN_S = 5.0


class ResetType(StrEnum):
    """What a management controller can be asked to do with the power of its node."""

    ON = "On"
    FORCE_OFF = "ForceOff"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"
    FORCE_RESTART = "ForceRestart"
    POWER_CYCLE = "PowerCycle"


class PowerSwitch:
    """Switches the power of the nodes of one world."""

    def __init__(self, world: World, *, scheduler: Scheduler, treatments: Treatments) -> None:
        self.world = world
        self._scheduler = scheduler
        self._treatments = treatments
        world.handlers["power_done"] = self._done
        for node in world.nodes.values():
            if node.power_until_h is not None:
                world.at(node.power_until_h, event="power_done", key=node.name)

    def act(self, name: str, *, kind: ResetType) -> bool:
        """Begin what was asked; False when it is so already.

        Raises:
            NotThere: no such node.
            NotNow: that needs power which is not there (`field` "off"), or the power is between
                on and off (`field` "busy").
        """
        node = self.world.node(name)
        if kind is ResetType.ON:
            return self._on(node, by=kind)
        if kind in (ResetType.FORCE_OFF, ResetType.GRACEFUL_SHUTDOWN):
            return self._off(node, by=kind)
        if node.power is Power.OFF:
            raise NotNow(f"{name} has no power", field="off")
        if node.power is not Power.ON:
            raise NotNow(f"{name} is {node.power}", field="busy")
        if kind is ResetType.POWER_CYCLE:
            self._off(node, by=kind)
            node.power_next = Power.ON
            return True
        self.world.log("power_restart", node=name, by=kind, boot_id=node.boot_id)
        self._treatments.restart(node, why="power restart", cold=False)
        return True

    def _off(self, node: Node, *, by: ResetType) -> bool:
        if node.power is Power.OFF or node.power is Power.GOING_OFF:
            # Off is what was asked for last: a cycle under way does not come back by itself.
            node.power_next = None
            if node.power is Power.OFF:
                node.power_until_h = None
            self.world.touch(node)
            return False
        if node.power is Power.GOING_ON:
            raise NotNow(f"{node.name} is {node.power}", field="busy")
        self.world.log("power_off", node=node.name, by=by, boot_id=node.boot_id)
        self._scheduler.kill(node, why="power off")
        node.down_until_h = None
        takes_s = SHUTDOWN_S if by is ResetType.GRACEFUL_SHUTDOWN else SWITCH_S
        self._go(node, to=Power.GOING_OFF, takes_s=takes_s)
        return True

    def _on(self, node: Node, *, by: ResetType) -> bool:
        if node.power is Power.ON or node.power is Power.GOING_ON:
            return False
        if node.power is Power.GOING_OFF:
            raise NotNow(f"{node.name} is {node.power}", field="busy")
        self.world.log("power_on", node=node.name, by=by)
        off_since_h = self.world.now_h if node.off_since_h is None else node.off_since_h
        node.cold = (self.world.now_h - off_since_h) * S_PER_H >= DRAIN_S
        node.power_next = None
        self._go(node, to=Power.GOING_ON, takes_s=SWITCH_S)
        return True

    def _go(self, node: Node, *, to: Power, takes_s: float | None) -> None:
        node.power = to
        node.power_until_h = None
        if takes_s is not None:
            node.power_until_h = self.world.now_h + takes_s / S_PER_H
            self.world.at(node.power_until_h, event="power_done", key=node.name)
        self.world.touch(node)

    def _done(self, key: str) -> None:
        node = self.world.nodes[key]
        # Stale when somebody asked for something else meanwhile.
        if node.power_until_h is None or node.power_until_h > self.world.now_h:
            return
        if node.power is Power.GOING_OFF:
            node.off_since_h = self.world.now_h
            self._go(node, to=Power.OFF, takes_s=CYCLE_OFF_S if node.power_next else None)
        elif node.power is Power.OFF:
            self._on(node, by=ResetType.POWER_CYCLE)
        elif node.power is Power.GOING_ON:
            node.off_since_h = None
            self._go(node, to=Power.ON, takes_s=None)
            self._treatments.restart(node, why="power on", cold=node.cold)
