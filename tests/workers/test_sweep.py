"""The sweep goes on whatever fails, and ends with its worker."""

import asyncio

from workers.sweep import sweep_neighbours


class Neighbours:
    """Answers each look with the next thing of a list; the last one sets `stop`."""

    def __init__(self, stop, *answers):
        self.stop = stop
        self.left = list(answers)
        self.looks = 0

    async def sweep(self):
        self.looks += 1
        answer = self.left.pop(0)
        if not self.left:
            self.stop.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_failing_look_is_followed_by_another(caplog):
    stop = asyncio.Event()
    neighbours = Neighbours(stop, RuntimeError("the store is away"), ("n007",), ())
    await asyncio.wait_for(sweep_neighbours(neighbours, stop=stop, every_s=0.01), timeout=10)
    assert neighbours.looks == 3
    assert any("store is away" in r.message for r in caplog.records)
    assert any("n007" in r.message for r in caplog.records)


async def test_it_ends_at_once_when_the_worker_stops():
    stop = asyncio.Event()
    task = asyncio.create_task(
        sweep_neighbours(Neighbours(asyncio.Event(), (), ()), stop=stop, every_s=3600)
    )
    await asyncio.sleep(0.05)
    stop.set()
    await asyncio.wait_for(task, timeout=5)
