"""The process that takes pushes and serves the page of health metrics.

`python -m workers.dashboard --config FILE`
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from datetime import timedelta

import uvicorn

from sickbay.dashboard.app import Limits, Parts, dashboard_app
from sickbay.dashboard.health_page import NodeFigures, health_page
from sickbay.domain.health import UNKNOWN_HEALTH, Standing
from sickbay.errors import UsageError
from sickbay.rules import read_rules
from sickbay.scoring.ruleset import RuleSet, load_ruleset
from sickbay.secret_refs import read_secret
from sickbay.settings import Settings
from sickbay.store.engine import open_store
from sickbay.store.health_figures import HealthFigures
from sickbay.store.pushes import StorePushes
from sickbay.store.records import StoreRecords
from sickbay.store.rule_book import StoreRuleBook
from workers.process import arguments, run, utc_now
from workers.sources import LOOPBACK

log = logging.getLogger(__name__)

FORGET_S = 600.0
GRACE_S = 5


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop`.

    Raises:
        UsageError: no port, no token off the loopback, or the address cannot be listened on.
    """
    token = push_token(settings)
    store = await open_store(settings.store_url, password=settings.store_password())
    records, pushes, figures = StoreRecords(store), StorePushes(store), HealthFigures(store)
    book = StoreRuleBook(store)
    begun_with = load_ruleset(read_rules(settings.rules))

    async def present_rules() -> RuleSet:
        active = (await book.present(now=utc_now())).active
        return begun_with if active is None else load_ruleset(active)

    async def page() -> str:
        return health_page(await node_figures(records, figures))

    parts = Parts(
        inbox=pushes,
        nodes=records.nodes,
        rules=present_rules,
        page=page,
        clock=utc_now,
        token=token,
        limits=Limits(settings.push.longest_bytes, settings.push.most_items),
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_forget(pushes, keep_s=settings.push.keep_s, stop=stop))
            group.create_task(_listen(settings, parts, stop))
    except* UsageError as errors:
        raise errors.exceptions[0] from None
    finally:
        await store.close()


def push_token(settings: Settings) -> str | None:
    """The token pushes need; None on the loopback without one. Raises `UsageError`."""
    push = settings.push
    if not push.port:
        raise UsageError(
            "nothing is to listen for pushes",
            field="push.port",
            remedy="set push.port to a free port",
        )
    token = read_secret(file=push.token_file, env=push.token_env, field="push.token")
    if token is None and push.host not in LOOPBACK:
        raise UsageError(
            f"pushes on {push.host} need a token",
            field="push.token_file",
            remedy="set push.token_file or push.token_env, or listen on 127.0.0.1",
        )
    if push.host not in LOOPBACK and push.cert_file is None:
        log.warning("pushes on %s come in the clear: set push.cert_file", push.host)
    return token


async def node_figures(records: StoreRecords, figures: HealthFigures) -> list[NodeFigures]:
    """Every node on record with its newest health."""
    nodes = await records.nodes()
    entered = await figures.entered()
    known = {}
    for pool in sorted({n.pool for n in nodes}):
        known.update(await records.standings(pool))
    never = (UNKNOWN_HEALTH, Standing.UNKNOWN, None)
    return [
        NodeFigures(n.id, n.pool, *known.get(n.id, never)[:2], entered.get(n.id)) for n in nodes
    ]


async def _listen(settings: Settings, parts: Parts, stop: asyncio.Event) -> None:
    push = settings.push
    config = uvicorn.Config(
        dashboard_app(parts),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=push.cert_file,
        ssl_keyfile=push.key_file,
    )
    try:
        config.load()
        family = socket.AF_INET6 if ":" in push.host else socket.AF_INET
        listener = socket.create_server((push.host, push.port), family=family)
    except OSError as error:
        raise UsageError(
            f"pushes cannot be taken at {push.host}:{push.port}: {error}",
            field="push.port",
            remedy="set another port, an address of this machine, and readable certificates",
        ) from error
    server = _Server(config)
    log.info("pushes are taken at %s:%d", push.host, push.port)
    serving = asyncio.create_task(server.serve([listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stop.set()
    stopping.cancel()
    await serving


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


async def _forget(pushes: StorePushes, *, keep_s: float, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            await pushes.forget(received_before=utc_now() - timedelta(seconds=keep_s))
        except Exception as error:  # noqa: BLE001 - the next look does it
            log.warning("old pushes cannot be removed now: %r", error)
        try:
            await asyncio.wait_for(stop.wait(), timeout=FORGET_S)
        except TimeoutError:
            continue


def main() -> None:
    """Entry of the process."""
    parser = arguments("sickbay's process for pushes and health metrics")
    run(serve, config=parser.parse_args().config, process="dashboard")


if __name__ == "__main__":
    main()
