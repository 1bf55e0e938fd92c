"""Retention removes what nobody needs, and no figure and no open repair changes by it."""

import asyncio
import os
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from sickbay.contracts.sweep import Pruned, Retention
from sickbay.domain.health import Standing
from sickbay.domain.node import Severity
from sickbay.errors import EvidenceMissing
from sickbay.store import tables as t
from sickbay.store.engine import open_store
from sickbay.store.evidence import EvidenceFiles
from sickbay.store.records import StoreRecords
from sickbay.store.reports import fleet_usage
from sickbay.store.retention import StoreRetention
from tests.store.conftest import HEALTHY, SICK, T0, at, hold, node_named, repair, step, ticket

ALL = Retention(kernel_events_s=3600, would_have_s=3600, health_changes_s=3600, evidence_s=3600)
NOW = at(600)


@pytest.fixture
def evidence(tmp_path, records):
    return EvidenceFiles(
        tmp_path / "evidence", index=lambda ref: records.index_evidence(ref, at=T0)
    )


@pytest.fixture
def retention(store, evidence):
    return StoreRetention(store, evidence=evidence)


async def count(store, table):
    async with store.read() as db:
        return (await db.execute(select(func.count()).select_from(table))).scalar_one()


async def old(evidence, tmp_path, data):
    """Evidence as if stored at the beginning."""
    ref = await evidence.put(data, kind="dcgm_diag")
    path = tmp_path / "evidence" / ref.sha256[:2] / ref.sha256
    os.utime(path, (T0.timestamp(), T0.timestamp()))
    return ref.sha256


async def test_old_kernel_records_and_withheld_acts_go_and_newer_ones_stay(
    store, records, retention
):
    for minute in (0, 590):
        await records.seen_event(("b", minute, "text"), at=at(minute))
        await records.save_would_have(
            node="n1", pool="train", action="reset", detail="", why="observe", at=at(minute)
        )
    assert await retention.prune(ALL, now=NOW) == Pruned(kernel_events=1, would_have=1)
    assert await count(store, t.kernel_events) == await count(store, t.would_have) == 1
    assert await retention.prune(ALL, now=NOW) == Pruned()
    assert await retention.prune(Retention(), now=at(10**6)) == Pruned()


async def test_evidence_of_a_running_repair_or_an_open_ticket_stays(
    records, retention, evidence, tmp_path
):
    running, asked, done, loose, again = [
        await old(evidence, tmp_path, word) for word in (b"run", b"ask", b"done", b"lost", b"twice")
    ]
    await records.save_repair(repair("r1", "n1"))
    await records.save_repair(repair("r2", "n1", ending="returned", updated_at=at(2)))
    from dataclasses import replace

    await records.save_step(
        replace(step("r1", "n1", 1, "diagnose", "confirmed"), evidence=(running,))
    )
    await records.save_step(replace(step("r2", "n1", 1, "diagnose", "confirmed"), evidence=(done,)))
    await records.save_ticket(replace(ticket(), evidence=(asked,)), at=T0)
    await evidence.put(b"twice", kind="dcgm_diag")
    assert (await retention.prune(ALL, now=NOW)).evidence == 2
    for kept in (running, asked, again):
        assert await evidence.get(kept)
    for gone in (done, loose):
        with pytest.raises(EvidenceMissing):
            await evidence.get(gone)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["n1", "n2"]),
        st.sampled_from([Standing.HEALTHY, Standing.QUARANTINED, Standing.UNKNOWN]),
        st.integers(1, 60),
    ),
    max_size=25,
)


@settings(max_examples=15, deadline=None)
@given(changes=CHANGES, kept_min=st.integers(0, 600))
def test_no_figure_of_the_fleet_changes(tmp_path_factory, changes, kept_min):
    async def check():
        home = tmp_path_factory.mktemp("pruned")
        store = await open_store(f"sqlite+aiosqlite:///{home / 'x.db'}")
        records = StoreRecords(store)
        await records.sync_inventory([node_named("n1"), node_named("n2")], at=T0)
        minute = 0
        for node, standing, step_min in changes:
            minute += step_min
            health = SICK if standing is Standing.QUARANTINED else HEALTHY
            await records.save_health(
                node, health=health, standing=standing, at=at(minute), rules="1 ab"
            )
        end = at(minute + 60)

        async def figures():
            return (
                await fleet_usage(store, start=T0, end=end),
                await records.standings("train"),
                [(await records.present_health(n)) for n in ("n1", "n2")],
            )

        before = await figures()
        pruner = StoreRetention(store, evidence=EvidenceFiles(home / "evidence"))
        await pruner.prune(Retention(health_changes_s=kept_min * 60.0), now=end)
        assert await figures() == before
        assert await pruner.prune(Retention(health_changes_s=kept_min * 60.0), now=end) == Pruned()
        await store.close()

    asyncio.run(check())


async def test_what_is_known_of_a_lost_repair_is_read_back_whole(records):
    wanted = repair("r1", "n1", severity=Severity.MAJOR, category="memory", deadline=at(5))
    await records.save_repair(wanted)
    await records.save_step(step("r1", "n1", 7, "diagnose", "confirmed"))
    assert await records.repair_on_record("r1") == (wanted, 7)
    assert await records.repair_on_record("nobody") is None
    assert await records.last_step_of_standing("n1") == 0
    await records.place_hold(hold("n1"))
    context = await records.node_context("n1", now=NOW, memory_s=1, probation_s=1)
    assert (context.last_step, [h.repair_id for h in context.holds]) == (7, ["r1"])


async def test_the_open_tickets_of_a_lost_repair_are_known(records):
    first = await records.save_ticket(ticket(), at=T0)
    second = await records.save_ticket(ticket("n1/gpu1/memory"), at=T0)
    await records.ticket_line(second, text="done", at=at(1), close=True)
    assert await records.open_tickets_of("r1") == (first,)
    assert await records.open_tickets_of("r2") == ()


async def test_a_lost_repair_ends_on_record_once_and_another_ending_stays(records):
    await records.save_repair(repair("r1", "n1"))
    await records.save_repair(repair("r2", "n1", ending="returned", ended_at=at(3)))
    assert [r.repair_id for r in await records.open_repairs()] == ["r1"]
    assert await records.open_repairs("n2") == ()
    for repair_id in ("r1", "r2"):
        await records.lose_repair(repair_id, at=at(9))
    (one, _), (two, _) = [await records.repair_on_record(r) for r in ("r1", "r2")]
    assert (one.ending, two.ending) == ("lost", "returned")
    assert await records.open_repairs() == ()


def test_a_kept_time_is_never_under_an_hour_of_the_wall_clock():
    from sickbay.settings import load_settings

    fast = load_settings(None, environ={}, time_scale=100_000, retention__evidence_days=0)
    kept = fast.sweep().retention
    assert kept.kernel_events_s == 3600.0
    assert kept.evidence_s is None
    plain = load_settings(None, environ={})
    assert timedelta(seconds=plain.sweep().retention.evidence_s) == timedelta(days=365)
    assert plain.sweep().every_s == 3600.0
