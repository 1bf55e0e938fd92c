"""Commands for running on a cluster: a health check, and the codec server."""

import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
import uvicorn
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from sickbay.cli.output import Json, console, emit
from sickbay.cli.processes import LOOPBACK, free_port
from sickbay.cli.session import Config, State, find_installation
from sickbay.codec import codec_of
from sickbay.codec_server import codec_app
from sickbay.connection import open_client
from sickbay.contracts import names
from sickbay.errors import Unreachable, UsageError
from sickbay.secret_refs import read_secret
from sickbay.settings import Settings, load_settings
from sickbay.store.engine import open_store

CONNECT_WAIT_S = 5.0
# A worker renews its poll at least once a minute; the server remembers it for five.
POLLED_WITHIN = timedelta(seconds=90)


def healthcheck(
    config: Config = None,
    state: State = None,
    node: Annotated[
        str | None, typer.Option("--node", help="Ask for this node's worker, not the control one.")
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Only a worker on this machine counts.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Whether Temporal and the store answer and a worker polls; exit 4 when not."""
    settings = find_installation(config, state)
    found = asyncio.run(_health(settings, node=node, here=here))
    emit(found, "; ".join(f"{name}: {value}" for name, value in found.items()), as_json=as_json)


async def _health(settings: Settings, *, node: str | None, here: bool) -> dict[str, str]:
    client = await open_client(settings, wait_s=CONNECT_WAIT_S)
    store = await open_store(settings.store_url, password=settings.store_password())
    await store.close()
    queue = names.node_queue(node) if node else names.CONTROL_QUEUE
    kind = (
        TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY if node else TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    )
    pollers = await _pollers(client, queue=queue, kind=kind)
    if here:
        pollers = [p for p in pollers if p.partition("@")[2] == socket.gethostname()]
    if not pollers:
        where = " on this machine" if here else ""
        raise Unreachable(
            f"no worker{where} polls the queue {queue}",
            field="node" if node else None,
            remedy="look at the worker's log",
        )
    return {"temporal": "answers", "store": "answers", queue: f"polled by {len(pollers)}"}


async def _pollers(client: Client, *, queue: str, kind: TaskQueueType.ValueType) -> list[str]:
    """Who asked for work of this queue lately."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    try:
        answer = await client.workflow_service.describe_task_queue(request)
    except RPCError as error:
        raise Unreachable(f"Temporal does not answer: {error.message}") from error
    oldest = datetime.fromtimestamp(time.time(), UTC) - POLLED_WITHIN
    return [
        p.identity for p in answer.pollers if p.last_access_time.ToDatetime(tzinfo=UTC) >= oldest
    ]


def codec_server(
    config: Config = None,
    state: State = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on loopback.")] = 8234,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", help="Where Temporal's UI is served.")
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--without-token", help="Let anybody on this machine decrypt.")
    ] = False,
) -> None:
    """Decrypt payloads for Temporal's UI and command line, on loopback; Ctrl-C stops it."""
    settings = load_settings(config) if config else find_installation(config, state)
    if not settings.codec.keys:
        raise UsageError(
            "no codec keys are configured: nothing is encrypted",
            field="codec.keys",
            remedy="see docs/how-to/run-on-a-cluster.md",
        )
    token = read_secret(
        file=settings.codec.server_token_file,
        env=settings.codec.server_token_env,
        field="codec.server_token",
    )
    if token is None and not open_to_all:
        raise UsageError(
            "the codec server needs a token",
            field="codec.server_token_file",
            remedy="set codec.server_token_file or _env, or say --without-token",
        )
    origins = origin or [f"http://{LOOPBACK}:{settings.temporal.ui_port}"]
    app = codec_app(codec_of(settings.codec), token=None if open_to_all else token, origins=origins)
    chosen = free_port(port, what="the codec server", field="port")
    console.print(f"codec server at http://{LOOPBACK}:{chosen} for {', '.join(origins)}")
    uvicorn.run(app, host=LOOPBACK, port=chosen, log_level="warning", access_log=False)
