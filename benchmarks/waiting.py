"""Memory with a thousand repairs that wait for a part; a restart, and the first message answered.

The control worker runs in a process of its own, so that its memory is its own.
"""

import asyncio
import contextlib
import os
import sys
import time

import psutil
from repairs import fault, server
from temporalio.client import Client

from sickbay.client import TemporalRepairs
from sickbay.contracts.repair import OperatorNote, RepairPolicy
from sickbay.domain.node import Treatment
from sickbay.errors import Refused, SickbayError, Unreachable
from sickbay.payloads import shared_data_converter
from sickbay.testing import some_nodes
from sickbay.testing.loop import MemoryLoop, lifted

WAITING = 1000
POOL = "parts"
AT_ONCE = 25
GIVE_UP_S = 900.0
POLICY = RepairPolicy(drain_poll_s=0.05)
WORKER = "--serve"


async def main() -> None:
    """Park the repairs, weigh the processes, restart the worker, send a message."""
    async with server() as env:
        address = env.client.service_client.config.target_host
        base = server_mb()
        worker = await started(address)
        idle = worker_mb(worker)
        await park(env.client)
        print(f"server: {base:.0f} MB empty, {server_mb():.0f} MB with {WAITING} waiting repairs")
        print(f"control worker: {idle:.0f} MB empty, {worker_mb(worker):.0f} MB with {WAITING}")
        await ended(worker)
        began = time.perf_counter()
        worker = await started(address)
        await first_answer(env.client)
        print(f"restart to the first message answered: {time.perf_counter() - began:.2f} s")
        print(f"control worker after the restart: {worker_mb(worker):.0f} MB")
        await ended(worker)


async def park(client: Client) -> None:
    """Report a fault a person has to mend on every node, and wait until all wait for a part."""
    repairs = repairs_of(client)
    limit = asyncio.Semaphore(AT_ONCE)
    ends_at = time.monotonic() + GIVE_UP_S

    async def one(node: str) -> None:
        async with limit:
            await repairs.report(fault(node, treatment=Treatment.SWAP), pool=POOL)
            while time.monotonic() < ends_at:
                with contextlib.suppress(SickbayError):
                    if "technician" in (await repairs.status(node)).waiting_for:
                        return
                await asyncio.sleep(0.5)
            raise TimeoutError(node)

    await asyncio.gather(*(one(n.id) for n in nodes()))


async def first_answer(client: Client) -> None:
    """Send an order until it is answered."""
    while True:
        try:
            await repairs_of(client).send("n001", "release", OperatorNote("ann", "a benchmark"))
        except (Refused, Unreachable):
            await asyncio.sleep(0.05)
        else:
            return


def nodes():
    return some_nodes(WAITING, pool=POOL)


def repairs_of(client: Client) -> TemporalRepairs:
    return TemporalRepairs(client, policy_of=lambda _pool: POLICY)


async def started(address: str) -> asyncio.subprocess.Process:
    """The worker's process, once it serves."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, WORKER, address,
        stdout=asyncio.subprocess.PIPE, env=dict(os.environ),
    )  # fmt: skip
    assert process.stdout is not None
    assert (await process.stdout.readline()).strip() == b"serves"
    return process


async def ended(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


def worker_mb(process: asyncio.subprocess.Process) -> float:
    return psutil.Process(process.pid).memory_info().rss / 2**20


def server_mb() -> float:
    """Resident memory of the development server this process started."""
    children = psutil.Process().children(recursive=True)
    found = [c for c in children if c.name().startswith("temporal")]
    return sum(c.memory_info().rss for c in found) / 2**20


async def serve(address: str) -> None:
    """Control worker and node workers of every node, until killed."""
    client = await Client.connect(address, data_converter=shared_data_converter)
    here = nodes()
    loop = MemoryLoop(client, nodes=here, pool=POOL, policy=POLICY, budget=lifted(WAITING))
    for node in here:
        loop.fleet.break_part(node.id, "gpu0", cured_by=(Treatment.SWAP,))
    workers = [loop.control_worker(), *(loop.node_worker(n.id) for n in here)]
    running = [asyncio.create_task(w.run()) for w in workers]
    print("serves", flush=True)
    await asyncio.gather(*running)


if __name__ == "__main__" and sys.argv[1:2] == [WORKER]:
    asyncio.run(serve(sys.argv[2]))
