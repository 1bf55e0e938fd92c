"""The test house itself: real parts fail where they are required, and time moves when asked."""

import asyncio
import contextlib
from datetime import timedelta

import pytest
from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sickbay.contracts.names import NODE_ATTRIBUTE

NODE = SearchAttributeKey.for_keyword(NODE_ATTRIBUTE)
REAL_LIMIT_S = 30


@workflow.defn(name="ThreeDays")
class ThreeDays:
    """Waits three days or for a stop, and says which."""

    def __init__(self):
        self.stopped = False

    @workflow.signal
    def stop(self):
        self.stopped = True

    @workflow.run
    async def run(self) -> str:
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self.stopped, timeout=timedelta(days=3))
        return "stopped" if self.stopped else "three days"


def worker(client):
    # The sandbox re-imports this file by its module name, which importlib mode makes up.
    return Worker(
        client, task_queue="q", workflows=[ThreeDays], workflow_runner=UnsandboxedWorkflowRunner()
    )


async def start(client, workflow_id):
    attributes = TypedSearchAttributes([SearchAttributePair(NODE, "n001")])
    return await client.start_workflow(
        ThreeDays.run, id=workflow_id, task_queue="q", search_attributes=attributes
    )


def test_a_missing_part_skips_on_a_laptop(monkeypatch, require_part, tmp_path):
    monkeypatch.delenv("SICKBAY_REQUIRE_PARTS", raising=False)
    for missing in (None, tmp_path / "nowhere"):
        with pytest.raises(pytest.skip.Exception, match="install the part"):
            require_part(missing, "install the part")


def test_a_missing_part_fails_where_parts_are_required(monkeypatch, require_part):
    monkeypatch.setenv("SICKBAY_REQUIRE_PARTS", "1")
    with pytest.raises(pytest.fail.Exception, match="install the part"):
        require_part(None, "install the part")


def test_a_part_that_is_there_is_handed_over(require_part, tmp_path):
    assert require_part(tmp_path, "never asked for") == tmp_path


async def test_time_moves_only_when_a_test_moves_it(timed_server):
    async with worker(timed_server.client):
        waiting = await start(timed_server.client, "waiting")
        # An idle wait must not run into its own timeout while a result is awaited.
        short = await start(timed_server.client, "short")
        await short.signal(ThreeDays.stop)
        assert await asyncio.wait_for(short.result(), REAL_LIMIT_S) == "stopped"
        described = await waiting.describe()
        assert described.status is not None
        assert described.status.name == "RUNNING"
        assert described.typed_search_attributes.get(NODE) == "n001"

        await timed_server.jump(waiting, timedelta(days=3, minutes=1))
        assert await asyncio.wait_for(waiting.result(), REAL_LIMIT_S) == "three days"


async def test_a_clock_of_ones_own(temporal_env, jump):
    async with worker(temporal_env.client):
        moved, still = [await start(temporal_env.client, name) for name in ("moved", "still")]
        await jump(moved, timedelta(days=4))
        assert await asyncio.wait_for(moved.result(), REAL_LIMIT_S) == "three days"
        described = await still.describe()
        assert described.status is not None
        assert described.status.name == "RUNNING"


async def test_the_local_server_can_list_by_our_attributes(temporal_local):
    async with worker(temporal_local.client):
        handle = await start(temporal_local.client, "listed")
        found: list[str] = []
        for _ in range(100):
            listing = temporal_local.client.list_workflows(f"{NODE_ATTRIBUTE} = 'n001'")
            found = [row.id async for row in listing]
            if found:
                break
            await asyncio.sleep(0.1)
        assert found == ["listed"]
        await handle.signal(ThreeDays.stop)
        assert await asyncio.wait_for(handle.result(), REAL_LIMIT_S) == "stopped"
