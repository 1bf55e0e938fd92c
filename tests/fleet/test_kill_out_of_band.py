"""Power cycles and reflashes over a whole installation: killed, unanswered, slow; one act each."""

import sqlite3
from collections import Counter
from datetime import UTC, datetime

import pytest

from sickbay.contracts.operations import Phase
from sickbay.contracts.repair import Fault
from sickbay.domain.node import Category, Severity, Treatment
from sickbay.store.queries import recent_repairs

SETTINGS = """
time_scale = 240

[simulator]
enabled = true
nodes = {nodes}
pools = 1
group_size = 1
seed = 5
faults = 0
technician = false
node_processes = {processes}

[bmc]
off_s = 240

[budget]
allowance = 50
cap = 20
max_out = 20
"""
SLOT = "gpu2"
WEDGED_REASON, COLD_REASON = "min:interconnect", "hard_fail:xid_79"
# One of the two kinds, and what its repair begins with: the lower rungs are walked elsewhere.
KINDS = {
    Treatment.POWER_CYCLE: ("off_bus_cold", COLD_REASON, Category.INTERCONNECT),
    Treatment.REFLASH: ("firmware_wedged", WEDGED_REASON, Category.INTERCONNECT),
}
# A controller that is silent for a while after each change keeps a phase open long enough to be
# met; so does an answer to a flash that never comes.
SLOW = {"fault": "slow_bmc", "times": 2, "minutes": 6}
LOST_FLASH = {"fault": "lost_answer", "act": "flash", "hang_s": 6}
LOST_POWER = {"fault": "lost_answer", "act": "power", "times": 2, "hang_s": 1}


async def ask(f, node, treatment):
    """A node that needs this treatment, and a person's finding that says so."""
    kind, reason, category = KINDS[treatment]
    fault = Fault(
        id=f"chaos/{node}",
        node=node,
        observed_at=datetime.now(UTC),
        reason=reason,
        severity=Severity.CRITICAL,
        category=category,
        source="person",
        hard=True,
        slot=SLOT,
        treatment=treatment,
    )
    await f.inject(node, kind, SLOT)
    await f.repairs.report(fault, pool=(await f.rows())[node].pool)


async def misbehave(f, node, **wanted):
    answer = await f.http.post("/bmc-faults", json={"node": node, **wanted})
    assert answer.status_code == 200, answer.text


def operations(f):
    """The journal of acts out of band as it is now: rows of node, treatment, phase and the rest."""
    path = f.settings.store_url.partition("///")[2]
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        db.row_factory = sqlite3.Row
        found = db.execute("select * from operations order by started_at").fetchall()
    return [dict(row) for row in found]


async def wait_for_all(f, nodes, *, meanwhile=lambda: None) -> None:
    """Until all have returned; their stories are printed, for the case that one does not."""

    async def over() -> bool:
        meanwhile()
        return await all_returned(f, nodes)

    try:
        await f.until("all return", over, within_s=270)
    finally:
        for repair in await recent_repairs(f.records.store):
            print(repair.node, repair.stage, repair.ending, repair.next_step)
            for step in repair.steps:
                print("   ", step.ended_at.time(), step.stage, step.outcome, step.detail[:120])
        print(*operations(f), sep="\n")


async def all_returned(f, nodes) -> bool:
    """Every node has a repair, and the newest of each ended proven, its gate open."""
    newest = {}
    for row in await recent_repairs(f.records.store):
        newest.setdefault(row.node, row)
    rows = await f.rows()
    return all(
        node in newest and newest[node].ending == "returned" and rows[node].gate_open
        for node in nodes
    )


async def assert_proven(f, nodes):
    """Each repair that ended did so by the proof, and nothing is broken any more."""
    repairs = [r for r in await recent_repairs(f.records.store) if r.node in nodes]
    assert {r.node for r in repairs} == set(nodes)
    for repair in repairs:
        last = [(s.stage, s.outcome) for s in repair.steps]
        assert last[-2:] == [("prove", "passed"), ("return", "returned")], repair
        if repair.cured_by:
            assert last[-3] == ("prove", "passed"), repair
    truth = (await f.http.get("/truth")).json()["faults"]
    assert [t for t in truth if t["node"] in nodes] == []


def assert_one_effect_each(f, nodes):
    """What the fleet saw is as much as the journal holds: by the simulator's own log."""
    wanted, seen = Counter(), Counter()
    for row in operations(f):
        assert row["outcome"] == "succeeded", row
        assert row["witness"], row
        verbs = {"power_cycle": ("power_off", "power_on"), "reflash": ("flash_started",)}
        wanted.update((row["node"], verb) for verb in verbs[row["treatment"]])
    for row in f.log():
        if row["kind"] in {"power_off", "power_on", "flash_started"}:
            seen[row["node"], row["kind"]] += 1
    assert seen == wanted
    assert {node for node, _ in seen} == set(nodes)


def flash_began(f, node) -> bool:
    return any(r["kind"] == "flash_started" and r["node"] == node for r in f.log())


async def two_nodes(f, count=2):
    return sorted(await f.rows())[:count]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["workers.control", "temporal"])
async def test_c51_c53_killed_in_each_phase_of_a_power_cycle_and_of_a_flash(fleet, victim):
    async with fleet(SETTINGS.format(nodes=4, processes=1)) as f:
        cold, wedged = nodes = await two_nodes(f)
        await misbehave(f, cold, **SLOW)
        await misbehave(f, wedged, **LOST_FLASH)
        missing = {
            *((cold, phase) for phase in (Phase.OFF_ASKED, Phase.OFF_SEEN, Phase.ON_ASKED)),
            *((wedged, phase) for phase in (Phase.FLASH_ASKED, Phase.FLASHING)),
        }
        await ask(f, cold, Treatment.POWER_CYCLE)
        await ask(f, wedged, Treatment.REFLASH)

        def kill_in_a_new_phase() -> None:
            for row in operations(f):
                met = (row["node"], row["phase"])
                if row["phase"] == Phase.FLASH_ASKED and not flash_began(f, row["node"]):
                    # Killed before anything was sent, a flash counts as tried: decision 0017.
                    continue
                if row["outcome"] is None and met in missing:
                    missing.discard(met)
                    f.kill(victim)

        await wait_for_all(f, nodes, meanwhile=kill_in_a_new_phase)
        assert not missing, f"never killed in {missing}"
        await assert_proven(f, nodes)
        assert_one_effect_each(f, nodes)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_c51_c53_lost_answers_a_slow_controller_and_a_task_that_is_gone(fleet):
    async with fleet(SETTINGS.format(nodes=4, processes=1)) as f:
        lost, slow, unanswered, gone = nodes = await two_nodes(f, 4)
        await misbehave(f, lost, **LOST_POWER)
        await misbehave(f, slow, **SLOW)
        await misbehave(f, unanswered, **LOST_FLASH)
        await misbehave(f, gone, fault="task_gone")
        for node in (lost, slow):
            await ask(f, node, Treatment.POWER_CYCLE)
        for node in (unanswered, gone):
            await ask(f, node, Treatment.REFLASH)

        await wait_for_all(f, nodes)
        await assert_proven(f, nodes)
        assert_one_effect_each(f, nodes)
        # The canary first: the second node was flashed after the first had come back.
        log = f.log()
        flashed = [r["node"] for r in log if r["kind"] == "flash_started"]
        first_back = next(
            i for i, r in enumerate(log) if r["kind"] == "gate_opened" and r["node"] == flashed[0]
        )
        second = next(
            i for i, r in enumerate(log) if r["kind"] == "flash_started" and r["node"] == flashed[1]
        )
        assert first_back < second


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_hung_node_is_power_cycled_from_outside_and_returns_proven(fleet):
    """Its worker is silent and its host answers nothing: no rung through the node is tried."""
    async with fleet(SETTINGS.format(nodes=4, processes=4), watch=False) as f:
        node, *others = sorted(await f.rows())
        (worker,) = [c for c in f.installation.processes.children if c.name == "workers.node-1"]
        await f.inject(node, "host_hang")
        f.kill(worker.name)
        fault = Fault(
            id=f"chaos/{node}",
            node=node,
            observed_at=datetime.now(UTC),
            reason="no answer",
            severity=Severity.CRITICAL,
            category=Category.HOST,
            source="person",
            hard=False,
        )
        await f.repairs.report(fault, pool=(await f.rows())[node].pool)

        async def cycled() -> bool:
            return any(r["kind"] == "power_on" for r in f.log())

        await f.until("the power is given back", cycled, within_s=120)
        worker.start()

        await wait_for_all(f, [node])
        await assert_proven(f, [node])
        assert_one_effect_each(f, [node])
        (repair,) = [r for r in await recent_repairs(f.records.store) if r.node == node]
        story = [f"{s.stage} {s.outcome}" for s in repair.steps]
        assert story[2:4] == ["diagnose unreachable", "power_cycle done"], story
        assert not [r for r in f.log() if r["kind"] == "gpu_reset"]
        assert not [r for r in f.log() if r["kind"] == "power_off" and r["node"] in others]
