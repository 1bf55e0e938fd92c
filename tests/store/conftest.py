"""A real database per test, two nodes on record, and short ways to write history.

Every test of the store runs on SQLite and on PostgreSQL, unless it asks for one of them by name.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sickbay.contracts.steps import PageDraft, RepairRecord, StepRecord, TicketDraft
from sickbay.domain.gate import Hold, HoldKind
from sickbay.domain.health import Health
from sickbay.domain.node import Category, Node, Part, PartKind, Severity, Treatment
from sickbay.store.engine import Store, open_store
from sickbay.store.records import StoreRecords

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
HEALTHY = Health(0.98, 1.0, Category.COMPUTE, "min:compute")
SICK = Health(0.0, 1.0, Category.MEMORY, "hard_fail:xid_48", "xid", "gpu3", "double-bit error")


def at(minutes: float) -> datetime:
    """A moment after the tests' beginning."""
    return T0 + timedelta(minutes=minutes)


def node_named(name: str, *, pool: str = "train", gpus: int = 2) -> Node:
    """A node with GPUs."""
    parts = tuple(
        Part(f"gpu{i}", PartKind.GPU, f"GPU-{name}-{i}", f"S{name}{i}", f"0000:0{i}:00")
        for i in range(gpus)
    )
    return Node(name, pool, f"{pool}-g1", "rack1", "hgx", parts)


def hold(node: str, *, id_: str = "sickbay:r1", kind: HoldKind = HoldKind.QUARANTINE) -> Hold:
    """A hold of ours."""
    return Hold(
        id=id_,
        node=node,
        kind=kind,
        owner="sickbay",
        mark=id_,
        reason="hard_fail:xid_48",
        placed_at=T0,
        release_condition="2 passes in a row of the proof",
        next_step="drain",
        deadline=at(60),
        repair_id="r1",
    )


def repair(repair_id: str, node: str, **changes: object) -> RepairRecord:
    """A repair's row."""
    base: dict[str, object] = {
        "repair_id": repair_id,
        "workflow_id": f"node-repair/{node}",
        "node": node,
        "pool": "train",
        "stage": "drain",
        "reason": "hard_fail:xid_48",
        "severity": Severity.CRITICAL,
        "started_at": T0,
        "updated_at": T0,
    }
    return RepairRecord(**{**base, **changes})  # type: ignore[arg-type]


def step(
    repair_id: str,
    node: str,
    ordinal: int,
    stage: str,
    outcome: str,
    *,
    treatment: Treatment | None = None,
    part: str = "",
) -> StepRecord:
    """A finished stage that took one minute, `ordinal` minutes after the beginning."""
    return StepRecord(
        repair_id=repair_id,
        node=node,
        ordinal=ordinal,
        stage=stage,
        outcome=outcome,
        started_at=at(ordinal),
        ended_at=at(ordinal + 1),
        treatment=treatment,
        part=part,
        category="memory",
        evidence=("ab" * 32,),
    )


def ticket(key: str = "n1/gpu0/memory") -> TicketDraft:
    """A request to swap a part."""
    return TicketDraft(
        key, "n1", "train", "rack1", "gpu0", "GPU-n1-0", "Sn10", "memory", "swap gpu0", "why", "r1"
    )


def page(key: str = "budget/train/1") -> PageDraft:
    """An urgent call."""
    return PageDraft(key, "train", "budget of train needs a human", labels={"pool": "train"})


DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path / 'state' / 'sickbay.db'}"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """A database for this test: a new SQLite file, or PostgreSQL with this release's schema."""
    if request.param == "sqlite":
        return sqlite_url
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, sqlite_url: str):
    """A database without any table."""
    if request.param == "sqlite":
        yield sqlite_url
        return
    server = request.getfixturevalue("postgres_server")
    name = server.new_database()
    yield server.url(name)
    server.drop(name)


@pytest.fixture
async def store(url: str):
    opened = await open_store(url)
    yield opened
    await opened.close()


@pytest.fixture
async def sqlite_store(sqlite_url: str):
    opened = await open_store(sqlite_url)
    yield opened
    await opened.close()


@pytest.fixture
async def records(store: Store) -> StoreRecords:
    found = StoreRecords(store)
    await found.sync_inventory([node_named("n1"), node_named("n2", pool="serve")], at=T0)
    return found
