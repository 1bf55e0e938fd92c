"""After a restore of any of the three: holds get their repairs back, and no gate opens."""

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import Worker

from activities.sweep import SweepActivities
from sickbay.contracts import names
from sickbay.contracts.repair import AdoptedHold
from sickbay.contracts.sweep import Pruned, Retention, SweepInput
from sickbay.domain.gate import withheld_mark
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Severity, Treatment
from sickbay.domain.recovery import RemedyKind
from sickbay.errors import Unreachable
from sickbay.payloads import shared_data_converter
from sickbay.recovery import Recovery
from tests.workflows.conftest import POOL, utc_now
from workers.process import sandbox
from workers.wiring import activities_of
from workflows.fleet_sweep import FleetSweep


def recovery(loop):
    return Recovery(
        loop.scheduler,
        records=loop.records,
        repairs=loop.repairs,
        budgets=loop.permits,
        clock=utc_now,
    )


async def rebuilt(loop):
    """What a rebuild found and did."""
    both = recovery(loop)
    return await both.mend(await both.look())


async def lose(loop, node="n001"):
    """The repair's workflow is gone, as after a restore of Temporal's database."""
    await loop.repair(node).terminate("a restore")


async def at_diagnosis(loop, node="n001"):
    """A repair that waits inside its diagnosis; its repair id."""
    loop.runner.hold(node)
    await loop.broken(node, Treatment.RESET)
    view = await loop.until_stage("diagnose", node)
    await loop.until("the suite runs", lambda: loop.fleet.log.calls)
    return view.repair_id


def standing(loop, node="n001"):
    return [h for h in loop.records.every_hold if h.node == node and h.lifted_at is None]


async def test_a_lost_repair_goes_on_at_diagnosis_under_the_same_hold(start):
    async with start() as loop:
        repair_id = await at_diagnosis(loop)
        (hold,) = standing(loop)
        await lose(loop)
        (row,) = await rebuilt(loop)
        assert (row.remedy.kind, row.remedy.hold) == (RemedyKind.START, hold)
        assert await rebuilt(loop) == ()
        loop.runner.let_go("n001")
        view = await loop.ended()
        assert (view.ending, view.repair_id) == ("returned", repair_id)
        story = await loop.story()
        assert story[0] == "diagnose confirmed"
        assert story.count("prove passed") == 2
        assert {h.id for h in loop.records.every_hold} == {hold.id}
        assert standing(loop) == []
        moves = [open_ for _, node, open_ in loop.fleet.gate_moves if node == "n001"]
        assert moves == [False, True]

        async def given_back():
            budget = await loop.permits.status(POOL)
            return (budget.spent, budget.granted, budget.out) == (1, 1, ())

        await loop.until("one closure was charged, and the permit is back", given_back)


async def test_a_finding_that_comes_before_the_comparison_goes_on_under_the_same_hold(start):
    async with start() as loop:
        repair_id = await at_diagnosis(loop)
        (hold,) = standing(loop)
        await lose(loop)
        await loop.report("n001")
        await loop.until_stage("diagnose")
        assert await rebuilt(loop) == ()
        loop.runner.let_go("n001")
        view = await loop.ended()
        assert (view.ending, view.repair_id) == ("returned", repair_id)
        assert {h.id for h in loop.records.every_hold} == {hold.id}
        assert standing(loop) == []
        moves = [open_ for _, node, open_ in loop.fleet.gate_moves if node == "n001"]
        assert moves == [False, True]
        ordinals = [s.ordinal for s in loop.records.steps]
        assert len(set(ordinals)) == len(ordinals)
        assert (await loop.permits.status(POOL)).granted == 1


async def test_a_step_of_the_new_run_is_no_step_of_the_old_one(start):
    """The node's journal answers for operations it knows: a new act needs a new name."""
    async with start() as loop:
        repair_id = await at_diagnosis(loop)
        before = len(loop.records.steps)
        await lose(loop)
        await rebuilt(loop)
        loop.runner.let_go("n001")
        await loop.ended()
        (act,) = loop.fleet.acts
        run = act.operation_id.removeprefix(f"{repair_id}/").partition(".")[0]
        assert len(run) == 8
        ordinals = [s.ordinal for s in loop.records.steps]
        assert len(set(ordinals)) == len(ordinals) > before


async def test_a_budget_that_lost_its_memory_counts_the_node_as_out(start):
    async with start() as loop:
        await at_diagnosis(loop)
        await lose(loop)
        await loop.budget().terminate("a restore")
        await rebuilt(loop)

        async def out():
            budget = await loop.permits.status(POOL)
            return (budget.out, budget.spent) == (("n001",), 1)

        await loop.until("the budget knows", out)
        loop.runner.let_go("n001")
        assert (await loop.ended()).ending == "returned"


async def test_jobs_that_still_run_are_drained_before_the_diagnosis(start):
    async with start() as loop:
        loop.fleet["n001"].jobs.append("job7")
        await loop.broken("n001", Treatment.RESET, severity=Severity.WARNING)
        await loop.until_stage("drain")
        await lose(loop)
        (row,) = await rebuilt(loop)
        assert row.done == "a repair goes on at drain"
        await loop.until_stage("drain")
        loop.fleet["n001"].jobs.clear()
        await loop.until_count("drain drained", 1)
        assert (await loop.ended()).ending == "returned"


async def test_a_gate_that_someone_opened_meanwhile_is_closed_again_under_the_same_hold(start):
    async with start() as loop:
        await at_diagnosis(loop)
        (hold,) = standing(loop)
        await lose(loop)
        loop.fleet.unmark("n001", hold.mark)
        (row,) = await rebuilt(loop)
        assert row.remedy.kind is RemedyKind.REHOLD
        loop.runner.let_go("n001")
        assert (await loop.ended()).ending == "returned"
        assert (await loop.story())[0] == "permit granted"
        assert {h.id for h in loop.records.every_hold} == {hold.id}
        assert (await loop.permits.status(POOL)).granted == 1


async def test_a_store_older_than_the_workflows_learns_of_holds_and_repairs_again(start):
    async with start() as loop:
        repair_id = await at_diagnosis(loop)
        loop.records.every_hold.clear()
        loop.records.repairs.clear()
        loop.records.steps.clear()
        (row,) = await rebuilt(loop)
        assert row.remedy.kind is RemedyKind.BOOK_HOLD
        assert [h.repair_id for h in standing(loop)] == [repair_id]
        assert await rebuilt(loop) == ()
        loop.runner.let_go("n001")
        assert (await loop.ended()).ending == "returned"
        assert loop.records.repairs[repair_id].ending == "returned"
        assert standing(loop) == []


async def test_a_store_older_than_a_proven_return_closes_nothing_again(start):
    async with start() as loop:
        repair_id = await at_diagnosis(loop)
        loop.runner.let_go("n001")
        await loop.ended()
        loop.records.every_hold = [
            replace(h, lifted_at=None, lifted_by=None) for h in loop.records.every_hold
        ]
        (row,) = await rebuilt(loop)
        assert row.remedy.kind is RemedyKind.END_HOLD
        assert "returned" in row.remedy.why
        assert standing(loop) == []
        assert loop.fleet["n001"].gate_open
        assert (await loop.repairs.status("n001")).repair_id == repair_id


async def test_the_ticket_of_a_lost_repair_closes_when_its_node_is_proven(start):
    async with start() as loop:
        await loop.broken("n001", Treatment.SWAP, treatment=Treatment.SWAP)
        await loop.until_stage("swap", waits="ticket")

        async def open_tickets_of(repair_id):
            mine = [t for t in loop.tickets.all.values() if t.draft.repair_id == repair_id]
            return tuple(t.id for t in mine if t.is_open)

        loop.records.open_tickets_of = open_tickets_of
        await lose(loop)
        loop.fleet.mend("n001")
        await rebuilt(loop)
        assert (await loop.ended()).ending == "returned"
        assert [t.is_open for t in loop.tickets.all.values()] == [False]
        assert loop.fleet.done() == []


async def test_a_repair_lost_while_it_waited_for_its_permit_asks_again(start):
    async with start() as loop:
        await loop.freeze()
        await loop.broken("n001", Treatment.RESET)
        view = await loop.until_stage("permit", waits="a permit")
        await lose(loop)
        (row,) = await rebuilt(loop)
        assert row.remedy.kind is RemedyKind.REPORT_AGAIN
        assert loop.records.repairs[view.repair_id].ending == "lost"
        assert await rebuilt(loop) == ()
        await loop.unfreeze()
        again = await loop.ended()
        assert (again.ending, again.reason) == ("returned", view.reason)
        assert again.repair_id != view.repair_id
        await loop.until("no mark is left", lambda: loop.fleet["n001"].marks == {})


async def test_an_aborted_repair_stays_a_persons(start):
    async with start() as loop:
        await at_diagnosis(loop)
        await loop.order("abort")
        await loop.ended()
        (kept,) = standing(loop)
        assert kept.owner == "ann"
        assert await rebuilt(loop) == ()
        loop.records.every_hold.clear()
        (row,) = await rebuilt(loop)
        assert row.remedy.kind is RemedyKind.BOOK_HOLD
        (again,) = standing(loop)
        assert again.owner != "sickbay"
        assert await rebuilt(loop) == ()
        assert not loop.fleet["n001"].gate_open


async def test_a_node_released_between_look_and_mend_is_left_open(start):
    async with start() as loop:
        repair_id = await at_diagnosis(loop)
        await lose(loop)
        both = recovery(loop)
        found = await both.look()
        assert [r.remedy.kind for r in found] == [RemedyKind.START]
        # What `sickbay release` does where no repair runs.
        (hold,) = standing(loop)
        loop.fleet.unmark("n001", hold.mark)
        await loop.records.lift_hold(hold.id, by="ann", at=utc_now())
        assert [r.remedy.kind for r in await both.mend(found)] == [RemedyKind.END_REPAIR]
        assert loop.fleet["n001"].gate_open
        # And a repair that was started all the same finds nothing to go on under.
        late = AdoptedHold(repair_id, hold.reason, hold.placed_at)
        assert await loop.repairs.adopt("n001", pool=POOL, hold=late)
        assert (await loop.ended()).ending == "stale"
        assert loop.fleet["n001"].gate_open
        assert loop.records.repairs[repair_id].ending == "lost"
        loop.runner.let_go("n001")


async def test_what_others_marked_and_what_is_unreadable_is_left_alone(start):
    async with start() as loop:
        loop.fleet.mark("n002", "kernel update", reason="by the night shift")
        await at_diagnosis(loop)
        await lose(loop)

        class Silent:
            def __getattr__(self, name):
                return getattr(loop.scheduler, name)

            async def marks(self, node):
                raise Unreachable("no answer")

        blind = Recovery(
            Silent(),
            records=loop.records,
            repairs=loop.repairs,
            budgets=loop.permits,
            clock=utc_now,
        )
        rows = await blind.mend(await blind.look())
        assert {r.remedy.kind for r in rows} == {RemedyKind.UNCLEAR}
        assert len(standing(loop)) == 1
        (row,) = await rebuilt(loop)
        assert row.remedy.node == "n001"
        assert loop.fleet["n002"].marks == {"kernel update": "by the night shift"}
        loop.runner.let_go("n001")
        await loop.ended()


async def test_a_withheld_mark_that_the_budget_forgot_is_its_own_again_and_ends(start):
    async with start() as loop:
        loop.fleet.mark("n001", withheld_mark("n001"), reason="unknown_past_grace")
        rows = await rebuilt(loop)
        kinds = [r.remedy.kind for r in rows]
        assert kinds == [RemedyKind.BOOK_HOLD, RemedyKind.ADOPT_WITHHELD]

        async def known():
            return (await loop.permits.status(POOL)).withheld == ("n001",)

        await loop.until("the budget withholds it", known)
        assert await rebuilt(loop) == ()
        well = Health(0.99, 1.0, None, "min:compute")
        await loop.records.save_health(
            "n001", health=well, standing=Standing.HEALTHY, at=utc_now(), rules="1 ab"
        )
        (row,) = await rebuilt(loop)
        assert row.remedy.kind is RemedyKind.END_WITHHELD
        await loop.until("the gate is open", lambda: loop.fleet["n001"].gate_open)
        await loop.until("the hold is ended", lambda: standing(loop) == [])


class Counting:
    """A comparison that takes its time, and notices a second one beside it."""

    def __init__(self):
        self.sweeps = self.beside = self.now = self.pruned = 0

    async def look(self):
        self.now += 1
        self.beside = max(self.beside, self.now)
        await asyncio.sleep(0.2)
        self.now -= 1
        self.sweeps += 1
        return ()

    async def mend(self, differences):
        return tuple(differences)

    async def prune(self, retention, *, now):
        assert retention == Retention(evidence_s=5.0)
        self.pruned += 1
        return Pruned()


async def test_two_control_workers_sweep_once_and_never_beside_each_other(temporal_env):
    counting = Counting()
    client = temporal_env.client
    inp = SweepInput(every_s=3600.0, retention=Retention(evidence_s=5.0))

    async def another_process():
        """A client of its own: one process may serve a queue once."""
        address = client.service_client.config.target_host
        return await Client.connect(address, data_converter=shared_data_converter)

    def worker(client):
        sweep = SweepActivities(counting, retention=counting, pager=None, clock=utc_now)
        return Worker(
            client,
            task_queue=names.CONTROL_QUEUE,
            workflows=[FleetSweep],
            activities=list(activities_of(sweep)),
            workflow_runner=sandbox(),
        )

    async def start():
        return await client.start_workflow(
            names.SWEEP_WORKFLOW,
            inp,
            id=names.SWEEP_WORKFLOW_ID,
            task_queue=names.CONTROL_QUEUE,
            start_signal="sweep_now",
            start_signal_args=[inp],
        )

    async def until(count):
        async with asyncio.timeout(60):
            while counting.pruned < count:
                await asyncio.sleep(0.05)

    async with contextlib.AsyncExitStack() as stack:
        await start()
        handle = await start()
        await stack.enter_async_context(worker(client))
        await stack.enter_async_context(worker(await another_process()))
        await until(1)
        await asyncio.sleep(0.5)
        assert (counting.sweeps, counting.beside) == (1, 1)
        await asyncio.gather(start(), start())
        await until(2)
        assert counting.beside == 1
        await temporal_env.fast_forward(handle, timedelta(hours=1))
        await until(3)
        assert counting.beside == 1
        await handle.signal("stop")
        await asyncio.wait_for(handle.result(), 60)
