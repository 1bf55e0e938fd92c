import json

import httpx
import pytest

from sickbay.adapters.simulated_scheduler import SimulatedScheduler
from sickbay.contracts.steps import DrainState, Outcome
from sickbay.errors import Unreachable

OURS = {"mark": "sickbay:r1", "reason": "xid_79", "at": 1.0}
THEIRS = {"mark": "kernel update", "reason": "by ops", "at": 1.0}
JOB = {"id": "j1", "user": "chen", "gpus": ["gpu0"], "started_at": 1.0, "ends_at": 2.0}


def row(**fields):
    return {"node": "n001", "up": True, "marks": [], "jobs": [], "state": "idle"} | fields


def scheduler(answer):
    def handle(request):
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return SimulatedScheduler("http://scheduler", client=client)


@pytest.mark.parametrize(
    ("answer", "state", "blocking"),
    [
        (row(marks=[OURS]), DrainState.DRAINED, ()),
        (row(marks=[OURS, THEIRS]), DrainState.DRAINED, ()),
        (row(marks=[OURS], jobs=[JOB]), DrainState.DRAINING, ("j1",)),
        (row(marks=[THEIRS]), DrainState.UNKNOWN, ()),
        (row(), DrainState.UNKNOWN, ()),
        (row(marks=[OURS], node="n002"), DrainState.UNKNOWN, ()),
        ({"node": "n001", "marks": [OURS]}, DrainState.UNKNOWN, ()),
        (["not", "a", "row"], DrainState.UNKNOWN, ()),
    ],
)
async def test_drained_needs_our_mark_no_job_and_a_whole_answer(answer, state, blocking):
    result = await scheduler(httpx.Response(200, json=answer)).drain_state("n001")
    assert (result.state, result.blocking) == (state, blocking)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, json={}),
        httpx.Response(500),
        httpx.Response(200, text="<html>"),
        httpx.ReadTimeout("late"),
        httpx.ConnectError("refused"),
    ],
)
async def test_an_answer_that_cannot_be_had_is_unknown_and_never_no_marks(answer):
    found = scheduler(answer)
    assert (await found.drain_state("n001")).state is DrainState.UNKNOWN
    with pytest.raises(Unreachable):
        await found.marks("n001")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (httpx.Response(200, json=row()), Outcome.SUCCEEDED),
        (httpx.Response(404, json={"error": "no such node"}), Outcome.PERMANENT),
        (httpx.Response(503), Outcome.TRANSIENT),
        (httpx.ConnectError("refused"), Outcome.TRANSIENT),
        (httpx.ConnectTimeout("nobody there"), Outcome.TRANSIENT),
        (httpx.ReadTimeout("sent, not answered"), Outcome.AMBIGUOUS),
        (httpx.RemoteProtocolError("cut"), Outcome.AMBIGUOUS),
    ],
)
async def test_each_attempt_is_classified(answer, outcome):
    found = scheduler(answer)
    assert (await found.close_gate("n001", mark="sickbay:r1", reason="x")).outcome is outcome
    assert (await found.open_gate("n001", mark="sickbay:r1")).outcome is outcome
    assert (await found.evict("n001", mark="sickbay:r1", reason="x")).outcome is outcome


async def test_a_mark_that_is_gone_is_opened_but_permits_no_eviction():
    found = scheduler(httpx.Response(409, json={"error": "no such mark"}))
    assert (await found.open_gate("n001", mark="sickbay:r1")).outcome is Outcome.SUCCEEDED
    evicted = await found.evict("n001", mark="sickbay:r1", reason="x")
    assert evicted.outcome is Outcome.PERMANENT


async def test_only_the_given_mark_is_sent():
    sent = []

    def answer(request):
        sent.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json=row())

    found = scheduler(answer)
    await found.close_gate("n001", mark="sickbay:r1", reason="xid_79")
    await found.open_gate("n001", mark="sickbay:r1")
    assert sent == [
        ("/scheduler/nodes/n001/drain", {"mark": "sickbay:r1", "reason": "xid_79"}),
        ("/scheduler/nodes/n001/resume", {"mark": "sickbay:r1"}),
    ]


async def test_marks_of_others_are_shown_too():
    found = scheduler(httpx.Response(200, json=row(marks=[OURS, THEIRS])))
    assert await found.marks("n001") == (("sickbay:r1", "xid_79"), ("kernel update", "by ops"))
