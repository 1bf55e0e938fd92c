"""The store on a PostgreSQL server that stops and starts, and beside other processes."""

import asyncio
import os
import subprocess
import sys
import time

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from sickbay.errors import Unreachable, UsageError
from sickbay.settings import load_settings
from sickbay.store import engine
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords
from tests import postgres
from tests.postgres import running_server
from tests.store.conftest import T0, hold, node_named, page, repair, step

_OPENER = """
import asyncio, sys
from sickbay.store.engine import open_store

async def main():
    store = await open_store(sys.argv[1])
    await store.close()

asyncio.run(main())
"""


async def test_two_processes_migrate_a_new_database_at_once(empty_url):
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", _OPENER, empty_url]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) for _ in "12"]
    for process in both:
        _, error = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0, error
    store = await open_store(empty_url)
    async with store.read() as db:
        assert await db.run_sync(engine.is_current)
    await store.close()


async def test_what_a_broken_tool_printed_is_still_booked(records, store):
    dirty = "xid 79\x00 \ud800 end"
    await records.save_repair(repair("r1", "n1", reason=dirty * 100, next_step=dirty))
    await records.save_step(step("r1", "n1", 1, "diagnose", "failed"))
    async with store.read() as db:
        found = (await db.execute(text("SELECT reason FROM repairs"))).scalar_one()
    assert found.startswith("xid 79\N{REPLACEMENT CHARACTER}")
    assert len(found) == len(dirty) * 100


async def test_the_same_row_from_many_writers_at_once_is_one_row(records, store):
    await asyncio.gather(*(records.place_hold(hold("n1")) for _ in range(8)))
    assert len(await records.holds("n1")) == 1
    new = await asyncio.gather(*(records.save_page(page(), at=T0) for _ in range(8)))
    assert sorted(new) == [False] * 7 + [True]
    times = [T0.replace(minute=m) for m in range(8)]
    await asyncio.gather(*(records.gate_moved("n1", open_=False, at=at) for at in times))
    async with store.read() as db:
        counted = text("SELECT count(*) FROM gate_intervals WHERE node = 'n1'")
        assert (await db.execute(counted)).scalar_one() == 2


@pytest.mark.postgresql
async def test_a_reader_sees_one_moment_while_others_write(postgres_url):
    store = await open_store(postgres_url)
    records = StoreRecords(store)
    count = text("SELECT count(*) FROM nodes")
    async with store.read() as db:
        before = (await db.execute(count)).scalar_one()
        await records.sync_inventory([node_named("n1")], at=T0)
        assert (await db.execute(count)).scalar_one() == before
    async with store.read() as db:
        assert (await db.execute(count)).scalar_one() == before + 1
    await store.close()


@pytest.mark.postgresql
async def test_a_turn_that_stays_taken_ends_in_an_error_not_in_waiting_forever(
    postgres_url, monkeypatch
):
    monkeypatch.setattr(engine, "LOCK_PAUSE_S", 0.01)
    store = await open_store(f"{postgres_url}?options=-c%20lock_timeout%3D100")
    async with store.write(turn="epoch train"):
        began = time.monotonic()
        with pytest.raises(OperationalError, match="lock timeout"):
            await StoreRecords(store).next_epoch("train")
        assert time.monotonic() - began < 10
        assert await StoreRecords(store).next_epoch("serve") == 1
    assert await StoreRecords(store).next_epoch("train") == 1
    await store.close()


@pytest.mark.postgresql
async def test_a_server_that_comes_back_is_used_again(postgres_server):
    """Its own server: the session's one is everybody's."""
    with running_server() as server:
        store = await open_store(server.url(server.new_database()))
        records = StoreRecords(store)
        await records.sync_inventory([node_named("n1")], at=T0)
        server.stop()
        with pytest.raises(OperationalError):
            await records.save_repair(repair("r1", "n1"))
        with pytest.raises(Unreachable, match="does not answer") as closed:
            await open_store(server.url("postgres"))
        assert closed.value.remedy.startswith("check that the server runs")
        server.start()
        await records.save_repair(repair("r1", "n1"))
        assert (await records.node("n1")) is not None
        await store.close()


@pytest.mark.postgresql
async def test_the_password_comes_from_its_file_or_variable_and_shows_nowhere(
    postgres_server, tmp_path
):
    name = postgres_server.new_database()
    postgres_server.admin("CREATE ROLE keeper LOGIN PASSWORD 's3cret' SUPERUSER")
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    url = postgres_server.url(name).replace("sickbay@", "keeper@")
    environ = {"SICKBAY_STORE__URL": url, "SICKBAY_STORE__PASSWORD_FILE": str(secret)}
    settings = load_settings(None, environ=environ)
    assert settings.store_password() == "s3cret"
    assert "s3cret" not in settings.model_dump_json()
    store = await open_store(settings.store_url, password=settings.store_password())
    assert "s3cret" not in repr(store)
    assert "s3cret" not in str(store.engine.url)
    await store.close()
    by_name = load_settings(None, environ={"SICKBAY_STORE__PASSWORD_ENV": "PGSECRET"})
    assert by_name.store_password(environ={"PGSECRET": "x"}) == "x"
    with pytest.raises(UsageError) as missing:
        by_name.store_password(environ={})
    assert missing.value.field == "store.password_env"


@pytest.mark.parametrize(("required", "ends"), [("", "skip"), ("1", "fail")])
def test_a_missing_server_skips_on_a_laptop_and_fails_where_parts_are_required(
    monkeypatch, required, ends
):
    monkeypatch.setenv("SICKBAY_REQUIRE_PARTS", required)
    monkeypatch.setattr(postgres, "find_binaries", lambda: None)
    with pytest.raises(OSError, match="no PostgreSQL"), running_server():
        pytest.fail("a server without binaries")
    with pytest.raises(getattr(pytest, ends).Exception, match="apt install postgresql"):
        postgres._missing("no PostgreSQL binaries")


@pytest.mark.parametrize(
    "url", ["postgresql://ann:hush@db/sickbay", "postgresql://ann@db/sickbay?password=hush"]
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url):
    with pytest.raises(UsageError) as refused:
        load_settings(None, environ={"SICKBAY_STORE__URL": url})
    assert refused.value.field == "store.url"
    assert "hush" not in refused.value.message
    assert "password_file" in refused.value.message
