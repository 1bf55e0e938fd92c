"""Acts: once per operation id, on a drained node, under the switches, or not at all."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.drain import DrainActivities
from activities.effects import WAITS
from activities.gate import GateActivities
from activities.loads import Loads
from activities.permit import PermitActivities
from activities.treatment import NOT_DRAINED, TreatmentActivities
from sickbay.contracts.budget import GateClosed, ReconcileRequest
from sickbay.contracts.steps import (
    Action,
    DrainRequest,
    DrainResult,
    DrainState,
    Effect,
    GateRequest,
    Outcome,
    Permission,
    StepRequest,
    TreatmentRequest,
)
from sickbay.domain.gate import Hold, HoldKind
from sickbay.domain.node import Severity, Treatment
from sickbay.domain.radius import Lease, Limits, Load
from sickbay.store.engine import open_store
from sickbay.store.out_of_band import StoreLeases
from sickbay.testing import (
    MemoryFleet,
    MemoryJournal,
    MemoryNodeControl,
    MemoryPermits,
    MemoryRecords,
    MemorySafety,
    MemoryScheduler,
    some_nodes,
)

MARK = "sickbay:n001.r1"
STEP = StepRequest("n001.r1", "n001.r1/004-reset", "n001", "train")


def now():
    return datetime.now(UTC)


def environment(waited_s):
    """An activity that was first scheduled so long ago."""
    made = ActivityEnvironment()
    made.info = replace(made.info, scheduled_time=now() - timedelta(seconds=waited_s))
    return made


class Bench:
    """The activities over one fleet in memory."""

    def __init__(self):
        nodes = some_nodes(2)
        self.fleet = MemoryFleet(nodes, now=now)
        self.safety = MemorySafety(mode=Permission.ACT)
        self.journal = MemoryJournal()
        self.records = MemoryRecords({n.id: n for n in nodes})
        self.permits = MemoryPermits()
        self.loads = None
        self.waited_s = 0.0
        self.scheduler = MemoryScheduler(self.fleet)
        self.control = MemoryNodeControl(self.fleet, node="n001")
        self.gate = GateActivities(
            self.scheduler,
            records=self.records,
            safety=self.safety,
            permits=self.permits,
            clock=now,
        )

    async def treat(self, treatment=Treatment.RESET, radius=("n001",), deadline_s=5.0):
        hands = TreatmentActivities(
            self.control,
            journal=self.journal,
            scheduler=self.scheduler,
            safety=self.safety,
            clock=now,
            loads=self.loads,
        )
        part = self.fleet["n001"].part("gpu0")
        request = TreatmentRequest(STEP, treatment, part, radius, MARK, deadline_s)
        return await environment(self.waited_s).run(hands.treat, request)

    async def drain(self, *, evict=False, deadline=None):
        activities = DrainActivities(self.scheduler, safety=self.safety, clock=now)
        request = DrainRequest(
            STEP, MARK, Severity.MAJOR, now(), deadline or now(), evict=evict, poll_s=0.01
        )
        return await ActivityEnvironment().run(activities.drain, request)

    def request(self):
        hold = Hold(
            id=MARK,
            node="n001",
            kind=HoldKind.QUARANTINE,
            owner="sickbay",
            mark=MARK,
            reason="xid_79",
            placed_at=now(),
            release_condition="2 passes in a row of the proof",
            next_step="drain",
            repair_id="n001.r1",
        )
        return GateRequest(STEP, hold)


@pytest.fixture
def bench():
    return Bench()


async def test_a_retry_after_done_answers_from_the_journal_and_acts_no_more(bench):
    bench.fleet.mark("n001", MARK, reason="x")
    first = await bench.treat()
    again = await bench.treat()
    assert first.ok
    assert again.ok
    assert bench.fleet.done() == [Treatment.RESET]


async def test_an_act_is_refused_while_anything_in_its_radius_is_not_drained(bench):
    bench.fleet.mark("n001", MARK, reason="x")
    result = await bench.treat(radius=("n001", "n002"))
    assert result.effect.detail.startswith(NOT_DRAINED)
    assert "n002" in result.effect.detail
    assert bench.fleet.acts == []
    assert bench.journal.entries == {}


@pytest.mark.parametrize("said", [Permission.OBSERVE, Permission.APPROVE, Permission.STOPPED])
async def test_a_switch_is_read_at_the_moment_of_acting(bench, said):
    bench.fleet.mark("n001", MARK, reason="x")
    bench.safety.set(Action.RESET, said)
    assert (await bench.treat()).withheld is said
    assert bench.fleet.acts == []
    assert [w.why for w in bench.safety.withheld] == [str(said)]


async def test_resets_wait_for_their_place_in_the_rack_and_other_acts_do_not(bench, tmp_path):
    bench.fleet.mark("n001", MARK, reason="x")
    store = await open_store(f"sqlite+aiosqlite:///{tmp_path / 's.db'}")
    leases = StoreLeases(store)
    limits = Limits(per_rack={Load.RESET: 1})
    bench.loads = Loads(leases, limits=limits, inventory=bench.records, clock=now)
    rack = (await bench.records.node("n001")).rack
    other = Lease("op", Load.RESET, "n002", rack, "", now() + timedelta(seconds=60))
    assert await leases.take(other, limits=limits, now=now()) == ""
    with pytest.raises(ApplicationError, match="waits: 1 resets run in rack"):
        await bench.treat()
    assert bench.fleet.acts == []
    bench.waited_s = 60.0
    assert (await bench.treat()).effect.detail.startswith(WAITS)
    assert bench.journal.entries == {}
    await leases.give_back("op")
    assert (await bench.treat()).ok
    assert await leases.take(other, limits=limits, now=now()) == ""
    await store.close()


async def test_an_act_without_an_end_is_ambiguous(bench):
    bench.fleet.mark("n001", MARK, reason="x")
    bench.control.hold()
    assert (await bench.treat(deadline_s=0.3)).effect.outcome is Outcome.AMBIGUOUS


async def test_the_hold_is_recorded_before_the_gate_closes_and_the_budget_is_told_after(bench):
    result = await bench.gate.close_gate(bench.request())
    assert result.ok
    (hold,) = await bench.records.holds("n001")
    assert hold.placed_at <= bench.fleet.gate_moves[0][0] <= result.at
    assert [message for _, message in bench.permits.sent] == [GateClosed("n001.r1", at=result.at)]


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_lost_answer_is_read_back_before_it_is_asked_again(bench, arrived):
    if arrived:
        bench.fleet.script("scheduler.close_gate", Effect(Outcome.AMBIGUOUS, "lost"))
        assert (await bench.gate.close_gate(bench.request())).ok
        assert bench.fleet.log.verbs() == ["scheduler.close_gate", "scheduler.marks"]
    else:
        bench.fleet.script("scheduler.close_gate", Effect(Outcome.TRANSIENT, "refused"))
        with pytest.raises(ApplicationError) as raised:
            await bench.gate.close_gate(bench.request())
        assert (raised.value.type, raised.value.non_retryable) == ("Transient", False)


async def test_a_gate_that_another_holds_is_not_booked_as_open(bench):
    await bench.gate.close_gate(bench.request())
    bench.fleet.mark("n001", "kernel update", reason="by ops")
    await bench.gate.open_gate(bench.request())
    assert bench.fleet["n001"].marks == {"kernel update": "by ops"}
    assert [is_open for _, is_open, _ in bench.records.gate] == [False]
    assert await bench.records.holds("n001") == ()


async def test_a_query_error_is_never_drained(bench):
    unknown = DrainResult(DrainState.UNKNOWN, detail="no answer")
    bench.fleet.script("scheduler.drain_state", unknown)
    assert (await bench.drain(evict=True)).state is DrainState.UNKNOWN
    assert bench.fleet.log.count("scheduler.evict") == 0


async def test_an_eviction_happens_once_and_only_where_it_may(bench):
    await bench.gate.close_gate(bench.request())
    bench.fleet["n001"].jobs.append("job7")
    bench.safety.set(Action.EVICT, Permission.STOPPED)
    held = await bench.drain(evict=True)
    assert (held.state, held.withheld, held.blocking) == (
        DrainState.DRAINING,
        Permission.STOPPED,
        ("job7",),
    )
    bench.safety.set(Action.EVICT, Permission.ACT)
    assert (await bench.drain(evict=True)).state is DrainState.DRAINED
    assert bench.fleet.log.count("scheduler.evict") == 1


async def test_a_permit_is_free_only_when_its_repair_ended_and_left_no_hold(bench):
    permit = PermitActivities(bench.permits, records=bench.records)
    await bench.gate.close_gate(bench.request())
    bench.permits.alive = {"n001.r1": False, "n002.r2": False, "n003.r3": True}
    asked = dict.fromkeys(("n001.r1", "n002.r2", "n003.r3", "n004.unreadable"), "w")
    assert await permit.reconcile_permits(ReconcileRequest("train", asked)) == ["n002.r2"]
