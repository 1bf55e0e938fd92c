"""What the loop writes: every method may be retried, and the ledger stays exact."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from sickbay.domain.gate import HoldKind
from sickbay.domain.health import Standing
from sickbay.domain.node import Part, PartKind, Treatment
from sickbay.domain.repair import Attempt
from sickbay.errors import UnknownNode
from sickbay.store import tables as t
from tests.store.conftest import HEALTHY, SICK, T0, at, hold, node_named, repair, step

DAY_S = 24 * 3600.0


async def rows(store, table):
    async with store.read() as db:
        return (await db.execute(select(table))).all()


async def context(records, node="n1", now=None):
    return await records.node_context(
        node, now=now or at(60), memory_s=30 * DAY_S, probation_s=DAY_S
    )


# --- inventory ----------------------------------------------------------------------------------


async def test_the_inventory_may_be_synced_again_and_only_new_nodes_are_added(store, records):
    nodes = [node_named("n1"), node_named("n2", pool="serve"), node_named("n3")]
    await records.sync_inventory(nodes, at=at(5))
    assert [n.id for n in await records.nodes()] == ["n1", "n2", "n3"]
    assert [n.id for n in await records.nodes(pool="serve")] == ["n2"]
    gates = await rows(store, t.gate_intervals)
    assert [(g.node, g.open, g.from_at) for g in gates] == [
        ("n1", True, T0),
        ("n2", True, T0),
        ("n3", True, at(5)),
    ]


async def test_a_node_that_moved_keeps_its_swapped_part(records):
    new = Part("gpu0", PartKind.GPU, "GPU-new", "Snew")
    await records.replace_part("n1", slot="gpu0", part=new, at=at(1))
    await records.sync_inventory([replace(node_named("n1"), rack="rack9")], at=at(5))
    node = await records.node("n1")
    assert node.rack == "rack9"
    assert node.part_in("gpu0") == new


async def test_an_unknown_node_is_none_and_has_no_context(records):
    assert await records.node("nobody") is None
    with pytest.raises(UnknownNode):
        await context(records, "nobody")


async def test_a_replaced_part_leaves_its_slot_at_the_exact_time_once(store, records):
    new = Part("gpu0", PartKind.GPU, "GPU-new", "Snew")
    for minute in (3, 4):
        await records.replace_part("n1", slot="gpu0", part=new, at=at(minute))
    slot = [r for r in await rows(store, t.parts) if (r.node, r.slot) == ("n1", "gpu0")]
    assert [(r.uuid, r.from_at, r.until_at) for r in slot] == [
        ("GPU-n1-0", T0, at(3)),
        ("GPU-new", at(3), None),
    ]


# --- repairs ------------------------------------------------------------------------------------


async def test_an_older_word_of_a_repair_never_replaces_a_newer(store, records):
    await records.save_repair(repair("r1", "n1", stage="reset", updated_at=at(9)))
    await records.save_repair(repair("r1", "n1", stage="drain", updated_at=at(8)))
    (row,) = await rows(store, t.repairs)
    assert (row.stage, row.stage_since) == ("reset", at(9))


async def test_since_is_when_the_stage_began_not_the_last_write(store, records):
    for minute, stage in ((1, "drain"), (2, "drain"), (3, "reset"), (4, "reset")):
        await records.save_repair(repair("r1", "n1", stage=stage, updated_at=at(minute)))
    (row,) = await rows(store, t.repairs)
    assert row.stage_since == at(3)


async def test_a_step_is_written_once_per_ordinal(store, records):
    for outcome in ("done", "failed"):
        await records.save_step(step("r1", "n1", 1, "reset", outcome))
    (row,) = await rows(store, t.steps)
    assert (row.outcome, row.evidence) == ("done", ["ab" * 32])


async def test_attempts_count_treatments_of_present_parts_within_the_memory(records):
    old, uuid = "GPU-gone", "GPU-n1-0"
    acts = [
        step("r1", "n1", 1, "reset", "done", treatment=Treatment.RESET, part=uuid),
        step("r1", "n1", 2, "reset", "ambiguous", treatment=Treatment.RESET, part=uuid),
        step("r1", "n1", 3, "reset", "blocked", treatment=Treatment.RESET, part=uuid),
        step("r1", "n1", 4, "prove", "failed", part=uuid),
        step("r1", "n1", 5, "reboot", "done", treatment=Treatment.REBOOT, part="n1"),
        step("r1", "n1", 6, "swap", "replaced", treatment=Treatment.SWAP, part=old),
        step("r2", "n2", 1, "reset", "done", treatment=Treatment.RESET, part=uuid),
    ]
    for act in acts:
        await records.save_step(act)
    assert set((await context(records)).attempts) == {
        Attempt(uuid, "memory", Treatment.RESET, 2),
        Attempt("n1", "memory", Treatment.REBOOT, 1),
    }
    later = T0 + timedelta(days=31)
    assert (await context(records, now=later)).attempts == ()


async def test_a_return_is_booked_once_and_starts_the_probation(store, records):
    for minute in (10, 11):
        await records.returned("n1", repair_id="r1", at=at(minute))
    (row,) = await rows(store, t.returns)
    assert row.at == at(10)
    fresh = await context(records)
    assert (fresh.last_return_at, fresh.in_probation) == (at(10), True)
    late = await context(records, now=at(10) + timedelta(seconds=DAY_S + 1))
    assert (late.last_return_at, late.in_probation) == (at(10), False)
    assert await records.last_returns("train") == {"n1": at(10)}


async def test_the_last_proof_is_the_newest_pass(records):
    assert await records.last_proof_at("n1") is None
    for ordinal, outcome in enumerate(("passed", "passed", "failed"), start=1):
        await records.save_step(step("r1", "n1", ordinal, "prove", outcome))
    assert await records.last_proof_at("n1") == at(3)


# --- holds and the gate -------------------------------------------------------------------------


async def test_a_hold_is_placed_once_lifted_once_and_its_history_stays(store, records):
    for moment in (T0, at(1)):
        await records.place_hold(replace(hold("n1"), placed_at=moment))
    assert [h.placed_at for h in await records.holds("n1")] == [T0]
    for minute in (5, 6):
        await records.lift_hold("sickbay:r1", by="sickbay", at=at(minute))
    assert await records.holds("n1") == ()
    await records.place_hold(replace(hold("n1"), placed_at=at(9)))
    history = [(h.placed_at, h.lifted_at) for h in await rows(store, t.holds)]
    assert history == [(T0, at(5)), (at(9), None)]


async def test_a_hold_comes_back_as_it_was_placed(records):
    await records.place_hold(hold("n1"))
    assert await records.holds("n1") == (hold("n1"),)
    assert (await context(records)).holds == (hold("n1"),)


async def test_open_withheld_lists_only_standing_withheld_holds_of_the_pool(records):
    await records.place_hold(hold("n1"))
    for node in ("n1", "n2"):
        mark = f"sickbay:withheld.{node}"
        await records.place_hold(hold(node, id_=mark, kind=HoldKind.WITHHELD))
    assert [h.id for h in await records.open_withheld("train")] == ["sickbay:withheld.n1"]
    await records.lift_hold("sickbay:withheld.n1", by="sickbay", at=at(1))
    assert await records.open_withheld("train") == ()


async def test_the_ledger_has_a_row_per_true_change_only(store, records):
    moves = [(True, 1), (False, 2), (False, 3), (True, 4), (True, 5)]
    for open_, minute in moves:
        await records.gate_moved("n1", open_=open_, at=at(minute))
    await records.gate_moved("nobody", open_=False, at=at(6))
    ledger = [g for g in await rows(store, t.gate_intervals) if g.node != "n2"]
    assert [(g.open, g.from_at, g.until_at) for g in ledger] == [
        (True, T0, at(2)),
        (False, at(2), at(4)),
        (True, at(4), None),
    ]


async def test_a_late_report_never_makes_an_interval_that_ends_before_it_began(store, records):
    await records.gate_moved("n1", open_=False, at=at(5))
    await records.gate_moved("n1", open_=True, at=at(3))
    ledger = [g for g in await rows(store, t.gate_intervals) if g.node == "n1"]
    assert all(g.until_at is None or g.from_at <= g.until_at for g in ledger)
    assert [g.open for g in ledger] == [True, False, True]


# --- scorer -------------------------------------------------------------------------------------


async def save(records, health, standing, minute, node="n1"):
    await records.save_health(node, health=health, standing=standing, at=at(minute), rules="1 ab")


async def test_a_node_nobody_scored_is_unknown_never_healthy(records):
    found = await records.present_health("n1")
    assert (found.health.value, found.standing, found.at) == (None, Standing.UNKNOWN, None)


async def test_the_newest_health_and_since_when_the_standing_holds(records):
    await save(records, HEALTHY, Standing.HEALTHY, 1)
    await save(records, replace(HEALTHY, value=0.9), Standing.HEALTHY, 2)
    assert (await records.standings("train"))["n1"][1:] == (Standing.HEALTHY, at(1))
    await save(records, SICK, Standing.QUARANTINED, 3)
    found = await records.present_health("n1")
    assert (found.health, found.standing, found.at) == (SICK, Standing.QUARANTINED, at(3))
    assert await records.standings("train") == {"n1": (SICK, Standing.QUARANTINED, at(3))}
    assert await records.standings("serve") == {}


async def test_the_same_health_sent_again_is_one_row(store, records):
    for _ in range(2):
        await save(records, SICK, Standing.QUARANTINED, 1)
    (row,) = await rows(store, t.health_changes)
    assert row.rules == "1 ab"


async def test_only_the_newest_epoch_of_a_pool_is_current(records):
    first, second = await records.next_epoch("train"), await records.next_epoch("train")
    assert (first, second) == (1, 2)
    assert await records.next_epoch("serve") == 1
    assert not await records.epoch_is_current("train", first)
    assert await records.epoch_is_current("train", second)
    assert not await records.epoch_is_current("nobody", 1)


async def test_a_kernel_record_is_new_once_however_many_ask_at_once(store, records):
    identity = ("boot-1", 12_345_678_901_234, "NVRM: Xid 79")
    asked = [records.seen_event(identity, at=at(i)) for i in range(5)]
    assert sorted(await asyncio.gather(*asked)) == [False] * 4 + [True]
    for other in (("boot-2", *identity[1:]), (*identity[:2], "NVRM: Xid 48")):
        assert await records.seen_event(other, at=T0)
    async with store.read() as db:
        assert (await db.execute(select(func.count()).select_from(t.kernel_events))).scalar() == 3


# --- times --------------------------------------------------------------------------------------


async def test_a_naive_time_is_refused(records):
    with pytest.raises(Exception, match="naive datetime"):
        await records.returned("n1", repair_id="r1", at=T0.replace(tzinfo=None))
