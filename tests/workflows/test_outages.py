"""The store's server stops in mid-repair, a disk fills up: the repair waits, and goes on."""

import asyncio
import errno
import subprocess

import pytest

from sickbay.domain.node import Treatment
from sickbay.store import evidence as evidence_module
from sickbay.store.engine import open_store
from sickbay.store.evidence import EvidenceFiles
from sickbay.store.queries import node_view
from sickbay.store.records import StoreRecords
from tests.postgres import running_server
from tests.workflows.conftest import utc_now
from workers.disk_full import DiskFullPages


@pytest.mark.postgresql
@pytest.mark.timeout(180)
async def test_postgresql_down_in_mid_repair_delays_it_and_nothing_else(start, postgres_server):
    """Its own server: the session's one is everybody's."""
    with running_server() as server:
        store = await open_store(server.url(server.new_database()))
        records = StoreRecords(store)

        def on_postgresql(loop):
            loop.records = records

        async with start(prepare=on_postgresql) as loop:
            await records.sync_inventory(list(loop.fleet.records.values()))
            loop.runner.hold("n001")
            await loop.broken("n001", Treatment.RESET)
            await loop.until_stage("diagnose")
            server.stop()
            loop.runner.let_go("n001")
            await asyncio.sleep(2.5)
            assert (await loop.repairs.status("n001")).ending is None
            assert not loop.fleet["n001"].gate_open
            server.start()
            assert (await loop.ended()).ending == "returned"
            told = await loop.repairs.history("n001")
            (booked,) = (await node_view(store, "n001")).past
            assert booked.ending == "returned"
            assert [s.ordinal for s in booked.steps] == [s.ordinal for s in told]
            assert await records.holds("n001") == ()
            assert loop.fleet.done() == [Treatment.RESET]
        await store.close()


@pytest.fixture(params=["tmpfs", "injected"])
def small_disk(request, tmp_path, monkeypatch):
    """A full disk for evidence: its directory, and a call that makes room."""
    home = tmp_path / "disk"
    home.mkdir()
    if request.param == "injected":

        def full(**_):
            raise OSError(errno.ENOSPC, "No space left on device")

        good = evidence_module.tempfile.mkstemp
        monkeypatch.setattr(evidence_module.tempfile, "mkstemp", full)
        yield home, lambda: monkeypatch.setattr(evidence_module.tempfile, "mkstemp", good)
        return
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(home)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    ballast = home / "ballast"
    # As many bytes as the whole file system has: what fits is written, then it is full.
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(512 * 1024))
    yield home, ballast.unlink
    subprocess.run(["umount", str(home)], check=True)


async def test_a_full_disk_is_one_page_and_the_repair_waits_for_room(start, small_disk):
    home, make_room = small_disk
    files = EvidenceFiles(home / "evidence")

    def on_the_small_disk(loop):
        loop.evidence = files
        loop.interceptors = [DiskFullPages(loop.pager, where="host1", clock=utc_now)]

    async with start(prepare=on_the_small_disk) as loop:
        await loop.broken("n001", Treatment.RESET)
        await loop.until("a person is called", lambda: loop.pager.about("no space left"))
        await asyncio.sleep(2.0)
        assert len(loop.pager.about("no space left")) == 1
        assert (await loop.story()) == ["permit granted", "drain drained"]
        assert not loop.fleet["n001"].gate_open
        assert [p for p in home.rglob("*") if p.is_file() and p.name != "ballast"] == []
        make_room()
        assert (await loop.ended()).ending == "returned"
        assert (await loop.story()).count("prove passed") == 2
        assert len(loop.pager.about("no space left")) == 1
