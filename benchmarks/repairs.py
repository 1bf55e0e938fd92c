"""Repairs per second on the development server, beside a bare workflow of as many activities.

Both run in this process with one control worker and in-memory ports, so what differs is our loop:
its messages, its budget, its records. Reset-cured repairs; budgets lifted.
"""

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sickbay.cli.processes import DYNAMIC_CONFIG, temporal_cli
from sickbay.contracts import names
from sickbay.contracts.repair import Fault, RepairPolicy
from sickbay.domain.node import Category, Severity, Treatment
from sickbay.payloads import shared_data_converter
from sickbay.testing import some_nodes
from sickbay.testing.loop import MemoryLoop, lifted
from workers.process import utc_now

REPAIRS = 200
AT_ONCE = 50
REMOTE = 7
LOCAL = 12
BARE_QUEUE = "bare"


@activity.defn(name="nothing")
async def nothing() -> None:
    """No work at all."""


@workflow.defn(name="Bare")
class Bare:
    """As many activities as a reset-cured repair has, remote and local, and nothing else."""

    @workflow.run
    async def run(self) -> None:
        """Run them one after the other."""
        limit = timedelta(seconds=60)
        for _ in range(REMOTE):
            await workflow.execute_activity(nothing, start_to_close_timeout=limit)
        for _ in range(LOCAL):
            await workflow.execute_local_activity(nothing, start_to_close_timeout=limit)


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[WorkflowEnvironment]:
    """A development server of its own, as `sickbay up` starts it, in memory."""
    flags = [f for k, v in DYNAMIC_CONFIG.items() for f in ("--dynamic-config-value", f"{k}={v}")]
    keys = [SearchAttributeKey.for_keyword(n) for n in names.SEARCH_ATTRIBUTES]
    env = await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(temporal_cli()),
        dev_server_extra_args=["--log-level", "error", *flags],
        search_attributes=keys,
        data_converter=shared_data_converter,
    )
    async with env:
        yield env


async def main() -> None:
    """Run both, three times in turn, and print the median of each and their ratio."""
    async with server() as env:
        ours, bare = [], []
        for turn in range(3):
            ours.append(await our_rate(env.client, pool=f"pool{turn}"))
            bare.append(await bare_rate(env.client, turn))
        events, size = await history(env.client, "node-repair/pool0-0001")
    mine, theirs = statistics.median(ours), statistics.median(bare)
    print(f"reset-cured repairs: {mine:.1f}/s (of {', '.join(f'{r:.1f}' for r in ours)})")
    print(f"bare workflow of {REMOTE} remote and {LOCAL} local no-op activities: {theirs:.1f}/s")
    print(f"ratio: {mine / theirs:.2f} of the bare workflow")
    print(f"history of one reset-cured repair: {events} events, {size} bytes")


async def our_rate(client: Client, *, pool: str) -> float:
    """Completed repairs per second, from the first report to the last end."""
    nodes = tuple(
        n.__class__(f"{pool}-{i:04d}", pool, f"{pool}-g{i}", n.rack, n.node_class, n.parts)
        for i, n in enumerate(some_nodes(REPAIRS), start=1)
    )
    loop = MemoryLoop(
        client,
        nodes=nodes,
        pool=pool,
        policy=RepairPolicy(drain_poll_s=0.05),
        budget=lifted(REPAIRS),
    )
    workers = [loop.control_worker(), *(loop.node_worker(n.id) for n in nodes)]
    running = [asyncio.create_task(w.run()) for w in workers]
    began = time.perf_counter()
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(node: str) -> None:
        async with limit:
            loop.fleet.break_part(node, "gpu0", cured_by=(Treatment.RESET,))
            await loop.repairs.report(fault(node), pool=pool)
            view = await client.get_workflow_handle(names.repair_workflow_id(node)).result()
            assert view["ending"] == "returned", view

    await asyncio.gather(*(one(n.id) for n in nodes))
    took = time.perf_counter() - began
    await asyncio.gather(*(w.shutdown() for w in workers))
    await asyncio.gather(*running)
    return REPAIRS / took


def fault(node: str, *, treatment: Treatment = Treatment.RESET) -> Fault:
    """A hard fail whose first rung is the treatment."""
    return Fault(
        id=f"{node}/1",
        node=node,
        observed_at=utc_now(),
        reason="hard_fail:xid_48",
        severity=Severity.MAJOR,
        category=Category.MEMORY,
        source="kernel_log",
        hard=True,
        slot="gpu0",
        treatment=treatment,
    )


async def bare_rate(client: Client, turn: int) -> float:
    """Completed bare workflows per second."""
    worker = Worker(
        client,
        task_queue=BARE_QUEUE,
        workflows=[Bare],
        activities=[nothing],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(i: int) -> None:
        async with limit:
            await client.execute_workflow("Bare", id=f"bare-{turn}-{i}", task_queue=BARE_QUEUE)

    async with worker:
        began = time.perf_counter()
        await asyncio.gather(*(one(i) for i in range(REPAIRS)))
        return REPAIRS / (time.perf_counter() - began)


async def history(client: Client, workflow_id: str) -> tuple[int, int]:
    """Events and bytes (as JSON) of one history."""
    found = await client.get_workflow_handle(workflow_id).fetch_history()
    return len(found.events), len(json.dumps(found.to_json_dict()))
