"""One command's access to the installation: settings, store, Temporal."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from temporalio.client import Client

from sickbay.access import access_of
from sickbay.cli.lock import is_locked
from sickbay.client import TemporalPermits, TemporalRepairs, pool_sizes
from sickbay.connection import open_client
from sickbay.domain.node import Node
from sickbay.domain.nodeset import expand, fold
from sickbay.errors import Refused, UnknownNode, Unreachable, UsageError
from sickbay.settings import Settings, load_settings
from sickbay.store.engine import Store, open_store
from sickbay.store.records import StoreRecords

RUN_FILE = "run.json"
DEMO_DIR = "demo"
CONNECT_WAIT_S = 3.0

Config = Annotated[
    Path | None, typer.Option("--config", help="Settings file (default: what runs here).")
]
State = Annotated[Path | None, typer.Option("--state", help="State directory of the installation.")]
By = Annotated[str, typer.Option("--by", help="Your name; stored with what you do.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; stored with what you do.")]
Nodes = Annotated[str | None, typer.Argument(help="Node or hostlist, e.g. n[001-004].")]
Pool = Annotated[str | None, typer.Option("--pool", help="Every node of this pool.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

T = TypeVar("T")


@dataclass
class Session:
    """What a command may use. The store is open; Temporal is connected when first needed."""

    settings: Settings
    store: Store
    records: StoreRecords
    _repairs: TemporalRepairs | None = field(default=None)
    _permits: TemporalPermits | None = field(default=None)

    async def repairs(self) -> TemporalRepairs:
        """The way to repairs. Raises `Unreachable`."""
        if self._repairs is None:
            client = await self._connect()
            self._repairs = TemporalRepairs(client, policy_of=self.settings.repair_policy)
        return self._repairs

    async def permits(self) -> TemporalPermits:
        """The way to budgets. Raises `Unreachable`."""
        if self._permits is None:
            sizes = pool_sizes(self.settings, await self.records.nodes())
            self._permits = TemporalPermits(await self._connect(), sizes=sizes)
        return self._permits

    async def _connect(self) -> Client:
        return await open_client(self.settings, wait_s=CONNECT_WAIT_S)

    @property
    def was_started_here(self) -> bool:
        """Whether `sickbay up` made this installation, rather than settings of a cluster."""
        return (self.settings.state_dir / RUN_FILE).exists()

    async def node(self, name: str) -> Node:
        """One node on record. Raises `UnknownNode`."""
        found = await self.records.node(name)
        if found is None:
            raise UnknownNode(
                f"no node {name!r} is on record",
                field="node",
                remedy="`sickbay status` lists the nodes",
            )
        return found

    async def pool(self, name: str) -> str:
        """A pool's name, checked. Raises `UsageError`."""
        pools = sorted({n.pool for n in await self.records.nodes()})
        if name not in pools:
            known = ", ".join(pools) or "none on record"
            raise UsageError(f"no pool {name!r}", field="pool", remedy=f"the pools are: {known}")
        return name

    async def targets(self, nodes: str | None, *, pool: str | None) -> tuple[Node, ...]:
        """The nodes a changing command is for. Raises `UsageError`, `UnknownNode`."""
        if (nodes is None) == (pool is None):
            raise UsageError(
                "name the nodes: a hostlist or --pool, one of the two",
                field="nodes",
                remedy="e.g. n[001-004], or --pool NAME",
            )
        if pool is not None:
            return await self.records.nodes(pool=await self.pool(pool))
        try:
            names = expand(nodes or "")
        except ValueError as error:
            raise UsageError(str(error), field="nodes", remedy="e.g. n[001-004,007]") from error
        return tuple([await self.node(name) for name in names])


def find_installation(config: Path | None, state: Path | None) -> Settings:
    """The settings of the installation a command is about.

    Named by `--config` or `--state`; else the one that runs below `.sickbay`, the demo's included;
    else what ran there last. Settings that lead to a Temporal cluster stand for themselves: its
    workers run elsewhere, and leave no trace here.

    Raises:
        UsageError: a settings file is wrong. Refused: nothing was ever started here.
    """
    base = load_settings(config, state_dir=str(state) if state else None)
    places = [base.state_dir] if config or state else [base.state_dir, base.state_dir / DEMO_DIR]
    found = [p for p in places if (p / RUN_FILE).exists()]
    running = [p for p in found if is_locked(p)]
    chosen = next(iter((*running, *found)), None)
    if chosen is None and config is not None and access_of(base.temporal) is not None:
        return base
    if chosen is None:
        raise Refused(
            f"nothing runs in {base.state_dir}",
            remedy="`sickbay up` starts it; or name its --config or --state",
        )
    return load_settings(chosen / RUN_FILE)


@contextlib.asynccontextmanager
async def session(config: Path | None, state: Path | None) -> AsyncIterator[Session]:
    """An open session. Raises as `find_installation` and `open_store` do."""
    settings = find_installation(config, state)
    store = await open_store(settings.store_url, password=settings.store_password())
    try:
        yield Session(settings=settings, store=store, records=StoreRecords(store))
    finally:
        await store.close()


def run(work: Callable[[Session], Awaitable[T]], *, config: Path | None, state: Path | None) -> T:
    """Run one command's work in a session."""

    async def inside() -> T:
        async with session(config, state) as opened:
            return await work(opened)

    return asyncio.run(inside())


def confirm(nodes: Sequence[Node], *, verb: str, yes: bool, as_json: bool) -> None:
    """Ask a person to confirm the count when more than one node is meant.

    Raises:
        Refused: they said no, or nobody can be asked.
    """
    if yes or len(nodes) <= 1:
        return
    names = fold(n.id for n in nodes)
    if as_json or not typer.get_text_stream("stdin").isatty():
        raise Refused(
            f"{verb} of {len(nodes)} nodes ({names}) needs a confirmation",
            remedy="add --yes, or --dry-run to look first",
        )
    if not typer.confirm(f"{verb} {len(nodes)} nodes ({names})?"):
        raise Refused("not confirmed: nothing was done")


def simulator_url(settings: Settings) -> str:
    """Where the simulated fleet listens. Raises `Unreachable`, `Refused`."""
    if not settings.simulator.enabled:
        raise Refused("only simulated nodes can be broken, and this fleet is real")
    where = settings.simulator_dir / "simulator.json"
    try:
        return str(json.loads(where.read_text(encoding="utf-8"))["base_url"])
    except (OSError, ValueError, KeyError) as error:
        raise Unreachable("the simulated fleet does not run", remedy="`sickbay up`") from error
