"""The codec on a real server: what it stores is closed, mixed histories run on, keys rotate."""

import asyncio
import base64
import os
import re
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from sickbay.cluster_settings import CodecSettings
from sickbay.codec import data_converter
from sickbay.errors import CodecKeyMissing

SECRET = "a-distinctive-text-of-the-fleet"
QUEUE = "codec-test"
TIMEOUT = timedelta(seconds=20)


@activity.defn(name="codec_test_echo")
async def echo(text: str) -> str:
    if text.startswith("fail"):
        raise ApplicationError(f"because of {text}", non_retryable=True)
    return text.upper()


@workflow.defn(name="CodecTestWorkflow")
class Waits:
    def __init__(self) -> None:
        self.said: list[str] = []

    @workflow.run
    async def run(self, text: str) -> str:
        first = await workflow.execute_activity(
            "codec_test_echo", text, start_to_close_timeout=TIMEOUT, result_type=str
        )
        await workflow.wait_condition(lambda: bool(self.said))
        return first + self.said[0]

    @workflow.signal(name="say")
    def say(self, text: str) -> None:
        self.said.append(text)

    @workflow.query(name="heard")
    def heard(self) -> list[str]:
        return self.said


@pytest.fixture
def codec(tmp_path):
    """`codec(active, *ids)`: settings with these keys; a key of an id is always the same."""
    made: dict[str, str] = {}

    def settings(active: str, *ids: str) -> CodecSettings:
        for i in ids:
            if i not in made:
                made[i] = base64.b64encode(os.urandom(32)).decode()
                (tmp_path / i).write_text(made[i])
        keys = [{"id": i, "file": tmp_path / i} for i in ids]
        return CodecSettings.model_validate({"keys": keys, "active": active})

    return settings


@pytest.fixture
def client_with(temporal_local):
    """`client_with(codec settings)`: a client of one and the same server."""

    def make(settings: CodecSettings) -> Client:
        config = temporal_local.client.config()
        config["data_converter"] = data_converter(settings)
        return Client(**config)

    return make


def worker(client: Client) -> Worker:
    return Worker(
        client, task_queue=QUEUE, workflows=[Waits], activities=[echo],
        workflow_runner=UnsandboxedWorkflowRunner(), max_cached_workflows=0,
    )  # fmt: skip


async def raw_history(temporal_local, workflow_id: str) -> str:
    return (await temporal_local.client.get_workflow_handle(workflow_id).fetch_history()).to_json()


async def test_what_the_server_stores_is_closed_and_replays_with_the_key_only(
    codec, client_with, temporal_local
):
    client = client_with(codec("one", "one"))
    async with worker(client):
        handle = await client.start_workflow(
            "CodecTestWorkflow", SECRET, id="closed", task_queue=QUEUE,
            static_summary=f"summary {SECRET}", memo={"note": SECRET},
        )  # fmt: skip
        await handle.signal("say", SECRET)
        assert await handle.result() == SECRET.upper() + SECRET
        assert await handle.query("heard") == [SECRET]
    text = await raw_history(temporal_local, "closed")
    decoded = "".join(readable(text))
    assert SECRET not in decoded
    assert SECRET.upper() not in decoded
    history = await handle.fetch_history()
    settings = codec("two", "two", "one")
    replayer = Replayer(
        workflows=[Waits], workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=data_converter(settings),
    )  # fmt: skip
    await replayer.replay_workflow(history)
    without = Replayer(
        workflows=[Waits], workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=data_converter(codec("two", "two")),
    )  # fmt: skip
    with pytest.raises(Exception, match="codec key 'one'"):
        await without.replay_workflow(history)


def readable(text: str):
    """A history's JSON as it is, and each base64 string in it opened."""
    yield text
    for found in re.findall(r'"([A-Za-z0-9+/]{8,}={0,2})"', text):
        try:
            yield base64.b64decode(found).decode("utf-8", "replace")
        except ValueError:
            continue


async def test_failure_messages_are_closed_in_the_history_and_open_to_us(
    codec, client_with, temporal_local
):
    client = client_with(codec("one", "one"))
    async with worker(client):
        with pytest.raises(WorkflowFailureError) as error:
            await client.execute_workflow(
                "CodecTestWorkflow", f"fail {SECRET}", id="failed", task_queue=QUEUE
            )
    assert SECRET in str(error.value.cause.cause)
    text = await raw_history(temporal_local, "failed")
    assert SECRET not in "".join(readable(text))
    assert "in echo" not in text, "a stack trace is in the clear"


async def test_a_history_begun_in_the_clear_goes_on_encrypted_and_under_the_next_key(
    codec, client_with
):
    plain, one = client_with(codec("")), client_with(codec("one", "one"))
    both = client_with(codec("two", "two", "one"))
    async with worker(plain):
        handle = await plain.start_workflow("CodecTestWorkflow", "a", id="mixed", task_queue=QUEUE)
        other = await one.start_workflow("CodecTestWorkflow", "b", id="old", task_queue="elsewhere")
        await until(lambda: has_result(handle))
    async with worker(both):
        await both.get_workflow_handle("mixed").signal("say", "x")
        assert await both.get_workflow_handle("mixed").result() == "Ax"
    history = await other.fetch_history()
    assert b"binary/encrypted" in history.events[0].SerializeToString()


async def test_a_missing_key_fails_the_workflow_task_and_the_key_lets_it_go_on(
    codec, client_with, temporal_local
):
    knows, lacks = client_with(codec("one", "one")), client_with(codec("two", "two"))
    handle = await knows.start_workflow("CodecTestWorkflow", "a", id="locked", task_queue=QUEUE)
    async with worker(lacks):
        said = await until(lambda: task_failure(temporal_local, "locked"))
        assert "'one'" in said
        assert "codec.keys" in said
        assert (await handle.describe()).status.name == "RUNNING"
    both = client_with(codec("two", "two", "one"))
    async with worker(both):
        await handle.signal("say", "x")
        answer = both.get_workflow_handle("locked").result()
        assert await asyncio.wait_for(answer, timeout=60) == "Ax"


async def test_a_client_without_the_key_is_told_which_one_it_lacks(codec, client_with):
    client = client_with(codec("one", "one"))
    async with worker(client):
        handle = await client.start_workflow("CodecTestWorkflow", "a", id="asked", task_queue=QUEUE)
        await handle.signal("say", "x")
        await handle.result()
        with pytest.raises(CodecKeyMissing, match="'one'"):
            await client_with(codec("")).get_workflow_handle("asked").result()


async def until(ask, within_s: float = 40.0):
    ends_at = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < ends_at:
        if found := await ask():
            return found
        await asyncio.sleep(0.1)
    pytest.fail("not within the time")


async def has_result(handle) -> bool:
    events = (await handle.fetch_history()).events
    return any(e.HasField("activity_task_completed_event_attributes") for e in events)


async def task_failure(temporal_local, workflow_id: str) -> str:
    handle = temporal_local.client.get_workflow_handle(workflow_id)
    for event in (await handle.fetch_history()).events:
        if event.HasField("workflow_task_failed_event_attributes"):
            return event.workflow_task_failed_event_attributes.failure.message
    return ""
