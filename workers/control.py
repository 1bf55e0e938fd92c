"""The control worker: workflows, the scheduler's seam, the store, scoring.

`python -m workers.control --config FILE`
"""

import asyncio
import logging

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

from sickbay.adapters.local_pager import LocalPager
from sickbay.client import ensure_search_attributes
from sickbay.connection import open_client
from sickbay.contracts import names
from sickbay.settings import Settings
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords
from workers import wiring
from workers.fleet import load_inventory
from workers.process import GRACE, arguments, patient, run, sandbox, utc_now
from workers.stuck import watch
from workers.sweep import sweep_neighbours
from workflows.fleet_sweep import FleetSweep
from workflows.node_repair import NodeRepair
from workflows.pool_budget import PoolBudget
from workflows.pool_scoring import PoolScoring

log = logging.getLogger(__name__)

SWEEP_S = 5.0
WORKFLOWS = [NodeRepair, PoolBudget, PoolScoring, FleetSweep]


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve the control queue until `stop`."""
    client = await open_client(settings)
    await ensure_search_attributes(client)
    out = wiring.outside(settings)
    store = await open_store(settings.store_url, password=settings.store_password())
    records = StoreRecords(store)
    try:
        nodes = await load_inventory(out, records)
        worker = Worker(
            client,
            task_queue=names.CONTROL_QUEUE,
            workflows=WORKFLOWS,
            activities=await wiring.control_activities(
                settings, client=client, records=records, out=out
            ),
            max_concurrent_activities=500,
            max_cached_workflows=1000,
            graceful_shutdown_timeout=GRACE,
            workflow_runner=sandbox(),
            interceptors=[wiring.disk_full_pages(records)],
        )
        async with patient(worker):
            # Before scoring: a lost repair goes on under its hold before a finding starts another.
            await _start_sweep(client, settings)
            pools = sorted({n.pool for n in nodes})
            await _start_scoring(client, settings, pools)
            log.info("control worker serves %d nodes", len(nodes))
            neighbours = wiring.neighbour_activities(
                settings, pools=pools, client=client, records=records, out=out
            )
            pager = LocalPager(records, clock=utc_now)
            async with asyncio.TaskGroup() as group:
                group.create_task(sweep_neighbours(neighbours, stop=stop, every_s=SWEEP_S))
                group.create_task(watch(client, pager=pager, inventory=records, stop=stop))
    finally:
        await out.http.aclose()
        await store.close()


async def _start_sweep(client: Client, settings: Settings) -> None:
    await client.start_workflow(
        names.SWEEP_WORKFLOW,
        settings.sweep(),
        id=names.SWEEP_WORKFLOW_ID,
        task_queue=names.CONTROL_QUEUE,
        start_signal="sweep_now",
        start_signal_args=[settings.sweep()],
        static_summary="store, scheduler and Temporal compared; what is old removed",
    )


async def _start_scoring(client: Client, settings: Settings, pools: list[str]) -> None:
    for pool in pools:
        await client.start_workflow(
            names.SCORING_WORKFLOW,
            wiring.scoring_input(settings, pool),
            id=names.scoring_workflow_id(pool),
            task_queue=names.CONTROL_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"scoring of {pool}",
        )


def main() -> None:
    """Entry of the process."""
    parser = arguments("sickbay's control worker")
    run(serve, config=parser.parse_args().config, process="control")


if __name__ == "__main__":
    main()
