"""Management controllers in memory: power, firmware, and whether a node answers."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sickbay.contracts.firmware import FlashStart, FlashTask, TaskState
from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.firmware import FirmwareImage
from sickbay.domain.node import Treatment
from sickbay.domain.power import PowerState, Pulse
from sickbay.errors import BmcUnknownSystem, BmcUnreachable
from sickbay.testing.fleet import MemoryFleet

TASK = "/redfish/v1/TaskService/Tasks/1"
NO_EFFECT = frozenset({Outcome.TRANSIENT, Outcome.PERMANENT})


class MemoryBmc:
    """The Bmc, Firmware and Witness ports on a `MemoryFleet`.

    Verbs to script: `bmc.switch` (an `Effect`), `bmc.flash` (a `FlashStart`); transient and
    permanent ones had no effect, an ambiguous one had. `bmc.task` (a `FlashTask`) and `bmc.pulse`
    (a `Pulse`) are answers only. `away` holds nodes whose controller does not answer.

    `switched` and `flashed` are what truly happened, in order. A flash is staged: it becomes active
    when the node is switched on, unless `dies` names the node.
    """

    def __init__(
        self, fleet: MemoryFleet, *, versions: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._fleet = fleet
        self._versions = {n: dict(v) for n, v in (versions or {}).items()}
        self._staged: dict[str, dict[str, str]] = {}
        self._resets: dict[str, datetime] = {}
        self._off: set[str] = set()
        self.away: set[str] = set()
        self.dies: set[str] = set()
        self.switched: list[tuple[str, bool]] = []
        self.flashed: list[tuple[str, tuple[str, ...], str]] = []

    # --- Bmc ------------------------------------------------------------------------------------

    async def power_state(self, node: str) -> PowerState:
        """What the controller says. Raises `BmcUnreachable`."""
        self._call("power_state", node)
        return PowerState.OFF if node in self._off else PowerState.ON

    async def last_reset(self, node: str) -> datetime | None:
        """When the node last came out of reset. Raises `BmcUnreachable`."""
        self._call("last_reset", node)
        return self._resets.setdefault(node, self._fleet.now())

    async def switch(self, node: str, *, on: bool) -> Effect:
        """Switch; what is so already is a success and no act."""
        detail = "on" if on else "off"
        self._fleet.log.add("bmc.switch", node=node, detail=detail, changes=True)
        if node in self.away:
            return Effect(Outcome.TRANSIENT, f"the controller of {node} cannot be reached")
        if node not in self._fleet.nodes:
            return Effect(Outcome.PERMANENT, f"no controller knows {node}")
        scripted: Effect | None = self._fleet.log.scripted("bmc.switch", node=node)
        effect = scripted or Effect(Outcome.SUCCEEDED, detail)
        if effect.outcome not in NO_EFFECT and on is (node in self._off):
            self._switch(node, on=on)
        return effect

    def _switch(self, node: str, *, on: bool) -> None:
        machine = self._fleet[node]
        self.switched.append((node, on))
        machine.up = on
        if not on:
            self._fleet.must(not machine.jobs, f"power of {node} cut under {machine.jobs}")
            self._off.add(node)
            return
        self._off.discard(node)
        self._resets[node] = self._fleet.now()
        self._fleet.treat(node, Treatment.POWER_CYCLE, slot=None, operation="")
        staged = self._staged.pop(node, {})
        if staged:
            self._versions.setdefault(node, {}).update(staged)
            self._fleet.treat(node, Treatment.REFLASH, slot=None, operation="")

    def run_version(self, node: str, *, component: str, version: str) -> None:
        """Somebody else's hands: this component runs another version from now on."""
        self._versions.setdefault(node, {})[component] = version

    # --- Firmware -------------------------------------------------------------------------------

    async def versions(self, node: str) -> Mapping[str, str]:
        """Active versions. Raises `BmcUnreachable`."""
        self._call("versions", node)
        return dict(self._versions.get(node, {}))

    async def flash(
        self, node: str, *, image: FirmwareImage, components: Sequence[str]
    ) -> FlashStart:
        """Stage the image, unless a script says otherwise."""
        self._fleet.log.add("bmc.flash", node=node, detail=image.version, changes=True)
        scripted: FlashStart | None = self._fleet.log.scripted("bmc.flash", node=node)
        start = scripted or FlashStart(Effect(Outcome.SUCCEEDED), task=TASK)
        if start.effect.outcome not in NO_EFFECT:
            self.flashed.append((node, tuple(components), image.version))
            if node not in self.dies:
                self._staged[node] = dict.fromkeys(components, image.version)
        return start

    async def task(self, node: str, *, task: str) -> FlashTask:
        """Done at once, unless a script says otherwise."""
        self._fleet.log.add("bmc.task", node=node, detail=task)
        scripted: FlashTask | None = self._fleet.log.scripted("bmc.task", node=node)
        return scripted or FlashTask(TaskState.SUCCEEDED, 100, detail="completed")

    # --- Witness --------------------------------------------------------------------------------

    async def pulse(self, node: str) -> Pulse:
        """Whether the node answers."""
        self._fleet.log.add("bmc.pulse", node=node)
        scripted: Pulse | None = self._fleet.log.scripted("bmc.pulse", node=node)
        return scripted or (Pulse.ANSWERS if self._fleet[node].up else Pulse.SILENT)

    def _call(self, verb: str, node: str) -> None:
        self._fleet.log.add(f"bmc.{verb}", node=node)
        if node in self.away:
            raise BmcUnreachable(f"the controller of {node} cannot be reached", sent=False)
        if node not in self._fleet.nodes:
            raise BmcUnknownSystem(f"no controller knows {node}")
