"""A store without room: what does not fit is refused whole, and is told from other trouble."""

import errno

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from sickbay.contracts.steps import PageDraft
from sickbay.store.records import StoreRecords
from tests.store.conftest import T0, at, node_named, repair, step
from workers.disk_full import DiskFullPages, is_disk_full


async def test_a_full_sqlite_file_refuses_whole_writes_and_takes_them_later(sqlite_store):
    records = StoreRecords(sqlite_store)
    await records.sync_inventory([node_named("n1")], at=T0)
    async with sqlite_store.read() as db:
        pages = (await db.execute(text("PRAGMA page_count"))).scalar_one()
    limit = {"pages": pages}

    @event.listens_for(sqlite_store.engine.sync_engine, "connect")
    def _small(connection, _record):
        connection.cursor().execute(f"PRAGMA max_page_count={limit['pages']}")

    await sqlite_store.engine.dispose()
    big = repair("r1", "n1", next_step="x" * 200_000)
    with pytest.raises(OperationalError) as full:
        await records.save_repair(big)
    assert is_disk_full(full.value)
    assert await records.repair_on_record("r1") is None
    fleet = [node_named(f"n{i}", gpus=16) for i in range(2, 200)]
    with pytest.raises(OperationalError):
        await records.sync_inventory(fleet, at=T0)
    assert [n.id for n in await records.nodes()] == ["n1"]
    limit["pages"] = 1_000_000
    await sqlite_store.engine.dispose()
    await records.save_repair(big)
    await records.save_step(step("r1", "n1", 1, "diagnose", "confirmed"))
    assert await records.repair_on_record("r1") == (big, 1)


class Pager:
    def __init__(self, *, broken=0):
        self.broken = broken
        self.pages: list[PageDraft] = []

    async def page(self, draft):
        if self.broken:
            self.broken -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self.pages.append(draft)


async def test_a_page_that_fails_on_the_same_disk_is_tried_again_and_then_is_one(records):
    pager = Pager(broken=2)
    now = [T0]
    watch = DiskFullPages(pager, where="host1", clock=lambda: now[0])
    for _ in range(5):
        await watch.tell(OSError(errno.ENOSPC, "No space left on device"))
    assert [p.key for p in pager.pages] == ["disk_full/host1/2026-03-01"]
    now[0] = at(61)
    await watch.tell(OSError(errno.ENOSPC, "No space left on device"))
    assert len({p.key for p in pager.pages}) == 1


def test_other_trouble_is_no_full_disk():
    assert not is_disk_full(OSError(errno.EACCES, "Permission denied"))
    assert not is_disk_full(RuntimeError("disk is full"))
    wrapped = RuntimeError("evidence")
    wrapped.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded")
    assert is_disk_full(wrapped)
