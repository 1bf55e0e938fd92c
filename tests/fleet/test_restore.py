"""The real installation after a restore, and with two control workers, on PostgreSQL and SQLite."""

import asyncio
import json
import sqlite3

import pytest

from sickbay.cli.main import invoke
from sickbay.contracts.names import SCORING_WORKFLOW
from sickbay.contracts.repair import PartReplaced
from sickbay.domain.recovery import RunStatus
from sickbay.errors import SickbayError
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords

SETTINGS = """
time_scale = 720

[store]
url = "{url}"

[simulator]
enabled = true
nodes = 6
pools = 1
group_size = 1
seed = 5
faults = 0
technician = false

[budget]
allowance = 6
cap = 6
max_out = 6
"""
SLOT = "gpu2"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def store_url(request):
    """The default, a SQLite file in the state directory, and a PostgreSQL database."""
    return "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def command(capsys, *args):
    """A command's exit code and what it says as JSON."""
    capsys.readouterr()
    code = invoke([*args, "--json"])
    return code, json.loads(capsys.readouterr().out)


async def in_thread(capsys, *args):
    return await asyncio.to_thread(command, capsys, *args)


def gate_events(f, node):
    return [r["kind"] for r in f.log() if r.get("node") == node and "gate" in r["kind"]]


async def at_swap(f, node):
    await f.inject(node, "remap_failure", SLOT)

    async def there() -> bool:
        return (await f.rows())[node].stage == "swap"

    await f.until(f"{node} waits for a part", there, within_s=90)


async def waits_for_a_part(f, node) -> bool:
    """Whether a running repair, not one that a restore lost, is at the swap."""
    run = await f.repairs.last_run(node)
    if run.status is not RunStatus.RUNNING:
        return False
    try:
        return (await f.repairs.status(node)).stage == "swap"
    except SickbayError:
        return False


async def swapped_and_back(f, node):
    async def ready() -> bool:
        return await waits_for_a_part(f, node)

    await f.until(f"the repair of {node} waits for its part", ready, within_s=120)
    serial = (await f.http.post("/technician/replace", json={"node": node, "slot": SLOT})).json()
    report = PartReplaced(SLOT, serial["serial"], "tess")

    async def taken() -> bool:
        try:
            await f.repairs.send(node, "part_replaced", report)
        except SickbayError:
            return False
        return True

    async def back() -> bool:
        return gate_events(f, node)[-1] == "gate_opened"

    await f.until("the report is taken", taken, within_s=60)
    await f.until(f"{node} is back", back, within_s=90)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_repair_that_a_restore_lost_is_rebuilt_and_returns_its_node(
    fleet, store_url, capsys
):
    async with fleet(SETTINGS.format(url=store_url)) as f:
        node = min(await f.rows())
        await at_swap(f, node)
        state = ["--state", str(f.settings.state_dir)]
        assert (await in_thread(capsys, "rebuild", *state))[1]["differences"] == []
        (hold,) = await f.records.holds(node)
        await f.repairs._client.get_workflow_handle(f"node-repair/{node}").terminate("a restore")
        code, looked = await in_thread(capsys, "rebuild", "--dry-run", *state)
        (row,) = looked["differences"]
        assert (code, row["node"], row["hold"], row["done"]) == (0, node, hold.id, None)
        assert (row["remedy"], row["start_at"]) == ("start", "diagnose")
        _, mended = await in_thread(capsys, "rebuild", *state)
        assert mended["differences"][0]["done"] == "a repair goes on at diagnose"
        assert (await in_thread(capsys, "rebuild", *state))[1]["differences"] == []
        assert [h.id for h in await f.records.holds(node)] == [hold.id]
        assert gate_events(f, node).count("gate_closed") == 1
        await swapped_and_back(f, node)
        _, budget = await in_thread(capsys, "budget", "pool-a", *state)
        assert budget["granted"] == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_control_worker_that_starts_gives_lost_repairs_back_by_itself(fleet):
    async with fleet(SETTINGS.format(url="")) as f:
        node = min(await f.rows())
        await at_swap(f, node)
        await f.repairs._client.get_workflow_handle(f"node-repair/{node}").terminate("a restore")
        f.kill("workers.control")
        await swapped_and_back(f, node)
        assert gate_events(f, node).count("gate_closed") == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.postgresql
async def test_two_control_workers_share_one_database_and_one_may_die(fleet, postgres_url):
    async with fleet(SETTINGS.format(url=postgres_url)) as f:
        first, second = sorted(await f.rows())[:2]
        run_file = str(f.installation.run_file)
        f.installation._start("workers.control", "--config", run_file, label="second-control")
        await at_swap(f, first)
        await swapped_and_back(f, first)
        scoring = f.repairs._client.list_workflows(f"WorkflowType = '{SCORING_WORKFLOW}'")
        assert [w.id async for w in scoring] == ["pool-scoring/pool-a"]
        f.kill("workers.control")
        await at_swap(f, second)
        await swapped_and_back(f, second)
        for node in (first, second):
            assert gate_events(f, node) == ["gate_closed", "gate_opened"]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_backup_of_a_running_installation_is_whole(fleet, tmp_path, capsys):
    async with fleet(SETTINGS.format(url="")) as f:
        node = min(await f.rows())
        await at_swap(f, node)
        state = ["--state", str(f.settings.state_dir)]
        target = tmp_path / "backup"
        code, made = await in_thread(capsys, "backup", str(target), *state)
        assert code == 0
        assert set(made["databases"]) == {"sickbay.db", "temporal.db"}
        assert made["evidence"] > 0
        code, refused = await in_thread(capsys, "backup", str(target), *state)
        assert (code, refused["error"]["field"]) == (2, "directory")
        with sqlite3.connect(target / "temporal.db") as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        copy = await open_store(f"sqlite+aiosqlite:///{target / 'sickbay.db'}")
        holds = await StoreRecords(copy).holds(node)
        assert [h.id for h in holds] == [h.id for h in await f.records.holds(node)]
        await copy.close()
        code, gone = await in_thread(capsys, "prune", *state)
        assert (code, gone["evidence"]) == (0, 0)
