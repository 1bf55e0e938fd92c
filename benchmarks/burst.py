"""From a node's event to its closed gate when hundreds fail at once, beside a serial loop.

Budgets lifted; the scheduler in memory takes 10 ms per call. Two loops stand beside it in the same
run: one that takes one node after the other through the same workflows, and one bare of Temporal
that makes only the calls of the scheduler and the records and survives nothing.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from datetime import datetime

from repairs import fault, server
from temporalio.client import Client

from sickbay.contracts.repair import RepairPolicy
from sickbay.contracts.steps import Effect
from sickbay.domain.gate import Hold, HoldKind
from sickbay.domain.node import Node
from sickbay.testing import MemoryFleet, MemoryRecords, MemoryScheduler, some_nodes
from sickbay.testing.loop import MemoryLoop, lifted
from workers.process import utc_now

SIZES = (150, 375, 750)
TARGET_P90_S = {150: 3.0, 375: 6.0, 750: 12.0}
WITHIN_S = 30.0
CALL_S = 0.010
GIVE_UP_S = 240.0
REPORTERS = 20
SAMPLE = 40


class SlowScheduler(MemoryScheduler):
    """A scheduler that takes its time: `CALL_S` for every call."""

    def __init__(self, fleet: MemoryFleet) -> None:
        super().__init__(fleet)
        self.closed_at: dict[str, float] = {}

    async def close_gate(self, node: str, *, mark: str, reason: str) -> Effect:
        """Close, after a while."""
        await asyncio.sleep(CALL_S)
        effect = await super().close_gate(node, mark=mark, reason=reason)
        self.closed_at.setdefault(node, time.perf_counter())
        return effect

    async def marks(self, node: str) -> tuple[tuple[str, str], ...]:
        """Read, after a while."""
        await asyncio.sleep(CALL_S)
        return await super().marks(node)


async def main() -> None:
    """Every size once: ours, then the serial loop."""
    async with server() as env:
        for size in SIZES:
            ours = await our_burst(env.client, size)
            spread = await our_burst(env.client, size, spread_s=WITHIN_S)
            one_by_one = await our_burst(env.client, SAMPLE, one_by_one=f"of{size}-")
            bare = await serial_burst(size)
            say(f"{size} nodes at one moment", ours)
            say(f"{size} nodes within {WITHIN_S:.0f} s", spread, target=TARGET_P90_S[size])
            say(f"{size} nodes, bare serial loop of the scheduler's calls", bare)
            each = statistics.mean(one_by_one)
            print(
                f"  one node after the other through the same workflows: {each * 1000:.0f} ms each "
                f"(of {SAMPLE}), so {each * size:.0f} s for {size}\n"
                f"  the burst's last gate closed {each * size / max(ours):.1f} times as soon as "
                f"that loop's, and {max(bare) / max(ours):.2f} times as soon as the bare one's"
            )


def say(what: str, seconds: Sequence[float], *, target: float | None = None) -> None:
    """Print the percentiles of one run."""
    p50, p90, p99 = (quantile(seconds, q) for q in (0.50, 0.90, 0.99))
    goal = f" (target p90 under {target:.0f} s)" if target else ""
    print(f"{what}: p50 {p50:.2f} s, p90 {p90:.2f} s, p99 {p99:.2f} s{goal}")


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` lies."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(q * 1000) - 1]


def pool_of(name: str, size: int) -> tuple[Node, ...]:
    """Nodes of a pool of its own, each in a group of its own."""
    return tuple(
        Node(f"{name}-{i:04d}", name, f"{name}-g{i}", n.rack, n.node_class, n.parts)
        for i, n in enumerate(some_nodes(size), start=1)
    )


async def our_burst(
    client: Client, size: int, *, spread_s: float = 0.0, one_by_one: str = ""
) -> list[float]:
    """Seconds from each node's event to its closed gate."""
    pool = f"burst{one_by_one}{size}{'spread' if spread_s else ''}"
    nodes = pool_of(pool, size)
    loop = MemoryLoop(
        client,
        nodes=nodes,
        pool=pool,
        policy=RepairPolicy(node_queue_timeout_s=3600.0),
        budget=lifted(size),
        scheduler=SlowScheduler,
    )
    scheduler = loop.scheduler
    assert isinstance(scheduler, SlowScheduler)
    worker = loop.control_worker()
    at: dict[str, float] = {}
    began = time.perf_counter()
    waiting = [(n.id, began + spread_s * i / size) for i, n in enumerate(nodes)][::-1]

    async def reporter() -> None:
        while waiting:
            node, due = waiting.pop()
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            at[node] = time.perf_counter()
            await loop.repairs.report(fault(node), pool=pool)
            while one_by_one and node not in scheduler.closed_at:
                await asyncio.sleep(0.001)

    async with worker:
        await asyncio.gather(*(reporter() for _ in range(1 if one_by_one else REPORTERS)))
        ends_at = time.perf_counter() + GIVE_UP_S
        while len(scheduler.closed_at) < size and time.perf_counter() < ends_at:
            await asyncio.sleep(0.02)
        for node in nodes:
            await client.get_workflow_handle(f"node-repair/{node.id}").terminate("benchmark")
    missing = size - len(scheduler.closed_at)
    assert not missing, f"{missing} gates never closed"
    moment = at if spread_s or one_by_one else dict.fromkeys(at, began)
    return [scheduler.closed_at[n.id] - moment[n.id] for n in nodes]


async def serial_burst(size: int) -> list[float]:
    """The same calls one node after the other: record the hold, close, record the move."""
    nodes = pool_of(f"serial{size}", size)
    fleet = MemoryFleet(nodes, now=utc_now)
    records = MemoryRecords(dict(fleet.records))
    scheduler = SlowScheduler(fleet)
    began = time.perf_counter()
    for node in nodes:
        mark = f"sickbay:{node.id}.1"
        await records.place_hold(hold_of(node.id, mark, at=utc_now()))
        await scheduler.close_gate(node.id, mark=mark, reason="hard_fail:xid_48")
        await records.gate_moved(node.id, open_=False, at=utc_now())
    return [scheduler.closed_at[n.id] - began for n in nodes]


def hold_of(node: str, mark: str, *, at: datetime) -> Hold:
    """A quarantine's hold."""
    return Hold(
        id=mark,
        node=node,
        kind=HoldKind.QUARANTINE,
        owner="sickbay",
        mark=mark,
        reason="hard_fail:xid_48",
        placed_at=at,
        release_condition="proof",
        next_step="drain",
        deadline=None,
    )
