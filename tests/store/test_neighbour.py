"""Borrowed neighbours and bystanders as the store knows them."""

from dataclasses import replace

from sickbay.domain.gate import HoldKind
from sickbay.domain.health import Standing
from tests.store.conftest import HEALTHY, SICK, at, hold, node_named, repair

BORROW = "sickbay:borrow:r7"


def lent(node: str):
    return replace(hold(node, id_=BORROW, kind=HoldKind.BORROWED), repair_id="r7")


async def by_name(records, pool="train"):
    return {b.node: b for b in await records.bystanders(pool)}


async def test_borrowed_are_the_standing_borrows_of_the_whole_fleet(records):
    await records.place_hold(hold("n1"))
    await records.place_hold(lent("n2"))
    await records.place_hold(lent("n2"))
    assert [(h.node, h.repair_id) for h in await records.borrowed()] == [("n2", "r7")]
    await records.lift_hold(BORROW, by="r7", at=at(3))
    assert await records.borrowed() == ()
    await records.place_hold(lent("n1"))
    assert [h.node for h in await records.borrowed()] == ["n1"], "the same repair borrows again"


async def test_a_bystander_shows_its_newest_health_and_everything_against_it(records):
    await records.sync_inventory([node_named(n) for n in ("n1", "n4", "n5", "n6", "n7")], at=at(0))
    for node in ("n1", "n4", "n5", "n6"):
        await records.save_health(
            node, health=SICK, standing=Standing.QUARANTINED, at=at(1), rules="1"
        )
        await records.save_health(
            node, health=HEALTHY, standing=Standing.HEALTHY, at=at(2), rules="1"
        )
    await records.place_hold(lent("n4"))
    await records.gate_moved("n5", open_=False, at=at(3))
    await records.save_repair(repair("r9", "n6"))
    found = await by_name(records)
    assert found["n1"].value == HEALTHY.value
    assert found["n1"].standing is Standing.HEALTHY
    assert (found["n7"].value, found["n7"].standing) == (None, Standing.UNKNOWN)
    against = {n: (b.held, not b.gate_open, b.in_repair) for n, b in found.items()}
    nothing = (False, False, False)
    assert against["n1"] == nothing
    assert against["n4"] == (True, False, False)
    assert against["n5"] == (False, True, False)
    assert against["n6"] == (False, False, True)
    await records.save_repair(repair("r9", "n6", ending="returned", updated_at=at(9)))
    await records.lift_hold(BORROW, by="r7", at=at(9))
    found = await by_name(records)
    assert not found["n6"].in_repair
    assert not found["n4"].held


async def test_bystanders_are_of_one_pool(records):
    await records.sync_inventory([node_named("n8", pool="other")], at=at(0))
    assert set(await by_name(records, "other")) == {"n8"}
    assert "n8" not in await by_name(records)
