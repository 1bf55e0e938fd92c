"""The fleet in memory refuses what no machine allows, and cures only what is cured."""

from datetime import UTC, datetime

import pytest

from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.node import Treatment
from sickbay.domain.proof import Check, CheckName
from sickbay.domain.reading import Verdict
from sickbay.errors import NodeUnreadable
from sickbay.testing import (
    MemoryCheckRunner,
    MemoryFleet,
    MemoryNodeControl,
    MemoryScheduler,
    PhysicsBroken,
    some_nodes,
)

NODES = some_nodes(2)
MARK = "sickbay:r1"
STATE = Check(CheckName.GPU_STATE)


@pytest.fixture
def fleet():
    return MemoryFleet(NODES, now=lambda: datetime(2026, 3, 1, tzinfo=UTC))


async def act(fleet, treatment, operation="r1/001", slot="gpu0"):
    part = NODES[0].part_in(slot) if slot else None
    control = MemoryNodeControl(fleet, node="n001")
    await control.start(treatment, part=part, operation_id=operation)
    return await control.progress(treatment, part=part, operation_id=operation, boot_id_before="x")


async def verdict(fleet):
    output = await MemoryCheckRunner(fleet).run(STATE, node=NODES[0], deadline_s=1)
    return output.reading.verdict


@pytest.mark.parametrize("jobs", [[], ["job7"]])
async def test_an_act_on_a_node_that_is_not_drained_is_refused_and_stays_on_record(fleet, jobs):
    fleet[NODES[0].id].jobs.extend(jobs)
    if jobs:
        fleet.mark("n001", MARK, reason="x")
    with pytest.raises(PhysicsBroken, match="not drained"):
        await act(fleet, Treatment.RESET)
    assert fleet.acts == []
    assert len(fleet.broken) == 1


async def test_the_same_operation_twice_and_a_swap_by_software_are_refused(fleet):
    fleet.mark("n001", MARK, reason="x")
    control = MemoryNodeControl(fleet, node="n001")
    await control.start(Treatment.REBOOT, part=None, operation_id="r1/001")
    with pytest.raises(PhysicsBroken, match="started twice"):
        await control.start(Treatment.REBOOT, part=None, operation_id="r1/001")
    with pytest.raises(PhysicsBroken, match="no act of a node"):
        await control.start(Treatment.SWAP, part=None, operation_id="r1/002")
    assert fleet.done() == [Treatment.REBOOT]


async def test_a_check_beside_a_job_and_anothers_mark_are_refused(fleet):
    fleet["n001"].jobs.append("job7")
    with pytest.raises(PhysicsBroken, match="beside"):
        await verdict(fleet)
    with pytest.raises(PhysicsBroken, match="not ours"):
        await MemoryScheduler(fleet).open_gate("n001", mark="kernel update")


async def test_a_defect_fails_its_checks_until_the_treatment_that_cures_it(fleet):
    fleet.break_part("n001", "gpu0", cured_by={Treatment.RESET})
    fleet.mark("n001", MARK, reason="x")
    assert await verdict(fleet) is Verdict.FAIL
    await act(fleet, Treatment.REBOOT, "r1/001", slot=None)
    await act(fleet, Treatment.RESET, "r1/002", slot="gpu1")
    assert await verdict(fleet) is Verdict.FAIL
    assert (await act(fleet, Treatment.RESET, "r1/003")).outcome is Outcome.SUCCEEDED
    assert await verdict(fleet) is Verdict.PASS
    assert fleet["n001"].boot_id == "n001-boot-2"


async def test_answers_are_scripted_by_verb_once_each_and_exceptions_are_raised(fleet):
    fleet.mark("n001", MARK, reason="x")
    fleet.script("control.reset", Effect(Outcome.PERMANENT, "in use"))
    assert (await act(fleet, Treatment.RESET)).outcome is Outcome.PERMANENT
    assert fleet.acts == []
    fleet.script("checks.gpu_state", Verdict.INCONCLUSIVE, RuntimeError("boom"), node="n001")
    assert await verdict(fleet) is Verdict.INCONCLUSIVE
    with pytest.raises(RuntimeError, match="boom"):
        await verdict(fleet)
    assert await verdict(fleet) is Verdict.PASS


async def test_a_node_that_is_down_says_nothing_of_itself(fleet):
    fleet["n001"].up = False
    control = MemoryNodeControl(fleet, node="n001")
    for asked in (control.boot_id, control.facts):
        with pytest.raises(NodeUnreadable):
            await asked()


async def test_a_swapped_part_is_another_part_and_takes_its_defects_with_it(fleet):
    fleet.break_part("n001", "gpu0", cured_by=())
    new = fleet.swap_part("n001", "gpu0", serial="NEW1")
    facts = await MemoryNodeControl(fleet, node="n001").facts()
    assert new in facts.parts
    assert (new.serial, new.slot) == ("NEW1", "gpu0")
    assert await verdict(fleet) is Verdict.PASS
