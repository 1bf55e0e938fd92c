"""What people, tools and bad luck do to the hardware: faults, resets, reboots, new parts, work."""

from collections.abc import Collection
from typing import Any

from sickbay.simulator import hang, kernel, rails
from sickbay.simulator.clock import S_PER_H, S_PER_MIN
from sickbay.simulator.defects import (
    Act,
    Case,
    Defect,
    absent_after,
    calm,
    cured_by,
    new_defect,
    note_xid,
    show,
    undo,
    wakes_under_stress,
)
from sickbay.simulator.firmware import WEDGING, component_of, components
from sickbay.simulator.fleet import new_gpu
from sickbay.simulator.hardware import Gpu, Node, Power
from sickbay.simulator.kinds import FaultKind, Work
from sickbay.simulator.physics import exercised, memory_errors
from sickbay.simulator.scheduler import Scheduler
from sickbay.simulator.world import NotNow, NotThere, World

RESET_MIN = 1.2
REBOOT_MIN = 12.0
REBOOT_LEAST_REAL_S = 0.3


class Treatments:
    """Acts on the hardware of one world."""

    def __init__(self, world: World, *, scheduler: Scheduler) -> None:
        self.world = world
        self.scheduler = scheduler
        world.handlers["boot_done"] = self._boot_done
        world.handlers["defect_wakes"] = self._wake
        for node in world.nodes.values():
            if node.down_until_h is not None:
                world.at(node.down_until_h, event="boot_done", key=node.name)
        for defect in world.defects.values():
            if defect.wakes_h is not None:
                world.at(defect.wakes_h, event="defect_wakes", key=defect.id)

    def inject(self, name: str, *, kind: FaultKind, slot: str | None = None) -> dict[str, Any]:
        """Break something now.

        Raises:
            NotThere: no such node or slot.
            NotNow: the node is down, or nothing there can break any more.
        """
        node = self.world.node(name)
        if not node.up:
            raise NotNow(f"{name} is down: nothing of it can break now")
        if kind is FaultKind.HOST_HANG:
            return hang.hang(self.world, node=node)
        if kind is FaultKind.SLOW_LINK:
            return rails.slow_down(self.world, node=node, slot=slot)
        gpu = self.world.gpu(name, slot=slot)[1] if slot else self._victim(node, kind=kind)
        if gpu is None or not gpu.visible or self.world.defects_of(name, slot=gpu.slot):
            where = gpu.slot if gpu else "every slot"
            raise NotNow(f"{name}: {where} has a fault already or is off the bus")
        defect_id = self._break(node, gpu=gpu, kind=kind)
        return {"id": defect_id, "node": name, "slot": gpu.slot, "kind": kind}

    def reset(self, name: str, *, bus_id: str) -> float:
        """Reset one GPU; the simulated minutes it takes.

        Raises:
            NotThere: nothing was enumerated at that bus id.
            NotNow: it is lost, or somebody uses it (`field` says which: lost, in_use).
        """
        node = self.world.node(name)
        gpu = node.by_bus_id(bus_id)
        if gpu is None or gpu.index is None:
            raise NotThere(f"{name} has no GPU at {bus_id}")
        if gpu.lost:
            raise NotNow(f"{bus_id} does not answer", field="lost")
        now_h = self.world.now_h
        if node.held(gpu) or now_h < gpu.resetting_until_h:
            raise NotNow(f"{bus_id} is in use", field="in_use")
        gpu.clear_volatile(now_h=now_h)
        gpu.resetting_until_h = now_h + RESET_MIN * S_PER_MIN / S_PER_H
        self.world.touch(node)
        self.world.log("gpu_reset", node=name, slot=gpu.slot, serial=gpu.serial)
        self._after(node, slots=[gpu.slot], act=Act.RESET)
        return RESET_MIN

    def reboot(self, name: str) -> None:
        """The node goes down and comes back. Raises `NotThere`, `NotNow` while it is down."""
        node = self.world.node(name)
        if not node.up:
            raise NotNow(f"{name} is down")
        self.world.log("reboot", node=name, boot_id=node.boot_id)
        self.restart(node, why="reboot", cold=False)

    def restart(self, node: Node, *, why: str, cold: bool) -> None:
        """Everything that ran ends now, and a boot begins."""
        self.scheduler.kill(node, why=why)
        rng = self.world.draws.keyed("reboot", node.name, node.boots)
        hours = REBOOT_MIN * rng.uniform(0.9, 1.1) * S_PER_MIN / S_PER_H
        hours = max(hours, self.world.clock.simulated_h(REBOOT_LEAST_REAL_S))
        node.down_until_h = self.world.now_h + hours
        node.cold = cold
        node.last_reset_at = self.world.clock.wall()
        self.world.touch(node)
        self.world.at(node.down_until_h, event="boot_done", key=node.name)

    def replace(self, name: str, *, slot: str) -> dict[str, Any]:
        """A technician puts a new part into a slot and starts the node again.

        Raises:
            NotThere: no such node or slot.
            NotNow: the node is down.
        """
        if rails.is_nic(slot):
            return self._on_rails(name, slot=slot, work=None)
        node, old = self._for_hands(name, slot=slot)
        self.scheduler.kill(node, why="power off")
        new = new_gpu(name, slot=slot, generation=old.generation + 1, draws=self.world.draws)
        node.gpus[node.gpus.index(old)] = new
        self.world.log(
            "part_replaced", node=name, slot=slot, old_serial=old.serial, serial=new.serial
        )
        for defect in self.world.defects_of(name, slot=slot):
            self._cured(defect, by="part_replaced")
        # What was written waits in the part that is gone.
        node.staged.pop(component_of(new), None)
        self._plug_in(node)
        return {"old_serial": old.serial, "serial": new.serial, "uuid": new.uuid}

    def work(self, name: str, *, slot: str, work: Work) -> dict[str, Any]:
        """A technician works on a part that stays in. Raises as `replace`."""
        if rails.is_nic(slot):
            return self._on_rails(name, slot=slot, work=work)
        node, gpu = self._for_hands(name, slot=slot)
        self.scheduler.kill(node, why="power off")
        self.world.log("work_done", node=name, slot=slot, work=work, serial=gpu.serial)
        for defect in self.world.defects_of(name, slot=slot):
            case = Case(defect, node, gpu, self.world.now_h)
            if cured_by(case, act=Act.WORK, work=work):
                undo(case)
                self._cured(defect, by=str(work))
        self._plug_in(node)
        return {"serial": gpu.serial, "uuid": gpu.uuid}

    def run_firmware(
        self, node: Node, *, component: str, version: str, starting: bool = False
    ) -> None:
        """A written version begins to run; unless the node is starting, a GPU starts anew."""
        node.staged.pop(component, None)
        self.world.log("firmware_active", node=node.name, component=component, version=version)
        self.world.revision[node.name] += 1
        self.world.touch(node)
        gpu = components(node)[component]
        if gpu is None:
            node.firmware[component] = version
            return
        gpu.vbios = version
        if starting:
            self._try_firmware(node, gpu=gpu)
        else:
            if node.held(gpu):
                self.scheduler.kill(node, why="firmware", slot=gpu.slot)
            gpu.clear_volatile(now_h=self.world.now_h)
            self._after(node, slots=[gpu.slot], act=Act.REFLASH)
        if version == WEDGING and not self.world.defects_of(node.name, slot=gpu.slot):
            self._break(node, gpu=gpu, kind=FaultKind.FIRMWARE_WEDGED)

    def _try_firmware(self, node: Node, *, gpu: Gpu) -> None:
        for defect in self.world.defects_of(node.name, slot=gpu.slot):
            case = Case(defect, node, gpu, self.world.now_h)
            if cured_by(case, act=Act.REFLASH):
                undo(case)
                self._cured(defect, by=str(Act.REFLASH))

    def _on_rails(self, name: str, *, slot: str, work: Work | None) -> dict[str, Any]:
        """New NICs, or work on those that stay in; without power, as with any part."""
        node = self.world.node(name)
        if not node.up:
            raise NotNow(f"{name} is down; it comes back by itself")
        nics = rails.named(node, slot=slot)
        self.scheduler.kill(node, why="power off")
        answer = rails.handle(self.world, node=node, nics=nics, work=work)
        self._plug_in(node)
        return answer

    def exercise(
        self, name: str, *, what: str, minutes: float, indices: Collection[int]
    ) -> list[dict[str, Any]]:
        """Load one unit of those GPUs that answer and are free; what a program measures on each."""
        node = self.world.node(name)
        now_h = self.world.now_h
        found = []
        for gpu in [g for g in node.gpus if g.visible and not node.held(g)]:
            if gpu.index not in indices:
                continue
            errors = 0
            if what == "memory":
                errors = memory_errors(gpu, minutes=minutes)
                self._stress(node, gpu=gpu, minutes=minutes)
                self.world.touch(node)
            rail = node.rail_gbps(gpu)
            measured = exercised(gpu, now_h=now_h, bit_errors=errors, rail_gbps=rail)
            found.append({"index": gpu.index, **measured})
        return found

    def _break(self, node: Node, *, gpu: Gpu, kind: FaultKind) -> str:
        now_h, draws = self.world.now_h, self.world.draws
        defect_id = f"f{self.world.number('fault'):04d}"
        self.world.log(
            "fault_injected",
            node=node.name,
            slot=gpu.slot,
            fault=kind,
            id=defect_id,
            serial=gpu.serial,
        )
        if kind is FaultKind.APP_ERROR:
            self._app_error(node, gpu=gpu, defect_id=defect_id)
        else:
            defect = new_defect(defect_id, kind=kind, node=node, gpu=gpu, now_h=now_h, draws=draws)
            self._show(Case(defect, node, gpu, now_h))
        return defect_id

    def _stress(self, node: Node, *, gpu: Gpu, minutes: float) -> None:
        for defect in self.world.defects_of(node.name, slot=gpu.slot):
            case = Case(defect, node, gpu, self.world.now_h)
            if wakes_under_stress(case, minutes=minutes, draws=self.world.draws):
                self._show(case)
            elif defect.asleep:
                self.world.keep_defect(defect)

    def _victim(self, node: Node, *, kind: FaultKind) -> Gpu | None:
        rng = self.world.draws.keyed("faults", "victim", self.world.numbers.get("fault", 0))
        whole = [
            g for g in node.gpus if g.visible and not self.world.defects_of(node.name, slot=g.slot)
        ]
        loaded = [g for g in whole if node.held(g)]
        pick = loaded if kind is FaultKind.APP_ERROR and loaded else whole
        return rng.choice(pick) if pick else None

    def _app_error(self, node: Node, *, gpu: Gpu, defect_id: str) -> None:
        rng = self.world.draws.keyed("faults", defect_id)
        code, text = rng.choice(kernel.APP_LINES)
        job = node.job if node.held(gpu) else None
        line = kernel.xid(gpu, code=code, text=text, job=job)
        if job is None:
            unknown = "pid='<unknown>', name=<unknown>"
            line = line.replace(unknown, f"pid={rng.randrange(4000, 900_000)}, name=python")
        self.world.say(node, line)
        # A program that repeats the kernel's words is not the kernel.
        self.world.say(node, f"caught CUDA error, dmesg says: {line}", transport=kernel.PROGRAM)
        note_xid(gpu, code=code, now_h=self.world.now_h)
        self.world.touch(node)
        if job is not None:
            self.scheduler.fail(node, why=f"Xid {code}")

    def _show(self, case: Case) -> None:
        show(case)
        for line in case.lines:
            self.world.say(case.node, line)
        if case.kills_job and case.job is not None:
            self.scheduler.kill(case.node, why="gpu", slot=case.gpu.slot)
        self.world.touch(case.node)
        self.world.keep_defect(case.defect)

    def _after(self, node: Node, *, slots: list[str], act: Act) -> None:
        """Each defect of these slots is cured by the act, falls asleep, or shows again."""
        for defect in [d for d in self.world.defects_of(node.name) if d.slot in slots]:
            _, gpu = self.world.gpu(node.name, slot=defect.slot)
            case = Case(defect, node, gpu, self.world.now_h)
            if cured_by(case, act=act):
                undo(case)
                self._cured(defect, by=str(act))
            elif calm(case, draws=self.world.draws):
                self.world.keep_defect(defect)
                if defect.wakes_h is not None:
                    self.world.at(defect.wakes_h, event="defect_wakes", key=defect.id)
            else:
                self._show(case)

    def _cured(self, defect: Defect, *, by: str) -> None:
        self.world.drop_defect(defect)
        self.world.log(
            "fault_cured",
            node=defect.node,
            slot=defect.slot,
            fault=defect.kind,
            id=defect.id,
            by=by,
        )

    def _wake(self, key: str) -> None:
        defect = self.world.defects.get(key)
        now_h = self.world.now_h
        if defect is None or not defect.asleep or (defect.wakes_h or 0.0) > now_h:
            return
        node, gpu = self.world.gpu(defect.node, slot=defect.slot)
        # A boot calms it anew and sets the next time itself.
        if node.up:
            self._show(Case(defect, node, gpu, now_h))

    def _for_hands(self, name: str, *, slot: str) -> tuple[Node, Gpu]:
        node, gpu = self.world.gpu(name, slot=slot)
        waits = node.power is Power.OFF or hang.hung(self.world, node=node)
        if not node.up and not waits:
            raise NotNow(f"{name} is down; it comes back by itself")
        return node, gpu

    def _plug_in(self, node: Node) -> None:
        """Hands work without power, and switch it on when they are done."""
        node.power, node.power_until_h, node.power_next = Power.ON, None, None
        node.off_since_h = None
        node.cold = True
        node.last_reset_at = self.world.clock.wall()
        self._start_up(node)

    def _boot_done(self, key: str) -> None:
        node = self.world.nodes[key]
        if node.down_until_h is not None and node.down_until_h <= self.world.now_h:
            self._start_up(node)

    def _start_up(self, node: Node) -> None:
        """Everything volatile starts anew; whatever is still broken shows in the new boot."""
        now_h = self.world.now_h
        for gpu in node.gpus:
            gpu.answers = True
            gpu.clear_volatile(now_h=now_h)
            gpu.resetting_until_h = 0.0
        act = Act.POWER_CYCLE if node.cold else Act.REBOOT
        hang.started(self.world, node=node, by=str(act))
        node.cold = False
        for component, (version, needs) in list(node.staged.items()):
            if act is Act.POWER_CYCLE or needs == "boot":
                self.run_firmware(node, component=component, version=version, starting=True)
        for defect in [d for d in self.world.defects_of(node.name) if absent_after(d, act=act)]:
            self._show(Case(defect, node, self.world.gpu(node.name, slot=defect.slot)[1], now_h))
        self.world.boot(node)
        slots = [g.slot for g in node.gpus if g.answers]
        self._after(node, slots=slots, act=act)
