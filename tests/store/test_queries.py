"""What people read: one row per node, and everything about one node."""

from dataclasses import replace

import pytest

from sickbay.domain.health import Standing
from sickbay.errors import UnknownNode
from sickbay.store.queries import fleet_rows, node_view, recent_repairs
from tests.store.conftest import SICK, T0, at, hold, repair, step


async def break_n1(records) -> None:
    await records.save_health(
        "n1", health=SICK, standing=Standing.QUARANTINED, at=at(1), rules="1 ab"
    )
    await records.place_hold(hold("n1"))
    await records.gate_moved("n1", open_=False, at=at(2))
    await records.save_repair(
        repair("r1", "n1", updated_at=at(2), next_step="wait for jobs", deadline=at(30))
    )
    await records.save_step(step("r1", "n1", 1, "permit", "granted"))


async def test_the_fleets_row_says_gate_health_stage_and_next_step(records, store):
    await break_n1(records)
    sick, well = await fleet_rows(store)
    assert (sick.node, sick.pool, sick.gate_open) == ("n1", "train", False)
    assert (sick.health, sick.standing) == (SICK, Standing.QUARANTINED)
    assert (sick.stage, sick.since) == ("drain", at(2))
    assert (sick.next_step, sick.deadline) == ("wait for jobs", at(30))
    assert sick.holds == ("quarantine by sickbay: hard_fail:xid_48",)
    assert (well.gate_open, well.health, well.standing) == (True, None, Standing.UNKNOWN)
    assert (well.stage, well.since, well.holds) == (None, T0, ())


async def test_the_fleet_of_one_pool(records, store):
    assert [r.node for r in await fleet_rows(store, pool="serve")] == ["n2"]


async def test_of_two_repairs_left_running_the_newer_is_shown(records, store):
    for name, minute in (("r2", 9), ("r1", 1)):
        await records.save_repair(
            repair(name, "n1", stage=f"stage-{name}", started_at=at(minute), updated_at=at(minute))
        )
    assert (await fleet_rows(store))[0].stage == "stage-r2"


async def test_a_node_is_explained_whole(records, store):
    await break_n1(records)
    view = await node_view(store, "n1")
    assert [p.slot for p in view.node.parts] == ["gpu0", "gpu1"]
    assert (view.gate_open, view.gate_since) == (False, at(2))
    (standing,) = view.holds
    assert standing.id == hold("n1").id
    assert (standing.next_step, standing.deadline) == (view.repair.next_step, view.repair.deadline)
    assert (view.health, view.standing_since, view.reopens) == (SICK, at(1), "")
    assert view.repair.repair_id == "r1"
    assert [(s.stage, s.outcome) for s in view.repair.steps] == [("permit", "granted")]
    assert view.past == ()


async def test_the_last_five_repairs_newest_first_each_with_its_own_steps(records, store):
    for i in range(7):
        await records.save_repair(
            repair(f"r{i}", "n1", started_at=at(i), updated_at=at(i), ending="returned")
        )
        await records.save_step(step(f"r{i}", "n1", 1, f"stage{i}", "done"))
    view = await node_view(store, "n1")
    assert view.repair is None
    assert [r.repair_id for r in view.past] == ["r6", "r5", "r4", "r3", "r2"]
    assert [[s.stage for s in r.steps] for r in view.past[:2]] == [["stage6"], ["stage5"]]
    assert [r.repair_id for r in await recent_repairs(store, limit=2)] == ["r6", "r5"]


async def test_a_closed_gate_without_a_hold_of_ours_is_explained(records, store):
    await records.gate_moved("n1", open_=False, at=at(1))
    assert "another tool or person" in (await node_view(store, "n1")).reopens


async def test_a_lifted_hold_is_no_longer_shown(records, store):
    await records.place_hold(replace(hold("n1"), id="sickbay:r0"))
    await records.lift_hold("sickbay:r0", by="ann", at=at(1))
    assert (await node_view(store, "n1")).holds == ()
    assert (await fleet_rows(store))[0].holds == ()


async def test_an_unknown_node_is_said_so(records, store):
    with pytest.raises(UnknownNode, match="nobody"):
        await node_view(store, "nobody")
