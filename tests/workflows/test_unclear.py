"""What is unclear never heals, never climbs, and ends at a person who was paged once."""

from dataclasses import replace

from sickbay.contracts.steps import DrainResult, DrainState, Effect, Outcome
from sickbay.domain.node import Severity, Treatment
from sickbay.domain.reading import Verdict
from tests.workflows.conftest import POLICY

UNCLEAR = Verdict.INCONCLUSIVE


async def test_inconclusive_is_asked_again_then_a_person_once_and_no_treatment(start):
    async with start() as loop:
        loop.fleet.script("checks.dcgm_diag", *[UNCLEAR] * 3, node="n001")
        await loop.report("n001")
        await loop.until_stage("needs_human", waits="a person")
        assert (await loop.story())[2:] == ["diagnose inconclusive"] * 3
        assert loop.fleet.done() == []
        assert len(loop.pager.delivered) == 1
        assert not loop.fleet["n001"].gate_open
        await loop.order("resume")
        assert (await loop.ended()).ending == "returned"
        assert len(loop.pager.delivered) == 1


async def test_an_inconclusive_proof_counts_for_nothing_and_breaks_the_row(start):
    async with start() as loop:
        loop.control["n001"].hold()
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("reset")
        # The first proof passes, the second cannot tell: two more must follow.
        loop.fleet.script("checks.dcgm_diag", Verdict.PASS, UNCLEAR, node="n001")
        loop.control["n001"].let_go()
        assert (await loop.ended()).ending == "returned"
        assert (await loop.story())[4:] == [
            "prove passed",
            "prove inconclusive",
            "prove passed",
            "prove passed",
            "return returned",
        ]
        assert loop.fleet.done() == [Treatment.RESET]


async def test_a_person_is_reminded_while_nobody_decides(start):
    async with start() as loop:
        loop.fleet.script("checks.dcgm_diag", *[UNCLEAR] * 3, node="n001")
        await loop.report("n001")
        await loop.until_stage("needs_human", waits="a person")
        await loop.jump(loop.repair(), hours=9)
        await loop.until("a reminder", lambda: loop.pager.about("still needs a human"))
        assert (await loop.repairs.status("n001")).stage == "needs_human"


async def test_a_blocked_drain_pages_what_blocks_and_goes_on_when_it_ends(start):
    policy = replace(POLICY, drain_deadline_minor_s=0.1, suite_deadline_s=1.0)
    async with start(policy=policy) as loop:
        loop.fleet["n001"].jobs.append("job7")
        await loop.broken("n001", Treatment.RESET, severity=Severity.WARNING)
        await loop.until("a page", lambda: loop.pager.about("does not drain"))
        assert "job7" in loop.pager.about("does not drain")[0].detail
        assert loop.fleet["n001"].jobs == ["job7"]
        assert loop.fleet.log.count("checks.gpu_state") == 0
        loop.fleet["n001"].jobs.clear()
        assert (await loop.ended()).ending == "returned"


async def test_a_scheduler_that_cannot_be_read_is_not_a_drained_node(start):
    policy = replace(POLICY, drain_deadline_major_s=0.1, suite_deadline_s=1.0)
    async with start(policy=policy) as loop:
        unknown = DrainResult(DrainState.UNKNOWN, detail="the scheduler does not answer")
        loop.fleet.script("scheduler.drain_state", *[unknown] * 300, node="n001")
        await loop.broken("n001", Treatment.RESET)
        await loop.until("a page", lambda: loop.pager.about("does not drain"))
        assert "does not answer" in loop.pager.about("does not drain")[0].detail
        assert loop.fleet.log.count("scheduler.evict") == 0
        assert loop.fleet.log.count("checks.gpu_state") == 0


async def test_a_silent_node_is_retried_then_a_person_is_asked(start):
    policy = replace(POLICY, node_queue_timeout_s=0.3)
    async with start(policy=policy, silent=("n001",)) as loop:
        await loop.report("n001")
        await loop.until_stage("needs_human", waits="a person")
        assert (await loop.story())[2:] == ["diagnose unreachable"] * 3
        async with loop.node_worker("n001"):
            await loop.order("resume")
            assert (await loop.ended()).ending == "returned"


async def test_a_silent_node_is_power_cycled_where_that_is_possible(start):
    available = (*POLICY.available, Treatment.POWER_CYCLE)
    policy = replace(POLICY, node_queue_timeout_s=0.3, available=available)
    async with start(policy=policy, silent=("n001",)) as loop:
        await loop.report("n001")
        await loop.until_stage("power_cycle")


async def test_an_act_whose_answer_was_lost_is_judged_by_the_proof(start):
    async with start() as loop:
        lost = Effect(Outcome.AMBIGUOUS, "the connection broke")
        loop.fleet.script("control.reset", lost, node="n001")
        await loop.broken("n001", Treatment.RESET)
        assert (await loop.ended()).ending == "returned"
        assert (await loop.story())[3:5] == ["reset ambiguous", "prove passed"]
        assert loop.fleet.done() == [Treatment.RESET]


async def test_an_act_that_failed_climbs(start):
    async with start() as loop:
        loop.fleet.script("control.reset", Effect(Outcome.PERMANENT, "in use"), node="n001")
        await loop.broken("n001", Treatment.RESET, Treatment.REBOOT)
        assert (await loop.ended()).ending == "returned"
        assert (await loop.story())[3:5] == ["reset failed", "reboot done"]


async def test_a_job_that_slipped_in_sends_the_repair_back_to_the_drain(start):
    async with start() as loop:
        busy = DrainResult(DrainState.DRAINING, blocking=("job9",))
        loop.runner.hold("n001")
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("diagnose")
        loop.fleet.script("scheduler.drain_state", busy, node="n001")
        loop.runner.let_go("n001")
        assert (await loop.ended()).ending == "returned"
        assert (await loop.story())[3:6] == ["reset blocked", "drain drained", "diagnose confirmed"]
        assert loop.fleet.done() == [Treatment.RESET]


async def test_a_gate_that_closes_late_is_closed_once(start):
    async with start() as loop:
        late = [Effect(Outcome.TRANSIENT, "busy"), Effect(Outcome.AMBIGUOUS, "lost")]
        loop.fleet.script("scheduler.close_gate", *late, node="n001")
        await loop.report("n001")
        assert (await loop.ended()).ending == "returned"
        assert [moved for _, node, moved in loop.fleet.gate_moves if node == "n001"] == [
            False,
            True,
        ]


async def test_a_gate_that_cannot_be_closed_ends_at_a_person_and_nothing_is_touched(start):
    async with start() as loop:
        no = Effect(Outcome.PERMANENT, "no such node")
        loop.fleet.script("scheduler.close_gate", *[no] * 20, node="n001")
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("needs_human", waits="a person")
        assert set(loop.fleet.log.verbs(changes=True)) == {"scheduler.close_gate", "pager.page"}
        assert await loop.records.holds("n001") == ()
