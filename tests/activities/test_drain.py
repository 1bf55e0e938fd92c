"""Draining: jobs are ended where they should be, a lent node is waited for, unclear is no end."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.drain import DrainActivities
from sickbay.contracts.steps import (
    DrainRequest,
    DrainResult,
    DrainState,
    Permission,
    StepRequest,
)
from sickbay.domain.gate import borrow_mark
from sickbay.domain.node import Severity
from sickbay.testing import MemoryFleet, MemorySafety, MemoryScheduler, some_nodes

OURS = "sickbay:n001.aaaaaaaaaaaa"
LENT = borrow_mark("n005.bbbbbbbbbbbb")


@pytest.fixture
def fleet():
    made = MemoryFleet(some_nodes(1), now=lambda: datetime.now(UTC))
    made.mark("n001", OURS, reason="repair")
    return made


async def drain(fleet, *, evict, within_s=0.2):
    now = datetime.now(UTC)
    activities = DrainActivities(
        MemoryScheduler(fleet),
        safety=MemorySafety(mode=Permission.ACT),
        clock=lambda: datetime.now(UTC),
    )
    request = DrainRequest(
        step=StepRequest("n001.aaaaaaaaaaaa", "op", "n001", "train"),
        mark=OURS,
        severity=Severity.CRITICAL,
        started_at=now,
        deadline=now + timedelta(seconds=within_s),
        evict=evict,
        poll_s=0.02,
    )
    return await ActivityEnvironment().run(activities.drain, request)


async def test_jobs_are_ended_once_even_when_the_scheduler_does_not_name_them(fleet):
    fleet["n001"].jobs.append("job-1")
    fleet.script("scheduler.drain_state", DrainResult(DrainState.DRAINING))
    assert (await drain(fleet, evict=True)).state is DrainState.DRAINED
    assert fleet.log.count("scheduler.evict") == 1


@pytest.mark.parametrize("evict", [True, False])
async def test_a_lent_node_is_not_empty_and_no_job_is_ended_for_that(fleet, evict):
    fleet.mark("n001", LENT, reason="borrowed")
    found = await drain(fleet, evict=evict)
    assert (found.state, found.blocking) == (DrainState.DRAINING, (LENT,))
    assert fleet.log.count("scheduler.evict") == 0
    fleet.unmark("n001", LENT)
    assert (await drain(fleet, evict=evict)).state is DrainState.DRAINED


async def test_a_scheduler_that_cannot_say_is_unknown_at_the_deadline(fleet):
    fleet.script("scheduler.drain_state", *[DrainResult(DrainState.UNKNOWN)] * 100)
    assert (await drain(fleet, evict=False, within_s=0.1)).state is DrainState.UNKNOWN
