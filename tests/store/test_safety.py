"""The switches: observe by default, read every time, and stopped whenever unreadable."""

import pytest
from sqlalchemy import text

from sickbay.contracts.steps import Action, Permission
from sickbay.store.engine import open_store
from sickbay.store.queries import would_have_rows
from sickbay.store.records import StoreRecords
from sickbay.store.safety import StoreSafety
from tests.store.conftest import T0, at


def safety(store, **modes: dict[Action, str]) -> StoreSafety:
    return StoreSafety(store, modes=modes, clock=lambda: at(7))


ACTING = {Action.RESET: "act", Action.REBOOT: "approve"}


async def test_what_nobody_configured_is_observed(records, store):
    switches = safety(store, train=ACTING)
    assert await switches.permission(pool="train", action=Action.EVICT) is Permission.OBSERVE
    assert await switches.permission(pool="other", action=Action.RESET) is Permission.OBSERVE
    assert await switches.permission(pool="train", action=Action.RESET) is Permission.ACT
    assert await switches.permission(pool="train", action=Action.REBOOT) is Permission.APPROVE


async def test_a_mode_with_a_typo_is_refused_at_the_start_not_when_acting(store):
    with pytest.raises(ValueError, match="atc"):
        safety(store, train={Action.RESET: "atc"})


@pytest.mark.parametrize("scope", [None, "train"])
async def test_a_stop_holds_from_the_next_reading_until_it_is_lifted(records, store, scope):
    switches = safety(store, train=ACTING, serve=ACTING)
    for _ in range(2):
        await records.set_stop(scope, by="ann", reason="fire", at=T0)
    assert await switches.permission(pool="train", action=Action.RESET) is Permission.STOPPED
    elsewhere = Permission.STOPPED if scope is None else Permission.ACT
    assert await switches.permission(pool="serve", action=Action.RESET) is elsewhere
    stop = await records.standing_stop("train")
    assert (stop["by"], stop["reason"]) == ("ann", "fire")
    assert await records.lift_stop(scope, by="ann", at=at(1))
    assert not await records.lift_stop(scope, by="ann", at=at(1))
    assert await switches.permission(pool="train", action=Action.RESET) is Permission.ACT


async def test_lifting_the_pools_stop_leaves_the_fleets(records, store):
    for scope in (None, "train"):
        await records.set_stop(scope, by="ann", reason="fire", at=T0)
    await records.lift_stop("train", by="ann", at=at(1))
    found = await safety(store, train=ACTING).permission(pool="train", action=Action.RESET)
    assert found is Permission.STOPPED


async def test_a_stop_set_by_another_process_is_seen(url, store, records):
    switches = safety(store, train=ACTING)
    assert await switches.permission(pool="train", action=Action.RESET) is Permission.ACT
    other = await open_store(url)
    await StoreRecords(other).set_stop(None, by="ann", reason="fire", at=T0)
    await other.close()
    assert await switches.permission(pool="train", action=Action.RESET) is Permission.STOPPED


async def test_a_switch_table_that_cannot_be_read_is_a_stop(store, records):
    async with store.write() as db:
        await db.execute(text("DROP TABLE stops"))
    found = await safety(store, train=ACTING).permission(pool="train", action=Action.RESET)
    assert found is Permission.STOPPED


@pytest.mark.parametrize("damage", ["gone", "garbage"])
async def test_a_lost_file_is_a_stop(sqlite_store, damage, tmp_path):
    store = sqlite_store
    await store.close()
    for file in (tmp_path / "state").iterdir():
        file.unlink()
    if damage == "garbage":
        (tmp_path / "state" / "sickbay.db").write_bytes(b"not a database " * 500)
    found = await safety(store, train=ACTING).permission(pool="train", action=Action.RESET)
    assert found is Permission.STOPPED


@pytest.mark.postgresql
async def test_a_lost_database_is_a_stop(postgres_server, postgres_url):
    store = await open_store(postgres_url)
    postgres_server.drop(postgres_url.rpartition("/")[2])
    found = await safety(store, train=ACTING).permission(pool="train", action=Action.RESET)
    assert found is Permission.STOPPED
    await store.close()


async def test_a_withheld_act_is_on_record_with_its_time(store, records):
    await safety(store).would_have(
        node="n1", pool="train", action=Action.RESET, detail="GPU-1", why="observe"
    )
    (row,) = await would_have_rows(store)
    assert (row.at, row.node, row.action, row.why) == (at(7), "n1", "reset", "observe")
