"""One running fleet: the world with everything that acts on it, and its steady beat."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from sickbay.simulator.bmc.behaviours import Behaviours
from sickbay.simulator.config import SimulatorConfig
from sickbay.simulator.firmware import publish
from sickbay.simulator.flashing import Flasher
from sickbay.simulator.kinds import FaultKind
from sickbay.simulator.persist import StateFiles
from sickbay.simulator.plan import PlannedFaults
from sickbay.simulator.power import PowerSwitch
from sickbay.simulator.scheduler import Scheduler
from sickbay.simulator.treatments import Treatments
from sickbay.simulator.world import World

BEAT_S = 0.05
SAVE_CLOCK_EVERY = 20

Answer = TypeVar("Answer")


class Engine:
    """The fleet of one directory, from its first start or from where it stopped.

    Raises:
        UsageError: the directory is in use, or holds another fleet.
    """

    def __init__(self, config: SimulatorConfig) -> None:
        self.config = config
        self.world = World(config, files=StateFiles(config.dir))
        self.scheduler = Scheduler(self.world)
        self.treatments = Treatments(self.world, scheduler=self.scheduler)
        self.power = PowerSwitch(self.world, scheduler=self.scheduler, treatments=self.treatments)
        self.behaviours = Behaviours(self.world)
        self.flasher = Flasher(self.world, treatments=self.treatments)
        self.images = publish(config.dir)
        self._first_start()
        self.planned = PlannedFaults(self.world, treatments=self.treatments)
        self.scheduler.fill()
        self.world.commit(always=True)
        self.world.write_all_boot_ids()

    def change(self, act: Callable[[], Answer]) -> Answer:
        """Do what is due, then this, and save both before the answer leaves."""
        self.world.advance()
        try:
            return act()
        finally:
            self.world.commit()

    def advance(self) -> None:
        """Do what is due by now."""
        self.world.advance()
        self.scheduler.fill()
        self.world.commit()

    async def beat(self) -> None:
        """Advance steadily until cancelled."""
        count = 0
        while True:
            self.advance()
            count += 1
            if count % SAVE_CLOCK_EVERY == 0:
                self.world.commit(always=True)
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        """Save everything and let go of the directory."""
        self.world.commit(always=True)
        self.world.files.close()

    def inventory(self) -> dict[str, Any]:
        """All nodes with their parts, as an asset list knows them: lost parts included."""
        nodes = list(self.world.nodes.values())
        return {
            "pools": list(dict.fromkeys(node.pool for node in nodes)),
            "nodes": [
                {
                    "node": node.name,
                    "pool": node.pool,
                    "group": node.group,
                    "rack": node.rack,
                    "node_class": node.node_class,
                    "parts": [
                        {
                            "slot": gpu.slot,
                            "kind": "gpu",
                            "uuid": gpu.uuid,
                            "serial": gpu.serial,
                            "bus_id": gpu.bus_id,
                        }
                        for gpu in node.gpus
                    ],
                }
                for node in nodes
            ],
        }

    def truth(self) -> dict[str, Any]:
        """What is really wrong now: for tests and reports only."""
        active = [defect.to_dict() for defect in self.world.defects.values()]
        return {"sim_h": self.world.now_h, "faults": active}

    def inject(self, node: str, *, kind: FaultKind, slot: str | None) -> dict[str, Any]:
        """Break something now, and save it."""
        return self.change(lambda: self.treatments.inject(node, kind=kind, slot=slot))

    def _first_start(self) -> None:
        world = self.world
        world.log(
            "fleet_started",
            nodes=len(world.nodes),
            seed=self.config.seed,
            time_scale=self.config.time_scale,
            resumed=world.resumed,
        )
        if not world.resumed:
            for node in world.nodes.values():
                world.boot(node)


async def stop_task(task: "asyncio.Task[None]") -> None:
    """Cancel a task of ours and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
