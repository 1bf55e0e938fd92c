"""A backup is whole or not there, while others write."""

import errno
import hashlib
import json
import sqlite3

import pytest

from sickbay.errors import Refused, UsageError
from sickbay.store import backup as backup_module
from sickbay.store.backup import back_up
from sickbay.store.engine import open_store
from sickbay.store.evidence import EvidenceFiles
from sickbay.store.records import StoreRecords
from tests.store.conftest import T0, hold, node_named


@pytest.fixture
async def running(tmp_path):
    """A store with a hold and a fact in evidence, still open; the state directory and the url."""
    state = tmp_path / "state"
    url = f"sqlite+aiosqlite:///{state / 'sickbay.db'}"
    store = await open_store(url)
    records = StoreRecords(store)
    await records.sync_inventory([node_named("n1")], at=T0)
    await records.place_hold(hold("n1"))
    await EvidenceFiles(state / "evidence").put(b"raw", kind="dcgm_diag")
    yield state, url
    await store.close()


def backed_up(running, target):
    state, url = running
    return back_up(url, target, state_dir=state, evidence_dir=state / "evidence", at=T0)


async def test_what_is_restored_from_a_backup_is_what_was_there(running, tmp_path):
    target = tmp_path / "backups" / "one"
    made = backed_up(running, target)
    copy = target / "sickbay.db"
    assert made.databases == {"sickbay.db": hashlib.sha256(copy.read_bytes()).hexdigest()}
    assert json.loads((target / "backup.json").read_text())["databases"] == made.databases
    assert target.stat().st_mode & 0o077 == 0
    assert copy.stat().st_mode & 0o077 == 0
    restored = await open_store(f"sqlite+aiosqlite:///{copy}")
    assert [h.id for h in await StoreRecords(restored).holds("n1")] == ["sickbay:r1"]
    await restored.close()
    digest = hashlib.sha256(b"raw").hexdigest()
    assert await EvidenceFiles(target / "evidence").get(digest) == b"raw"


async def test_a_directory_that_is_there_is_left_as_it_is(running, tmp_path):
    target = tmp_path / "one"
    target.mkdir()
    (target / "mine").write_text("keep")
    with pytest.raises(UsageError) as refused:
        backed_up(running, target)
    assert refused.value.field == "directory"
    assert [p.name for p in target.iterdir()] == ["mine"]


async def test_a_backup_that_finds_no_room_leaves_nothing(running, tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(backup_module.shutil, "copytree", full)
    with pytest.raises(UsageError, match="No space left"):
        backed_up(running, tmp_path / "one")
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


async def test_a_damaged_database_is_no_backup(running, tmp_path):
    state, _ = running
    (state / "temporal.db").write_bytes(b"SQLite format 3\0" + b"x" * 8192)
    with pytest.raises(Refused, match="not whole"):
        backed_up(running, tmp_path / "one")
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


async def test_it_is_taken_while_a_writer_writes(running, tmp_path):
    state, _ = running
    writer = sqlite3.connect(state / "sickbay.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM holds")
    backed_up(running, tmp_path / "one")
    writer.execute("ROLLBACK")
    writer.close()
    with sqlite3.connect(tmp_path / "one" / "sickbay.db") as copy:
        assert copy.execute("SELECT count(*) FROM holds").fetchone() == (1,)
    copy.close()


async def test_postgresql_is_backed_up_by_its_own_tool(tmp_path):
    with pytest.raises(Refused) as refused:
        back_up(
            "postgresql+psycopg://ann@db/sickbay", tmp_path / "one",
            state_dir=tmp_path, evidence_dir=tmp_path, at=T0,
        )  # fmt: skip
    assert "pg_dump" in str(refused.value.remedy)
    assert list(tmp_path.iterdir()) == []
