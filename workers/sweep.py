"""The steady look for neighbours whose borrow has expired: nobody is kept by a repair that died."""

import asyncio
import logging

from activities.neighbour import NeighbourActivities

log = logging.getLogger(__name__)


async def sweep_neighbours(
    neighbours: NeighbourActivities, *, stop: asyncio.Event, every_s: float
) -> None:
    """Give expired neighbours back every `every_s` seconds until `stop`.

    What fails is tried again at the next look: the hold stands until the mark is gone.
    """
    while not stop.is_set():
        try:
            for node in await neighbours.sweep():
                log.warning("gave back %s: its borrow had expired", node)
        except Exception as error:  # noqa: BLE001 - whatever fails, the worker goes on serving
            log.warning("expired neighbours cannot be given back now: %r", error)
        try:
            await asyncio.wait_for(stop.wait(), timeout=every_s)
        except TimeoutError:
            continue
