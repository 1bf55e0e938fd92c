"""The scoring activity against ports that can fail, go silent and change hands."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.scoring import ScoringActivities
from sickbay.contracts.scoring import ScoringInput, scaled_times
from sickbay.domain.gate import Hold, HoldKind, mark_of
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Node, Part, PartKind
from sickbay.errors import Superseded
from sickbay.ports import KernelEntry, NodeSample

T0 = datetime(2026, 12, 1, tzinfo=UTC)
BUS = [f"00000000:{0x10 + g:02X}:00.0" for g in range(8)]
PAGE = {
    "POWER_USAGE": 400, "TOTAL_ENERGY_CONSUMPTION": 1, "SM_CLOCK": 1980, "GPU_TEMP": 60,
    "GPU_UTIL": 95, "XID_ERRORS": 0, "ROW_REMAP_FAILURE": 0, "UNCORRECTABLE_REMAPPED_ROWS": 0,
    "PCIE_REPLAY_COUNTER": 0, "ECC_DBE_VOL_TOTAL": 0,
}  # fmt: skip


def make_node(name: str) -> Node:
    parts = tuple(
        Part(f"gpu{g}", PartKind.GPU, f"GPU-{name}-{g}", "s", f"0000:{0x10 + g:02x}:00")
        for g in range(8)
    )
    return Node(name, "pool-a", "g1", "r1", "h200x8", parts)


@dataclass
class Outside:
    """Every port of the activity in one fake; `at` moves one tick per read."""

    names: list[str]
    at: datetime = T0
    reads: int = 0
    epoch: int = 0
    silent: set[str] = field(default_factory=set)
    bent: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    events: dict[str, list[KernelEntry]] = field(default_factory=dict)
    saved: list[tuple[str, Health, Standing]] = field(default_factory=list)
    stored: dict[str, tuple[Health, Standing, datetime]] = field(default_factory=dict)
    faults: list = field(default_factory=list)
    withheld: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    returns: dict[str, datetime] = field(default_factory=dict)
    holds_on: dict[str, tuple[Hold, ...]] = field(default_factory=dict)
    broken_for: set[str] = field(default_factory=set)
    step_s: float = 15.0
    script: dict[int, object] = field(default_factory=dict)

    def clock(self) -> datetime:
        return self.at

    async def read(self, nodes):
        self.reads += 1
        self.at += timedelta(seconds=self.step_s)
        action = self.script.get(self.reads)
        if action is not None:
            action()
        return [self._sample(n) for n in nodes]

    def _sample(self, node):
        events = tuple(self.events.pop(node, ()))
        if node in self.silent:
            return NodeSample(node, self.at, None, error="no answer", events=events)
        lines = []
        for g in range(8):
            values = {
                **PAGE,
                "TOTAL_ENERGY_CONSUMPTION": self.reads,
                **self.bent.get((node, g), {}),
            }
            lines += [
                f'DCGM_FI_DEV_{k}{{gpu="{g}",UUID="GPU-{node}-{g}",pci_bus_id="{BUS[g]}"}} {v}'
                for k, v in values.items()
            ]
        return NodeSample(node, self.at, "\n".join(lines), events=events)

    async def nodes(self, *, pool=None):
        return tuple(make_node(n) for n in self.names)

    async def next_epoch(self, pool):
        self.epoch += 1
        return self.epoch

    async def epoch_is_current(self, pool, epoch):
        return epoch == self.epoch

    async def standings(self, pool):
        return dict(self.stored)

    async def last_returns(self, pool):
        return dict(self.returns)

    async def holds(self, node):
        return self.holds_on.get(node, ())

    async def save_health(self, node, *, health, standing, at, rules, epoch=None):
        if epoch is not None and epoch < self.epoch:
            raise Superseded(node)
        if node in self.broken_for:
            raise OSError("disk full")
        self.saved.append((node, health, standing))

    async def report(self, fault, *, pool):
        if fault.node in self.broken_for:
            raise OSError("no server")
        self.faults.append(fault)

    async def ask_withhold(self, pool, ask):
        self.withheld.append(ask)

    async def end_withhold(self, pool, message):
        self.ended.append(message)

    def take_over(self):
        self.epoch += 1


def bend(outside, node, gpu, **values):
    return lambda: outside.bent.setdefault((node, gpu), {}).update(values)


@pytest.fixture
def run(rule_content, rules):
    """Score until the outside took `ticks` reads, then let a newer attempt take over."""

    async def go(outside: Outside, ticks: int):
        outside.script[outside.reads + ticks] = outside.take_over
        times = replace(rules.times, tick_s=0.001, event_watch_s=0.001)
        activities = ScoringActivities(
            outside, records=outside, repairs=outside, permits=outside, inventory=outside,
            clock=outside.clock,
        )  # fmt: skip
        inp = ScoringInput("pool-a", dict(rule_content), times=times)
        env = ActivityEnvironment()
        return await asyncio.wait_for(env.run(activities.score_pool, inp), 60)

    return go


async def test_only_changes_are_saved_and_an_older_epoch_stops(run):
    outside = Outside(["n1", "n2"])
    ended = await run(outside, 50)
    assert ended.reason == "superseded"
    assert [(n, s) for n, _, s in outside.saved] == [
        ("n1", Standing.HEALTHY),
        ("n2", Standing.HEALTHY),
    ]
    assert outside.faults == []


async def test_a_hard_fail_is_reported_with_what_the_repair_needs(run):
    outside = Outside(["n1", "n2"])
    outside.script[5] = bend(outside, "n1", 3, ECC_DBE_VOL_TOTAL=1)
    await run(outside, 20)
    (fault,) = outside.faults
    assert (fault.node, fault.slot, fault.part_uuid) == ("n1", "gpu3", "GPU-n1-3")
    assert fault.hard
    assert fault.health.is_hard_fail
    assert outside.saved[-1][2] is Standing.QUARANTINED


async def test_a_kernel_line_is_reported_from_the_kernel_log(run):
    outside = Outside(["n1"])
    text = "NVRM: Xid (PCI:0000:12:00): 119, pid=3, Timeout after 6s of waiting for RPC"
    outside.script[5] = lambda: outside.events.update(
        n1=[KernelEntry("boot-a", 77, text, outside.at)]
    )
    await run(outside, 15)
    (fault,) = outside.faults
    assert (fault.source, fault.slot, fault.reason) == ("kernel_log", "gpu2", "hard_fail:xid_119")
    assert fault.id == "n1/gpu2/xid_119/boot-a.77"


async def test_the_trouble_of_one_node_does_not_stop_the_others_and_is_made_up_for(run):
    outside = Outside(["n1", "n2"], broken_for={"n1"})
    outside.script[5] = bend(outside, "n1", 3, ECC_DBE_VOL_TOTAL=1)
    outside.script[6] = bend(outside, "n2", 3, ECC_DBE_VOL_TOTAL=1)
    outside.script[12] = outside.broken_for.clear
    await run(outside, 20)
    assert [f.node for f in outside.faults] == ["n2", "n1"]


async def test_an_outage_of_all_pages_reports_nothing_and_asks_to_withhold_once_each(run):
    outside = Outside(["n1", "n2", "n3"])
    outside.script[5] = lambda: outside.silent.update(outside.names)
    outside.script[100] = outside.silent.clear
    await run(outside, 110)
    assert outside.faults == []
    assert sorted(a.node for a in outside.withheld) == ["n1", "n2", "n3"]
    assert sorted(e.node for e in outside.ended) == ["n1", "n2", "n3"]
    assert {s for _, _, s in outside.saved[-3:]} == {Standing.HEALTHY}


async def test_standings_are_restored_and_a_return_begins_anew(run):
    old = Health(0.0, 1.0, None, "hard_fail:xid_48")
    outside = Outside(["n1"], stored={"n1": (old, Standing.QUARANTINED, T0)})
    hold = Hold("h", "n1", HoldKind.QUARANTINE, "sickbay", mark_of("r"), "x", T0, "proof", "prove")
    outside.holds_on["n1"] = (hold,)
    await run(outside, 300)
    assert {s for _, _, s in outside.saved} == {Standing.QUARANTINED}
    outside.returns["n1"] = outside.at
    outside.holds_on.clear()
    await run(outside, 5)
    assert outside.saved[-1][2] is Standing.HEALTHY
    assert outside.faults == []


async def test_a_store_that_fails_for_a_while_costs_ticks_and_nothing_else(run):
    outside = Outside(["n1"])
    good = outside.epoch_is_current

    async def broken(pool, epoch):
        outside.reads += 1
        if outside.reads > 12:
            outside.epoch_is_current = good
        raise OSError("database is locked")

    outside.script[6] = lambda: setattr(outside, "epoch_is_current", broken)
    outside.script[20] = bend(outside, "n1", 0, ECC_DBE_VOL_TOTAL=1)
    await run(outside, 30)
    assert len(outside.faults) == 1


async def test_cancelling_ends_it(rule_content, rules):
    outside = Outside(["n1"])
    activities = ScoringActivities(
        outside, records=outside, repairs=outside, permits=outside, inventory=outside,
        clock=outside.clock,
    )  # fmt: skip
    env = ActivityEnvironment()
    inp = ScoringInput("pool-a", dict(rule_content), times=replace(rules.times, tick_s=0.01))
    task = asyncio.create_task(env.run(activities.score_pool, inp))
    await asyncio.sleep(0.1)
    env.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)


async def test_a_kernel_event_is_scored_at_once_and_not_at_the_next_tick(rule_content, rules):
    class Watched(Outside):
        async def read_events(self, nodes):
            text = "NVRM: Xid (PCI:0000:12:00): 79, pid=3, GPU has fallen off the bus."
            return [NodeSample("n1", self.at, None, events=(KernelEntry("b", 7, text, self.at),))]

    outside = Watched(["n1"])
    activities = ScoringActivities(
        outside, records=outside, repairs=outside, permits=outside, inventory=outside,
        clock=outside.clock,
    )  # fmt: skip
    times = replace(rules.times, tick_s=3600.0, event_watch_s=0.02)
    env = ActivityEnvironment()
    task = asyncio.create_task(
        env.run(activities.score_pool, ScoringInput("pool-a", dict(rule_content), times=times))
    )
    for _ in range(200):
        if outside.faults:
            break
        await asyncio.sleep(0.02)
    env.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert [f.reason for f in outside.faults] == ["hard_fail:xid_79"]
    assert outside.reads == 1


def test_scaled_times_keep_what_the_machine_needs(rules):
    fast = scaled_times(rules, time_scale=720.0)
    assert fast.tick_s == 2.0
    assert fast.freshness_s >= 3 * fast.tick_s
    assert fast.quarantined_dwell_s == pytest.approx(600 / 720)
    assert scaled_times(rules, time_scale=1.0) == rules.times


async def test_a_finding_keeps_its_id_over_a_restart_after_an_old_return(run):
    outside = Outside(["n1"], returns={"n1": T0 - timedelta(days=3)})
    outside.script[5] = bend(outside, "n1", 3, ROW_REMAP_FAILURE=1)
    await run(outside, 10)
    _, health, standing = outside.saved[-1]
    outside.stored["n1"] = (health, standing, outside.at)
    await run(outside, 10)
    assert len(outside.faults) == 2
    assert len({f.id for f in outside.faults}) == 1
