"""Two attempts score one pool on one store: only the newer one's word counts."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy import select
from temporalio.testing import ActivityEnvironment

from activities.scoring import ScoringActivities
from sickbay.contracts.scoring import ScoringInput
from sickbay.domain.health import Standing
from sickbay.errors import Superseded
from sickbay.store import tables as t
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords
from sickbay.store.score_records import fence
from tests.scoring.test_activity import T0, Outside, bend, make_node
from tests.store.conftest import HEALTHY, sqlite_url, url

__all__ = ["sqlite_url", "url"]


@dataclass
class Held(Outside):
    """A source whose sixth answer comes late: the tick hangs while the world goes on."""

    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, nodes):
        samples = await super().read(nodes)
        if self.reads == 6:
            self.hangs.set()
            await self.go.wait()
        return samples


@pytest.fixture
async def records(url):
    store = await open_store(url)
    found = StoreRecords(store)
    await found.sync_inventory([make_node("n1")], at=T0)
    yield found
    await store.close()


@pytest.fixture
def score(rule_content, rules, records):
    """Start one attempt over a source, on the real store."""

    def begin(outside: Outside) -> tuple[ActivityEnvironment, asyncio.Task]:
        times = replace(rules.times, tick_s=0.01, event_watch_s=0.01)
        scorer = ScoringActivities(
            outside, records=records, repairs=outside, permits=outside, inventory=records,
            clock=outside.clock,
        )  # fmt: skip
        env = ActivityEnvironment()
        inp = ScoringInput("pool-a", dict(rule_content), times=times)
        return env, asyncio.create_task(env.run(scorer.score_pool, inp))

    return begin


async def test_the_older_of_two_scorers_is_refused_and_stops(score, records):
    older, newer = Held(["n1"]), Outside(["n1"])
    # What the older one has just read, and is about to tell, would quarantine the node.
    older.script[6] = bend(older, "n1", 3, ECC_DBE_VOL_TOTAL=1)
    _, first = score(older)
    await asyncio.wait_for(older.hangs.wait(), 30)
    env, second = score(newer)
    async with asyncio.timeout(30):
        while newer.reads < 3:
            await asyncio.sleep(0.01)
    older.go.set()
    ended = await asyncio.wait_for(first, 30)
    assert (ended.epoch, ended.reason) == (1, "superseded")
    assert older.faults == []
    async with records.store.read() as db:
        told = (await db.execute(select(t.health_changes.c.standing))).scalars().all()
    assert Standing.QUARANTINED not in told
    assert not second.done()
    env.cancel()
    await asyncio.wait([second])


async def test_a_write_of_an_older_epoch_is_refused_and_leaves_nothing(records):
    first, second = await records.next_epoch("pool-a"), await records.next_epoch("pool-a")
    says = {"health": HEALTHY, "standing": Standing.HEALTHY, "at": T0, "rules": "1 ab"}
    with pytest.raises(Superseded):
        await records.save_health("n1", **says, epoch=first)
    assert (await records.present_health("n1")).at is None
    await records.save_health("n1", **says, epoch=second)
    assert (await records.present_health("n1")).at == T0


@pytest.mark.postgresql
async def test_taking_over_waits_for_a_write_under_way(postgres_url):
    """The new epoch is never told while a write of the old one may still be committed.

    A writer of SQLite is alone, so there the rule is the database's own.
    """
    store = await open_store(postgres_url)
    records = StoreRecords(store)
    await records.sync_inventory([make_node("n1")], at=T0)
    first = await records.next_epoch("pool-a")
    async with store.write() as db:
        await fence(db, "n1", epoch=first)
        taking = asyncio.create_task(records.next_epoch("pool-a"))
        done, _ = await asyncio.wait([taking], timeout=0.3)
        assert not done
    assert await asyncio.wait_for(taking, 10) == first + 1
    await store.close()
