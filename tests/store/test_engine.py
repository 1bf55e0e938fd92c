"""The file several processes share: pragmas, migrations, newer schemas, locks."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from sickbay.errors import SchemaTooNew, Unreachable, UsageError
from sickbay.store import engine, tables
from sickbay.store.engine import Store, migrate, migration_config, open_store
from sickbay.store.records import StoreRecords
from tests.store.conftest import T0, node_named


def _file(store: Store) -> Path:
    return Path(str(store.engine.url.database))


async def test_a_new_store_is_wal_normal_and_checks_foreign_keys(sqlite_store):
    async with sqlite_store.read() as db:
        found = {
            name: (await db.execute(text(f"PRAGMA {name}"))).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert found["journal_mode"] == "wal"
    assert (found["synchronous"], found["foreign_keys"]) == (1, 1)
    assert found["busy_timeout"] > 0


async def test_migrations_make_exactly_the_declared_tables(store):
    def difference(connection: Connection) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), tables.metadata)

    async with store.read() as db:
        assert await db.run_sync(difference) == []


async def test_migrations_go_down_and_up_again_without_losing_the_fleet(store):
    await StoreRecords(store).sync_inventory([node_named("n1")], at=T0)

    def down(connection: Connection, target: str) -> None:
        config = migration_config()
        config.attributes["connection"] = connection
        command.downgrade(config, target)

    async with store.write() as db:
        await db.run_sync(down, "0001")
    async with store.write() as db:
        await db.run_sync(migrate)
    node = await StoreRecords(store).node("n1")
    assert node is not None
    assert len(node.parts) == 2
    async with store.write() as db:
        await db.run_sync(down, "base")
        left = await db.run_sync(lambda connection: inspect(connection).get_table_names())
        assert set(left) <= {"alembic_version"}


async def test_a_database_of_a_newer_release_is_refused_and_left_alone(url):
    store = await open_store(url)
    async with store.write() as db:
        await db.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await store.close()
    with pytest.raises(SchemaTooNew, match="9999") as refused:
        await open_store(url)
    assert "newer release" in str(refused.value.remedy)
    async with store.read() as db:
        left = await db.execute(text("SELECT version_num FROM alembic_version"))
        assert left.scalars().all() == ["9999"]
    await store.close()


async def test_many_may_open_a_new_database_at_once(empty_url):
    stores = await asyncio.gather(*(open_store(empty_url) for _ in range(6)))
    async with stores[0].read() as db:
        assert (await db.execute(select(tables.nodes))).all() == []
    for store in stores:
        await store.close()


@pytest.mark.parametrize("bad", ["nonsense", "postgres+nope://x/y", "sqlite:///sync.db"])
async def test_a_url_that_makes_no_sense_is_one_clear_line(bad):
    with pytest.raises(UsageError) as error:
        await open_store(bad)
    assert error.value.field == "store.url"


async def test_a_file_that_is_no_database_is_one_clear_line(tmp_path):
    (tmp_path / "x.db").write_bytes(b"not a database " * 100)
    with pytest.raises(Unreachable, match="not a database"):
        await open_store(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unreachable):
        await open_store(f"sqlite+aiosqlite:///{tmp_path / 'file' / 'x.db'}")


async def test_a_write_that_fails_leaves_nothing_behind(store, records):
    async def half_a_write() -> None:
        async with store.write() as db:
            await db.execute(text("DELETE FROM parts"))
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError):
        await half_a_write()
    node = await records.node("n1")
    assert node is not None
    assert len(node.parts) == 2


async def test_history_of_an_unknown_node_is_refused(records):
    with pytest.raises(IntegrityError):
        await records.returned("nobody", repair_id="r1", at=T0)


async def test_a_write_waits_out_a_lock_longer_than_the_busy_timeout(sqlite_store, monkeypatch):
    monkeypatch.setattr(engine, "LOCK_PAUSE_S", 0.2)
    async with sqlite_store.engine.connect() as db:
        raw = await db.get_raw_connection()
        await raw.driver_connection.execute("PRAGMA busy_timeout=10")
    other = sqlite3.connect(_file(sqlite_store), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    asyncio.get_running_loop().call_later(0.3, other.execute, "ROLLBACK")
    assert await StoreRecords(sqlite_store).next_epoch("train") == 1
    other.close()


async def test_a_lock_that_stays_taken_ends_in_an_error_not_in_waiting_forever(
    sqlite_store, monkeypatch
):
    monkeypatch.setattr(engine, "LOCK_PAUSE_S", 0.01)
    async with sqlite_store.engine.connect() as db:
        raw = await db.get_raw_connection()
        await raw.driver_connection.execute("PRAGMA busy_timeout=10")
    other = sqlite3.connect(_file(sqlite_store), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperationalError, match="locked"):
        await StoreRecords(sqlite_store).next_epoch("train")
    other.execute("ROLLBACK")
    assert await StoreRecords(sqlite_store).next_epoch("train") == 1
    other.close()


_WRITER = """
import asyncio, sys
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords

async def main():
    store = await open_store(sys.argv[1])
    taken = [await StoreRecords(store).next_epoch("train") for _ in range(40)]
    await store.close()
    print(*taken)

asyncio.run(main())
"""


async def test_two_processes_and_this_one_never_take_the_same_epoch(url):
    others = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, url],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        for _ in range(2)
    ]
    store = await open_store(url)
    records = StoreRecords(store)
    mine = await asyncio.gather(*(records.next_epoch("train") for _ in range(40)))
    taken = list(mine)
    for other in others:
        out, _ = await asyncio.to_thread(other.communicate, timeout=60)
        assert other.returncode == 0
        taken += [int(word) for word in out.split()]
    await store.close()
    assert sorted(taken) == list(range(1, 121))
