"""The scheduler: marks that keep jobs off a node, and synthetic jobs that run, end and die.

It knows nothing of health. A mark has a name and an owner's reason; who takes away which mark is
the owner's business, and no other mark moves with it.
"""

import random
from typing import Any

from sickbay.simulator.hardware import Gpu, Job, Mark, Node
from sickbay.simulator.world import NotNow, World

USERS = ("amara", "bjorn", "chen", "dilnoza", "emeka", "farah", "gita", "hugo")
WHOLE_NODE_SHARE = 0.7
SHORTEST_H = 0.02


class Scheduler:
    """Places jobs on nodes that are up and carry no mark."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.handlers["job_end"] = self._job_end
        for node in world.nodes.values():
            if node.job is not None:
                world.at(node.job.end_h, event="job_end", key=f"{node.name}/{node.job.id}")

    def view(self, name: str) -> dict[str, Any]:
        """What anybody may read about one node. Raises `NotThere`."""
        node = self.world.node(name)
        clock = self.world.clock
        jobs = [] if node.job is None else [node.job]
        return {
            "node": node.name,
            "up": node.up,
            "draining": bool(node.marks),
            "marks": [
                {"mark": m.mark, "reason": m.reason, "at": m.at} for m in node.marks.values()
            ],
            "jobs": [
                {
                    "id": job.id,
                    "user": job.user,
                    "gpus": job.slots,
                    "started_at": job.started_at,
                    "ends_at": round(clock.wall_at(job.end_h), 3),
                }
                for job in jobs
            ],
            "state": _state(node),
        }

    def drain(self, name: str, *, mark: str, reason: str) -> dict[str, Any]:
        """Place a mark; placing it again changes nothing. Raises `NotThere`."""
        node = self.world.node(name)
        if mark not in node.marks:
            node.marks[mark] = Mark(mark, reason, round(self.world.clock.wall(), 6))
            self.world.touch(node)
            self.world.log("gate_closed", node=name, mark=mark, reason=reason)
        return self.view(name)

    def resume(self, name: str, *, mark: str) -> dict[str, Any]:
        """Take away this mark. Raises `NotThere`, `NotNow` when it does not stand."""
        node = self.world.node(name)
        if mark not in node.marks:
            raise NotNow(f"no mark {mark!r} stands on {name}")
        del node.marks[mark]
        self.world.touch(node)
        self.world.log("gate_opened", node=name, mark=mark)
        return self.view(name)

    def evict(self, name: str, *, mark: str, reason: str) -> dict[str, Any]:
        """End the jobs of a marked node; they wait to start elsewhere.

        Raises:
            NotThere: no such node.
            NotNow: that mark does not stand.
        """
        node = self.world.node(name)
        if mark not in node.marks:
            raise NotNow(f"no mark {mark!r} stands on {name}, so its jobs stay")
        job = node.job
        if job is not None:
            left_h = max(job.end_h - self.world.now_h, SHORTEST_H)
            self.world.waiting.append(
                {"user": job.user, "gpus": len(job.slots), "left_h": left_h, "was": job.id}
            )
            self._drop(node)
            self.world.log("job_evicted", node=name, job=job.id, mark=mark, reason=reason)
        return self.view(name)

    def kill(self, node: Node, *, why: str, slot: str | None = None) -> None:
        """The hardware under a job is gone."""
        if node.job is not None:
            job = node.job
            self._drop(node)
            where = {} if slot is None else {"slot": slot}
            self.world.log("job_killed", node=node.name, job=job.id, why=why, **where)

    def fail(self, node: Node, *, why: str) -> None:
        """A job ends by its own error."""
        if node.job is not None:
            job = node.job
            self._drop(node)
            self.world.log("job_ended", node=node.name, job=job.id, state="failed", why=why)

    def fill(self) -> None:
        """Start jobs until the wanted share of the fleet is busy."""
        nodes = self.world.nodes.values()
        busy = sum(node.job is not None for node in nodes)
        missing = round(self.world.config.jobs.busy * len(self.world.nodes)) - busy
        if missing <= 0:
            return
        free = [n for n in nodes if n.job is None and n.up and not n.marks]
        for _ in range(min(missing, len(free))):
            rng = self.world.draws.next("jobs")
            node = free.pop(rng.randrange(len(free)))
            self._start(node, rng=rng)

    def _start(self, node: Node, *, rng: random.Random) -> None:
        usable = [gpu.slot for gpu in node.gpus if gpu.visible]
        if not usable:
            return
        load = self.world.config.jobs
        want = len(usable) if rng.random() < WHOLE_NODE_SHARE else max(1, len(usable) // 2)
        hours = max(SHORTEST_H, load.median_h * rng.lognormvariate(0.0, load.sigma))
        user, was = rng.choice(USERS), {}
        if self.world.waiting:
            first = self.world.waiting.pop(0)
            want, hours, user = int(first["gpus"]), float(first["left_h"]), str(first["user"])
            was = {"requeued_from": first["was"]}
        now_h = self.world.now_h
        job = Job(
            id=f"j{self.world.number('job'):05d}",
            user=user,
            pid=rng.randrange(4000, 900_000),
            slots=usable[:want],
            start_h=now_h,
            end_h=now_h + hours,
            started_at=round(self.world.clock.wall(), 3),
        )
        node.job = job
        for gpu in _gpus(node, job):
            gpu.set_load(True, now_h=now_h)
        self.world.touch(node)
        self.world.at(job.end_h, event="job_end", key=f"{node.name}/{job.id}")
        self.world.log("job_started", node=node.name, job=job.id, user=user, gpus=job.slots, **was)

    def _job_end(self, key: str) -> None:
        name, job_id = key.split("/")
        node = self.world.nodes[name]
        if node.job is not None and node.job.id == job_id:
            self._drop(node)
            self.world.log("job_ended", node=name, job=job_id, state="completed")

    def _drop(self, node: Node) -> None:
        job = node.job
        if job is not None:
            for gpu in _gpus(node, job):
                gpu.set_load(False, now_h=self.world.now_h)
            node.job = None
            self.world.touch(node)


def _gpus(node: Node, job: Job) -> list[Gpu]:
    return [gpu for gpu in node.gpus if gpu.slot in job.slots]


def _state(node: Node) -> str:
    if not node.up:
        return "down"
    return ("allocated" if node.job else "idle") + ("+drain" if node.marks else "")
