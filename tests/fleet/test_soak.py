"""A seeded soak: faults, kills and people's orders at random, judged by the simulator's own log."""

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from sickbay.contracts.repair import OperatorNote, RepairView, Skip
from sickbay.domain.repair import Stage
from sickbay.errors import Refused, SickbayError
from sickbay.store.queries import node_view
from sickbay.testing import judge

SEEDS = [int(seed) for seed in os.environ.get("SICKBAY_TEST_SOAK_SEEDS", "1").split(",")]
SCALE = 720
ALLOWANCE = 4
FAULTS = 24
CHAOS_S = 70.0
# People who give orders at random at the same time.
MEDDLERS = 3
VICTIMS = ("workers.control", "workers.node", "temporal")
# A process is started again ten times at most.
MOST_KILLS_OF_ONE = 6
PEOPLE = ("ann", "bob", "eve")
SKIPS = (Stage.DIAGNOSE, Stage.RESET, Stage.REBOOT, Stage.POWER_CYCLE, Stage.PROVE)

SETTINGS = """
time_scale = {scale}

[simulator]
enabled = true
nodes = 32
pools = 2
group_size = 4
seed = {seed}
faults = {faults}
faults_start_after_h = 0.2
faults_until_h = 11
technician = true
technician_h = 0.25

[simulator.fault_weights]
remap_pending = 4
ecc_uncorrectable = 4
remap_failure = 2
gsp_hang = 3
off_bus = 3
off_bus_cold = 3
off_bus_dead = 1
firmware_wedged = 3
nvlink_down = 2
thermal = 1

[budget]
allowance = {allowance}
cap = 4
max_out = 4

[pools.pool-b]
actions = {{ reset = "approve" }}
"""


@dataclass
class Person:
    """Everybody who gives orders: at random while the chaos lasts, then to bring all to an end."""

    f: object
    rng: random.Random
    released: set[str] = field(default_factory=set)
    nodes_released: set[str] = field(default_factory=set)
    resumed: Counter = field(default_factory=Counter)
    taken: Counter = field(default_factory=Counter)

    def note(self) -> OperatorNote:
        return OperatorNote(by=self.rng.choice(PEOPLE), reason="a soak")

    async def busy(self) -> list[str]:
        return sorted(node for node, row in (await self.f.rows()).items() if row.stage)

    async def meddle(self) -> None:
        """One order to one repair, wise or not; to one at work rather than one that waits."""
        rows = {node: row.stage for node, row in (await self.f.rows()).items() if row.stage}
        at_work = sorted(node for node, stage in rows.items() if stage != Stage.PERMIT)
        busy = at_work or sorted(rows)
        if not busy:
            return
        node = self.rng.choice(busy)
        order = self.rng.choices(
            ["pause", "resume", "skip", "approve", "release"], [3, 4, 5, 4, 2]
        )[0]
        repair = (await node_view(self.f.records.store, node)).repair
        if repair is not None:
            await self.order(node, repair.repair_id, order)

    async def view(self, node: str) -> RepairView | None:
        with contextlib.suppress(SickbayError, TimeoutError):
            async with asyncio.timeout(5):
                return await self.f.repairs.status(node)
        return None

    async def order(self, node: str, repair_id: str, order: str) -> None:
        note = self.note()
        message = note
        if order == "skip":
            message = Skip(self.rng.choice(SKIPS), by=note.by, reason=note.reason)
        if order == "release":
            # An order whose answer is lost may have been carried out all the same.
            self.released.add(repair_id)
            self.nodes_released.add(node)
        try:
            async with asyncio.timeout(8):
                answer = await self.f.repairs.send(node, order, message)
        except Refused:
            self.taken[f"{order} refused"] += 1
        except (SickbayError, TimeoutError):
            self.taken[f"{order} unanswered"] += 1
        else:
            self.taken[order] += 1
            if order == "release":
                self.released.add(answer.repair_id)

    async def on_duty(self) -> None:
        """Let every repair that waits for a person go on; after three times, give it up."""
        for node in await self.busy():
            view = await self.view(node)
            if view is None or view.ending:
                continue
            if view.paused_by:
                await self.order(node, view.repair_id, "resume")
            elif view.waiting_for.startswith("approval"):
                await self.order(node, view.repair_id, "approve")
            elif view.stage == Stage.NEEDS_HUMAN:
                self.resumed[view.repair_id] += 1
                order = "resume" if self.resumed[view.repair_id] < 4 else "release"
                await self.order(node, view.repair_id, order)


async def kill_at_random(f, rng: random.Random, ends_at: float) -> Counter:
    """Kill -9, of one process or two at once, every few seconds."""
    killed = Counter()
    while time.monotonic() < ends_at:
        await asyncio.sleep(rng.uniform(3.0, 9.0))
        for victim in rng.sample(VICTIMS, rng.choice([1, 1, 2])):
            if killed[victim] < MOST_KILLS_OF_ONE:
                f.kill(victim)
                killed[victim] += 1
    return killed


async def meddle_at_random(person: Person, ends_at: float) -> None:
    while time.monotonic() < ends_at:
        await asyncio.sleep(person.rng.uniform(0.5, 3.0))
        await person.meddle()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(480)
@pytest.mark.parametrize("seed", SEEDS)
async def test_faults_kills_and_orders_at_random_lose_double_and_return_nothing_wrongly(
    fleet, seed
):
    rng = random.Random(seed)
    settings = SETTINGS.format(scale=SCALE, seed=seed, faults=FAULTS, allowance=ALLOWANCE)
    async with fleet(settings) as f:
        inventory = (await f.http.get("/inventory")).json()["nodes"]
        person = Person(f, random.Random(rng.random()))
        ends_at = time.monotonic() + CHAOS_S
        killed, *_ = await asyncio.gather(
            kill_at_random(f, random.Random(rng.random()), ends_at),
            *(meddle_at_random(person, ends_at) for _ in range(MEDDLERS)),
        )

        async def quiet() -> bool:
            await person.on_duty()
            return not await person.busy() and not await still_broken(f, person)

        await f.until(f"the repairs of seed {seed} end", quiet, within_s=300)
        print(f"seed {seed}: killed {dict(killed)}, orders {dict(person.taken)}")
        log = f.log()
        assert await lost(f, person) == []
        assert judge.doubled(log, judge.asked_of(f.settings.state_dir)) == []
        assert judge.undrained(log) == []
        assert judge.foreign_touched(log) == []
        limits = {"allowance": ALLOWANCE, "window_s": 3600 / SCALE, "out_at_once": 4}
        assert judge.over_budget(log, inventory, **limits) == []
        returns = judge.judge_returns(log, by_person=person.released)
        print(f"seed {seed}: {returns.proven} proven, {returns.by_person} released by a person")
        assert returns.unproven == ()
        assert returns.proven >= 5, "too few returns to prove anything"
        assert sum(killed.values()) >= 10


async def still_broken(f, person: Person) -> list[str]:
    """Faults that nobody mended; a node that a person took back unproven is that person's."""
    truth = (await f.http.get("/truth")).json()["faults"]
    return [f"{t['node']}: {t['kind']}" for t in truth if t["node"] not in person.nodes_released]


async def lost(f, person: Person) -> list[str]:
    """Faults forgotten, and gates that stay closed though nothing will open them."""
    rows = (await f.http.get("/scheduler/nodes")).json()
    closed = [f"{r['node']}: {r['marks']}" for r in rows if r["marks"]]
    ended = [(await node_view(f.records.store, r["node"])).holds for r in rows]
    return [*await still_broken(f, person), *closed, *(h.id for holds in ended for h in holds)]
