"""The durable side of acts out of band: one owner, limits that hold, canaries that wait."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from sickbay.contracts.operations import Operation, Phase
from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.firmware import RolloutKey, RolloutStage
from sickbay.domain.node import Treatment
from sickbay.domain.radius import Lease, Limits, Load
from sickbay.errors import Refused, Superseded, UsageError
from sickbay.store.engine import open_store
from sickbay.store.out_of_band import StoreLeases, StoreOperations, StoreRollouts
from tests.store.conftest import T0, at, node_named

KEY = RolloutKey("hgx", "GPU_*", "2")
DONE = Effect(Outcome.SUCCEEDED, "back")


def operation(owner="one", node="n1"):
    return Operation("n1.r1/001", node, Treatment.POWER_CYCLE, owner, T0, witness="drained")


async def test_an_operation_is_read_back_as_it_was_written(store, records):
    journal = StoreOperations(store)
    assert await journal.lookup("n1.r1/001") is None
    op = await journal.take(operation())
    op = await journal.advance(op, phase=Phase.OFF_ASKED, at=at(1), memo={"last_reset": "x"})
    op = await journal.advance(op, phase=Phase.OFF_SEEN, at=at(2))
    found = await journal.lookup(op.id)
    assert found == op
    assert (found.phase_at, found.memo, found.witness) == (at(2), {"last_reset": "x"}, "drained")
    await journal.finish(op, effect=DONE, at=at(3))
    again = await journal.take(operation("two"))
    assert (again.owner, again.effect, again.finished_at) == ("one", DONE, at(3))


async def test_an_attempt_that_was_overtaken_can_neither_advance_nor_finish(store, records):
    journal = StoreOperations(store)
    stale = await journal.take(operation("one"))
    mine = await journal.take(operation("two"))
    assert (mine.owner, mine.phase, mine.started_at) == ("two", Phase.STARTED, T0)
    with pytest.raises(Superseded):
        await journal.advance(stale, phase=Phase.OFF_ASKED, at=at(1))
    with pytest.raises(Superseded):
        await journal.finish(stale, effect=DONE, at=at(1))
    moved = await journal.advance(mine, phase=Phase.OFF_ASKED, at=at(1))
    with pytest.raises(Superseded):
        await journal.advance(mine, phase=Phase.OFF_ASKED, at=at(1))
    assert moved.phase is Phase.OFF_ASKED


async def test_of_two_attempts_that_advance_at_once_one_does(store, records, url):
    other = await open_store(url)
    journals = [StoreOperations(store), StoreOperations(other)]
    taken = await journals[0].take(operation())
    tried = await asyncio.gather(
        *(j.advance(taken, phase=Phase.OFF_ASKED, at=at(1)) for j in journals),
        return_exceptions=True,
    )
    assert sorted(type(t).__name__ for t in tried) == ["Operation", "Superseded"]
    await other.close()


def lease(holder, *, until=60.0, rack="rack1"):
    return Lease(holder, Load.POWER_CYCLE, "n1", rack, "", at(until))


async def test_many_that_ask_at_once_never_exceed_the_limit(store, records, url):
    other = await open_store(url)
    limits = Limits(per_rack={Load.POWER_CYCLE: 3})
    sides = [StoreLeases(store), StoreLeases(other)]
    asked = await asyncio.gather(
        *(sides[i % 2].take(lease(f"op{i}"), limits=limits, now=T0) for i in range(10))
    )
    assert asked.count("") == 3
    assert set(asked) == {"", "waits: 3 power cycles run in rack rack1"}
    granted = [i for i, why in enumerate(asked) if why == ""]
    again = lease(f"op{granted[0]}", until=90)
    assert await sides[0].take(again, limits=limits, now=T0) == ""
    await sides[0].give_back(f"op{granted[1]}")
    await sides[0].give_back(f"op{granted[1]}")
    assert await sides[0].take(lease("late"), limits=limits, now=T0) == ""
    assert await sides[0].take(lease("later"), limits=limits, now=T0) != ""
    ran_out = at(61)
    assert await sides[0].take(lease("later", until=120), limits=limits, now=ran_out) == ""
    await other.close()


async def test_of_many_nodes_that_ask_at_once_one_is_the_canary(store, records, url):
    other = await open_store(url)
    sides = [StoreRollouts(store), StoreRollouts(other)]
    turns = await asyncio.gather(
        *(sides[i % 2].reserve(KEY, node=f"n{i}", at=T0) for i in range(8))
    )
    assert [t.granted for t in turns].count(True) == 1
    assert all(t.wait for t in turns if not t.granted)
    (rollout,) = await sides[0].all()
    canary = rollout.canary
    assert (await sides[1].reserve(KEY, node=canary, at=T0)).granted
    await sides[0].settle("n99", proven=False, why="another's", at=T0)
    await sides[0].settle(canary, proven=True, why="", at=T0)
    assert all([(await sides[0].reserve(KEY, node=f"n{i}", at=T0)).granted for i in range(3)])
    await other.close()


async def test_a_frozen_version_goes_on_only_by_a_named_person(store, records):
    rollouts = StoreRollouts(store)
    await rollouts.reserve(KEY, node="n1", at=T0)
    with pytest.raises(Refused, match="canary, not frozen"):
        await rollouts.unfreeze(KEY, by="ops", reason="r", at=T0)
    await rollouts.settle("n1", proven=False, why="it failed its proof", at=T0)
    refused = await rollouts.reserve(KEY, node="n2", at=T0)
    assert (refused.granted, refused.wait) == (False, False)
    assert "n1: it failed its proof" in refused.why
    for by, reason in (("", "r"), ("ops", "")):
        with pytest.raises(UsageError):
            await rollouts.unfreeze(KEY, by=by, reason=reason, at=T0)
    with pytest.raises(UsageError, match="was ever flashed"):
        await rollouts.unfreeze(replace(KEY, version="3"), by="ops", reason="r", at=T0)
    assert (await rollouts.unfreeze(KEY, by="ops", reason="r", at=T0)).stage is RolloutStage.NEW
    assert (await rollouts.reserve(KEY, node="n2", at=T0)).granted


async def test_the_inventory_keeps_what_nodes_share(store, records):
    shared = replace(node_named("n1"), chassis="c7", power_unit="pdu-3")
    await records.sync_inventory([shared], at=T0 + timedelta(minutes=1))
    found = await records.node("n1")
    assert (found.chassis, found.power_unit) == ("c7", "pdu-3")
