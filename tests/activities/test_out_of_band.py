"""Power cycle and reflash: one effective act, whatever is lost or killed, on nothing that works."""

import asyncio
import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.effects import WAITS
from activities.out_of_band import Ledger, OutOfBandActivities, Outside, Rules
from activities.records import RecordActivities
from activities.treatment import NOT_DRAINED
from sickbay.contracts.firmware import FlashStart, FlashTask, TaskState
from sickbay.contracts.operations import OutOfBandTimes
from sickbay.contracts.steps import (
    Action,
    DrainResult,
    DrainState,
    Effect,
    Outcome,
    Permission,
    RepairRecord,
    StepRecord,
    StepRequest,
    TreatmentRequest,
)
from sickbay.domain.firmware import FirmwareImage, FirmwareTarget, RolloutKey, RolloutStage
from sickbay.domain.node import Severity, Treatment
from sickbay.domain.power import Pulse
from sickbay.domain.radius import Lease, Limits, Load
from sickbay.errors import BmcUnreachable, Superseded
from sickbay.readers.redfish_task import flash_task
from sickbay.store.engine import open_store
from sickbay.store.out_of_band import StoreLeases, StoreOperations, StoreRollouts
from sickbay.store.records import StoreRecords
from sickbay.testing import MemoryBmc, MemoryFleet, MemorySafety, MemoryScheduler, some_nodes

MARK = "sickbay:n001.r1"
TIMES = OutOfBandTimes(poll_s=0.005, answer_wait_s=0.05, off_s=0.02, back_s=0.6, flash_quiet_s=0.1)
OLD, NEW = "96.00.5E", "96.00.74"
GPUS = {"GPU_0": OLD, "GPU_1": OLD, "BMC": "1.0"}
IMAGE = FirmwareImage("GPU_*", NEW, "hgx-8", "fw.bin", hashlib.sha256(b"fw").hexdigest())
TARGET = FirmwareTarget("GPU_0", NEW)
KEY = RolloutKey("hgx-8", "GPU_*", NEW)


def now():
    return datetime.now(UTC)


def environment(waited_s=0.0):
    """An activity that was first scheduled so long ago."""
    made = ActivityEnvironment()
    made.info = replace(made.info, scheduled_time=now() - timedelta(seconds=waited_s))
    return made


class Killed(BaseException):
    """The worker process is gone."""


class Mortal:
    """A port behind which the process dies: at the k-th call, before or after it took effect."""

    def __init__(self, inner, fuse):
        self._inner, self._fuse = inner, fuse

    def __getattr__(self, name):
        method = getattr(self._inner, name)

        async def call(*args, **kwargs):
            self._fuse.burn("before")
            answer = await method(*args, **kwargs)
            self._fuse.burn("after")
            return answer

        return call


class Fuse:
    def __init__(self, at, when):
        self.left, self.when = at, when

    def burn(self, when):
        if when == self.when:
            self.left -= 1
            if self.left == 0:
                raise Killed


class Bench:
    """The activities over a fleet in memory, with a real store below them."""

    def __init__(self, store, *, nodes=None):
        self.store = store
        nodes = nodes or some_nodes(8)
        self.nodes = nodes
        self.fleet = MemoryFleet(nodes, now=now)
        self.bmc = MemoryBmc(self.fleet, versions={n.id: GPUS for n in nodes})
        self.safety = MemorySafety(mode=Permission.ACT)
        self.scheduler = MemoryScheduler(self.fleet)
        self.records = StoreRecords(store)
        self.limits = Limits()
        self.images = (IMAGE,)
        self.waited_s = 0.0
        self.ledger = Ledger(StoreOperations(store), StoreLeases(store), StoreRollouts(store))
        self.beats = []

    def activities(self, fuse=None):
        wrap = (lambda port: Mortal(port, fuse)) if fuse else (lambda port: port)
        bmc, ledger = wrap(self.bmc), self.ledger
        return OutOfBandActivities(
            Outside(bmc, bmc, self.scheduler, bmc, self.safety, self.records),
            ledger=Ledger(wrap(ledger.operations), wrap(ledger.leases), wrap(ledger.rollouts)),
            rules=Rules(self.limits, self.images, TIMES),
            clock=now,
        )

    def request(self, node="n001", *, treatment=Treatment.POWER_CYCLE, ordinal=1, **more):
        step = StepRequest(f"{node}.r1", f"{node}.r1/{ordinal:03d}-{treatment}", node, "train")
        more = {"deadline_s": 2.0, "radius": (node,), **more}
        return TreatmentRequest(step, treatment, None, mark=f"sickbay:{node}.r1", **more)

    async def act(self, request=None, *, fuse=None, **more):
        request = request or self.request(**more)
        hands = self.activities(fuse)
        method = hands.reflash if request.treatment is Treatment.REFLASH else hands.power_cycle
        return await environment(self.waited_s).run(method, request)

    async def reflash(self, node="n001", *, target=TARGET, **more):
        return await self.act(node=node, treatment=Treatment.REFLASH, firmware=target, **more)

    def drain(self, *names):
        for name in names or [n.id for n in self.nodes]:
            self.fleet.mark(name, f"sickbay:{name}.r1", reason="x")

    async def rollout(self):
        return next((r for r in await self.ledger.rollouts.all() if r.key == KEY), None)


@pytest.fixture
async def store(tmp_path):
    opened = await open_store(f"sqlite+aiosqlite:///{tmp_path / 's.db'}")
    yield opened
    await opened.close()


@pytest.fixture
async def bench(store):
    made = Bench(store)
    await made.records.sync_inventory(made.nodes, at=now())
    return made


# --- power cycle ----------------------------------------------------------------------------------


async def test_a_cold_power_cycle_is_off_seen_off_on_seen_on_and_the_node_back(bench):
    bench.drain("n001")
    result = await bench.act()
    assert result.ok, result
    assert bench.bmc.switched == [("n001", False), ("n001", True)]
    assert bench.fleet.done() == [Treatment.POWER_CYCLE]
    again = await bench.act()
    assert again.ok
    assert len(bench.bmc.switched) == 2
    assert (await bench.ledger.operations.lookup("n001.r1/001-power_cycle")).witness == "drained"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_c51_a_worker_killed_at_any_call_leaves_one_effective_power_cycle(bench, when):
    """Every call of every port in turn: the process dies there, and another takes over."""
    bench.drain()
    for k in range(1, 60):
        before = len(bench.bmc.switched)
        request = bench.request(ordinal=k)
        try:
            await bench.act(request, fuse=Fuse(k, when))
        except Killed:
            result = await bench.act(request)
            assert result.ok, (k, result)
        else:
            assert k > 10
            return
        assert bench.bmc.switched[before:] == [("n001", False), ("n001", True)], k
    pytest.fail("the act never ended by itself")


async def test_c51_an_answer_that_was_lost_is_read_back_not_repeated(bench):
    bench.drain("n001")
    lost = Effect(Outcome.AMBIGUOUS, "no answer")
    bench.fleet.script("bmc.switch", lost, lost)
    assert (await bench.act()).ok
    assert bench.bmc.switched == [("n001", False), ("n001", True)]
    assert bench.fleet.log.count("bmc.switch") == 2


async def test_c51_an_attempt_that_was_given_up_and_runs_beside_its_retry_cuts_nothing_again(bench):
    """Its request hangs; the retry cuts and gives back the power; then the request is answered."""
    bench.drain("n001")
    request, switch, answered = bench.request(), bench.bmc.switch, asyncio.Event()

    async def never(node):
        return None

    async def hangs(node, *, on):
        await answered.wait()
        return Effect(Outcome.AMBIGUOUS, "no answer")

    bench.bmc.last_reset, bench.bmc.switch = never, hangs
    stale = asyncio.create_task(bench.act(request))
    while (await bench.ledger.operations.lookup(request.step.operation_id)) is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    bench.bmc.switch = switch
    assert (await bench.act(request)).ok
    answered.set()
    with pytest.raises(Superseded):
        await stale
    assert bench.bmc.switched == [("n001", False), ("n001", True)]


async def test_c51_a_refused_power_off_is_a_failed_step_and_a_refused_power_on_says_it_is_off(
    bench,
):
    bench.drain("n001")
    refused = Effect(Outcome.PERMANENT, "HTTP 501")
    bench.fleet.script("bmc.switch", refused)
    result = await bench.act()
    assert (result.effect.outcome, "501" in result.effect.detail) == (Outcome.PERMANENT, True)
    assert bench.bmc.switched == []
    bench.fleet.script("bmc.switch", Effect(Outcome.SUCCEEDED), refused)
    result = await bench.act(ordinal=2)
    assert result.effect.outcome is Outcome.PERMANENT
    assert "the power is off" in result.effect.detail


async def test_c51_a_controller_that_is_away_ends_within_the_deadline_with_nothing_done(bench):
    bench.drain("n001")
    bench.bmc.away.add("n001")
    result = await bench.act(deadline_s=0.3)
    assert result.effect.outcome is Outcome.PERMANENT
    assert result.effect.detail.startswith("nothing was done")
    assert bench.bmc.switched == []


async def test_a_power_off_that_is_accepted_and_does_nothing_is_asked_three_times_at_most(bench):
    bench.drain("n001")

    def nothing_happens(node, *, on):
        """It is answered with a success all the same."""

    bench.bmc._switch = nothing_happens
    result = await bench.act()
    assert result.effect.outcome is Outcome.PERMANENT
    assert "stays on" in result.effect.detail
    assert bench.fleet.log.count("bmc.switch") == 3


async def test_a_node_that_stays_silent_after_power_on_was_not_cured(bench):
    bench.drain("n001")
    bench.fleet.script("bmc.pulse", *[Pulse.SILENT] * 500)
    result = await bench.act()
    assert result.effect.outcome is Outcome.PERMANENT
    assert "did not come back" in result.effect.detail
    assert bench.bmc.switched == [("n001", False), ("n001", True)]


async def test_every_node_of_the_chassis_must_be_drained(store):
    nodes = tuple(replace(n, chassis="c1" if n.id < "n003" else "c2") for n in some_nodes(4))
    bench = Bench(store, nodes=nodes)
    await bench.records.sync_inventory(nodes, at=now())
    bench.drain("n001")
    result = await bench.act()
    assert result.effect.detail.startswith(NOT_DRAINED)
    assert "n002" in result.effect.detail
    assert bench.bmc.switched == []
    bench.drain("n002")
    assert (await bench.act()).ok


@pytest.mark.parametrize("said", [Permission.OBSERVE, Permission.APPROVE, Permission.STOPPED])
async def test_a_switch_withholds_the_act_and_it_is_recorded(bench, said):
    bench.drain("n001")
    bench.safety.set(Action.POWER_CYCLE, said)
    assert (await bench.act()).withheld is said
    assert bench.bmc.switched == []
    assert [w.action for w in bench.safety.withheld] == [Action.POWER_CYCLE]


async def test_a_stop_after_a_lost_power_off_that_never_arrived_keeps_the_power_on(bench):
    """Killed as it asked; when the next attempt would ask again, the switch is read again."""
    bench.drain("n001")
    request = bench.request()
    with pytest.raises(Killed):
        await bench.act(request, fuse=Fuse(4, "after"))
    assert bench.bmc.switched == []
    bench.safety.stop()
    assert (await bench.act(request)).withheld is Permission.STOPPED
    assert bench.bmc.switched == []


# --- a silent node --------------------------------------------------------------------------------


def unclear(bench, *, jobs=()):
    state = DrainState.DRAINING if jobs else DrainState.UNKNOWN
    answer = DrainResult(state, blocking=jobs, detail="the node does not respond")
    bench.fleet.script("scheduler.drain_state", *[answer] * 20, node="n001")


async def test_a_silent_node_is_cut_only_when_a_second_witness_sees_it_down(bench):
    bench.drain("n001")
    unclear(bench)
    alive = await bench.act(silent=True)
    assert alive.effect.detail.startswith(NOT_DRAINED)
    assert "metrics page answers" in alive.effect.detail
    bench.fleet["n001"].up = False
    assert (await bench.act(silent=False)).effect.detail.startswith(NOT_DRAINED)
    assert bench.bmc.switched == []
    assert (await bench.act(silent=True)).ok
    witness = (await bench.ledger.operations.lookup("n001.r1/001-power_cycle")).witness
    assert "metrics page silent" in witness


async def test_a_silent_node_with_jobs_or_without_our_mark_keeps_its_power(bench):
    bench.fleet["n001"].up = False
    unclear(bench)
    assert "no mark of ours" in (await bench.act(silent=True)).effect.detail
    bench.drain("n001")
    bench.fleet.log.answers.clear()
    unclear(bench, jobs=("job7",))
    assert "job7" in (await bench.act(silent=True)).effect.detail
    assert bench.bmc.switched == []


# --- limits ---------------------------------------------------------------------------------------


async def test_no_more_power_cycles_than_a_rack_bears_at_once(bench):
    bench.drain()
    bench.limits = Limits(per_rack={Load.POWER_CYCLE: 1})
    other = Lease("op", Load.POWER_CYCLE, "n002", "rack0", "", now() + timedelta(seconds=60))
    assert await bench.ledger.leases.take(other, limits=bench.limits, now=now()) == ""
    with pytest.raises(ApplicationError, match="waits: 1 power cycles run in rack rack0") as raised:
        await bench.act()
    assert (raised.value.type, raised.value.non_retryable) == ("Transient", False)
    bench.waited_s = 3600.0
    waited = await bench.act()
    assert waited.effect.outcome is Outcome.PERMANENT
    assert waited.effect.detail.startswith(WAITS)
    assert bench.bmc.switched == []
    assert (await bench.act(node="n005")).ok
    await bench.ledger.leases.give_back("op")
    assert (await bench.act()).ok
    assert (await bench.act(node="n002")).ok


# --- reflash --------------------------------------------------------------------------------------


async def test_a_reflash_is_sent_once_activated_and_read_back(bench):
    bench.drain("n001")
    result = await bench.reflash()
    assert result.ok, result
    assert bench.bmc.flashed == [("n001", ("GPU_0",), NEW)]
    assert (await bench.bmc.versions("n001"))["GPU_0"] == NEW
    assert (await bench.reflash()).ok
    assert len(bench.bmc.flashed) == 1
    assert len(bench.bmc.switched) == 2


@pytest.mark.parametrize("when", ["before", "after"])
async def test_c53_a_worker_killed_at_any_call_flashes_once_and_cycles_once(bench, when):
    bench.drain()
    for k in range(1, 90):
        name = "n001"
        bench.bmc._versions[name] = dict(GPUS)
        await bench.ledger.rollouts.settle(name, proven=True, why="", at=now())
        switched, flashed = len(bench.bmc.switched), len(bench.bmc.flashed)
        request = bench.request(
            ordinal=k, treatment=Treatment.REFLASH, firmware=FirmwareTarget("GPU_0", NEW)
        )
        try:
            await bench.act(request, fuse=Fuse(k, when))
        except Killed:
            result = await bench.act(request)
        else:
            assert k > 12
            return
        sent = len(bench.bmc.flashed) - flashed
        if sent == 0:
            # Killed between the journal and the request: nobody can know, so nobody sends again.
            assert result.effect.outcome is Outcome.PERMANENT, k
            await bench.ledger.rollouts.unfreeze(KEY, by="ops", reason="test", at=now())
        else:
            assert result.ok, (k, result)
        assert sent <= 1, k
        assert bench.bmc.switched[switched:] == [(name, False), (name, True)], k
    pytest.fail("the act never ended by itself")


def task_a():
    return flash_task(
        {
            "PercentComplete": 100,
            "TaskState": "Completed",
            "TaskStatus": "Critical",
            "Messages": [{"MessageId": "X.1.0.JCP052", "Message": "made no progress"}],
        }
    )


async def test_c53_completed_but_critical_has_failed_freezes_the_version_and_cuts_no_power(bench):
    bench.drain()
    bench.fleet.script("bmc.task", task_a())
    result = await bench.reflash()
    assert result.effect.outcome is Outcome.PERMANENT
    assert "made no progress" in result.effect.detail
    assert bench.bmc.switched == []
    rollout = await bench.rollout()
    assert (rollout.stage, "n001" in rollout.why) == (RolloutStage.FROZEN, True)
    other = await bench.reflash("n005")
    assert other.effect.outcome is Outcome.PERMANENT
    assert "frozen" in other.effect.detail
    assert [n for n, _, _ in bench.bmc.flashed] == ["n001"]


async def test_c53_100_percent_while_running_is_running(bench):
    bench.drain()
    running = flash_task({"PercentComplete": 100, "TaskState": "Running", "TaskStatus": "OK"})
    bench.fleet.script("bmc.task", *[running] * 5)
    assert (await bench.reflash()).ok
    assert bench.fleet.log.count("bmc.task") == 6


async def test_c53_a_flash_that_never_ends_is_ambiguous_and_the_power_is_left_alone(bench):
    bench.drain()
    running = FlashTask(TaskState.RUNNING, 40)
    bench.fleet.script("bmc.task", *[running] * 2000)
    result = await bench.reflash(deadline_s=0.3)
    assert result.effect.outcome is Outcome.AMBIGUOUS
    assert bench.bmc.switched == []


@pytest.mark.parametrize("dies", [False, True])
async def test_c53_a_task_that_is_gone_is_judged_by_the_version_and_never_flashed_again(
    bench, dies
):
    bench.drain()
    bench.fleet.script("bmc.task", FlashTask(TaskState.RUNNING, 10), FlashTask(TaskState.GONE))
    if dies:
        bench.bmc.dies.add("n001")
    result = await bench.reflash()
    assert result.ok is not dies
    assert len(bench.bmc.flashed) == 1
    if dies:
        assert OLD in result.effect.detail
        assert (await bench.rollout()).stage is RolloutStage.FROZEN


async def test_c53_an_answer_to_the_flash_that_was_lost_is_never_sent_again(bench):
    bench.drain()
    bench.fleet.script("bmc.flash", FlashStart(Effect(Outcome.AMBIGUOUS, "no answer")))
    assert (await bench.reflash()).ok
    assert len(bench.bmc.flashed) == 1


async def test_c53_a_controller_that_is_slow_after_the_boot_is_waited_for(bench):
    bench.drain()
    versions, calls = bench.bmc.versions, SimpleNamespace(count=0)

    async def slow(node):
        calls.count += 1
        if 2 < calls.count < 12:
            raise BmcUnreachable("it restarts", sent=False)
        return await versions(node)

    bench.bmc.versions = slow
    assert (await bench.reflash()).ok
    assert calls.count >= 12


async def test_firmware_that_is_there_already_is_not_flashed(bench):
    bench.drain()
    bench.bmc._versions["n001"]["GPU_0"] = NEW
    assert (await bench.reflash()).ok
    assert bench.bmc.flashed == []
    assert await bench.rollout() is None


async def test_without_a_named_target_the_node_gets_what_it_lacks_of_the_allow_list(bench):
    bench.drain()
    bench.bmc._versions["n001"]["GPU_1"] = NEW
    assert (await bench.reflash(target=None)).ok
    assert bench.bmc.flashed == [("n001", ("GPU_0",), NEW)]
    nothing = await bench.reflash(target=None, ordinal=2)
    assert nothing.effect.detail.startswith("nothing to flash")


async def test_an_image_that_is_not_on_the_allow_list_is_refused(bench):
    bench.drain()
    result = await bench.reflash(target=FirmwareTarget("GPU_0", "0.0.1"))
    assert result.effect.outcome is Outcome.PERMANENT
    assert "firmware.images" in result.effect.detail
    assert bench.bmc.flashed == []


async def test_an_image_that_was_never_sent_says_nothing_about_its_version(bench):
    bench.drain()
    wrong = Effect(Outcome.PERMANENT, "SHA-256 differs")
    bench.fleet.script("bmc.flash", FlashStart(wrong, sent=False))
    result = await bench.reflash()
    assert result.effect == wrong
    assert bench.bmc.switched == []
    assert (await bench.rollout()).stage is RolloutStage.NEW


async def test_the_rest_of_a_class_waits_for_its_canary_to_return_proven(bench):
    bench.drain()
    assert (await bench.reflash("n001")).ok
    with pytest.raises(ApplicationError, match="n001 first"):
        await bench.reflash("n005")
    bench.waited_s = 3600.0
    assert (await bench.reflash("n005")).effect.detail.startswith(WAITS)
    assert [n for n, _, _ in bench.bmc.flashed] == ["n001"]
    records = RecordActivities(bench.records, clock=now, rollouts=bench.ledger.rollouts)
    await records.record_return("n001", "n001.r1", now(), now())
    assert (await bench.rollout()).stage is RolloutStage.PROVEN
    assert (await bench.reflash("n005")).ok


async def test_a_canary_that_fails_its_proof_freezes_the_version(bench):
    bench.drain()
    assert (await bench.reflash("n001")).ok
    records = RecordActivities(bench.records, clock=now, rollouts=bench.ledger.rollouts)
    step = StepRecord("n001.r1", "n001", 7, "prove", "failed", now(), now())
    repair = RepairRecord(
        "n001.r1", "w", "n001", "train", "prove", "x", Severity.MAJOR, now(), now()
    )
    await records.record_stage(repair, step)
    assert (await bench.rollout()).stage is RolloutStage.FROZEN
    assert "frozen" in (await bench.reflash("n005")).effect.detail


async def test_a_transient_refusal_to_take_the_image_is_tried_again_as_the_same_operation(bench):
    bench.drain()
    busy = FlashStart(Effect(Outcome.TRANSIENT, "HTTP 503"), sent=False)
    bench.fleet.script("bmc.flash", busy)
    with pytest.raises(ApplicationError, match="503"):
        await bench.reflash()
    assert (await bench.reflash()).ok
    assert len(bench.bmc.flashed) == 1
