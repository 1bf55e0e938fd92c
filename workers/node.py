"""The node workers: one queue, one slot and one journal per node; outbound connections only.

`python -m workers.node --config FILE [--node ID | --share I/N]`. On a real node the process serves
that node; over a simulated fleet one process serves many nodes, each by a worker of its own.
"""

import asyncio
import logging

from temporalio.worker import Worker

from sickbay.connection import open_client
from sickbay.contracts import names
from sickbay.domain.node import Node
from sickbay.errors import UnknownNode, UsageError
from sickbay.settings import Settings
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords
from workers import wiring
from workers.process import GRACE, ONE_POLLER, arguments, run

log = logging.getLogger(__name__)
WAIT_FOR_NODES_S = 0.2
NODES_TIMEOUT_S = 60.0


def parse_share(text: str) -> tuple[int, int]:
    """`2/3` is the second of three shares.

    Raises:
        UsageError: it is not a share.
    """
    first, _, of = text.partition("/")
    if first.isdigit() and of.isdigit() and 1 <= int(first) <= int(of):
        return int(first), int(of)
    raise UsageError(f"{text!r} is no share", field="share", remedy="e.g. 1/2")


async def serve(
    settings: Settings, stop: asyncio.Event, *, share: tuple[int, int] = (1, 1), only: str = ""
) -> None:
    """Serve one node's queue, or this share of the fleet's, until `stop`.

    Raises:
        UnknownNode: no node of this name is on record.
    """
    client = await open_client(settings)
    out = wiring.outside(settings)
    store = await open_store(settings.store_url, password=settings.store_password())
    records = StoreRecords(store)
    try:
        nodes = await _nodes(records, stop, share=share)
        nodes = _only(nodes, only) if only and nodes else nodes
        watch = wiring.disk_full_pages(records)
        workers = [
            Worker(
                client,
                task_queue=names.node_queue(node.id),
                activities=wiring.node_activities(settings, node=node, records=records, out=out),
                max_concurrent_activities=1,
                activity_task_poller_behavior=ONE_POLLER,
                graceful_shutdown_timeout=GRACE,
                interceptors=[watch],
            )
            for node in nodes
        ]
        log.info("node worker serves %d nodes", len(nodes))
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run())
            await stop.wait()
            await asyncio.gather(*(worker.shutdown() for worker in workers))
    finally:
        await out.http.aclose()
        await store.close()


async def _nodes(
    records: StoreRecords, stop: asyncio.Event, *, share: tuple[int, int]
) -> tuple[Node, ...]:
    """The nodes of this share, once the control worker has booked the inventory."""
    index, of = share
    waited = 0.0
    while not stop.is_set() and waited < NODES_TIMEOUT_S:
        nodes = await records.nodes()
        if nodes:
            return tuple(n for i, n in enumerate(nodes) if i % of == index - 1)
        await asyncio.sleep(WAIT_FOR_NODES_S)
        waited += WAIT_FOR_NODES_S
    return ()


def _only(nodes: tuple[Node, ...], wanted: str) -> tuple[Node, ...]:
    found = tuple(n for n in nodes if n.id == wanted)
    if not found:
        raise UnknownNode(
            f"no node {wanted!r} is on record", field="node", remedy="name it as the inventory does"
        )
    return found


def main() -> None:
    """Entry of the process."""
    parser = arguments("sickbay's node worker")
    parser.add_argument("--share", default="1/1", help="which share of the fleet, e.g. 1/2")
    parser.add_argument("--node", default="", help="only this node, by its id in the inventory")
    args = parser.parse_args()

    async def serve_share(settings: Settings, stop: asyncio.Event) -> None:
        await serve(settings, stop, share=parse_share(args.share), only=args.node)

    offset = int(args.share.partition("/")[0]) - 1 if args.share[:1].isdigit() else 0
    run(serve_share, config=args.config, process="node", page_offset=offset)


if __name__ == "__main__":
    main()
