"""The control worker: workflows, the scheduler's seam, the store, scoring.

`python -m workers.control --config FILE`
"""

import asyncio
import logging

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

from sickbay.adapters.local_pager import LocalPager
from sickbay.client import connect, ensure_search_attributes
from sickbay.contracts import names
from sickbay.settings import Settings
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords
from workers import wiring
from workers.fleet import load_inventory
from workers.process import GRACE, arguments, patient, run, sandbox, utc_now
from workers.stuck import watch
from workflows.node_repair import NodeRepair
from workflows.pool_budget import PoolBudget
from workflows.pool_scoring import PoolScoring

log = logging.getLogger(__name__)

WORKFLOWS = [NodeRepair, PoolBudget, PoolScoring]


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve the control queue until `stop`."""
    client = await connect(settings.temporal.address, namespace=settings.temporal.namespace)
    await ensure_search_attributes(client)
    out = wiring.outside(settings)
    store = await open_store(settings.store_url)
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
        )
        async with patient(worker):
            await _start_scoring(client, settings, sorted({n.pool for n in nodes}))
            log.info("control worker serves %d nodes", len(nodes))
            pager = LocalPager(records, clock=utc_now)
            await watch(client, pager=pager, inventory=records, stop=stop)
    finally:
        await out.http.aclose()
        await store.close()


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
    run(serve, config=parser.parse_args().config)


if __name__ == "__main__":
    main()
