"""Opening the store: engine, pragmas, migrations, and short transactions that wait their turn.

Several processes use one SQLite file at once. A write takes the lock before it reads, so it never
fails half-way; a lock that stays taken is asked for again, a bounded number of times.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event, inspect, make_url, text
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InvalidRequestError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from sickbay.errors import SchemaTooNew, Unreachable, UsageError

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).with_name("migrations")
BUSY_TIMEOUT_MS = 10_000
LOCK_ATTEMPTS = 3
LOCK_PAUSE_S = 0.05
IMMEDIATE = "sickbay_immediate"

# Alembic keeps the running migration in module globals: one at a time per event loop.
_migrating: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


@dataclass(frozen=True)
class Store:
    """An open database. `read()` and `write()` give short transactions."""

    engine: AsyncEngine
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads."""
        async with self.engine.connect() as connection:
            await _begun(connection)
            yield connection

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that takes the write lock first, so that it never fails half-way on it.

        Raises:
            OperationalError: other processes held the lock for `LOCK_ATTEMPTS` busy timeouts.
        """
        async with self._own_turn(), self.engine.connect() as plain:
            connection = await plain.execution_options(**{IMMEDIATE: True})
            await _begun(connection)
            yield connection
            await connection.commit()

    @contextlib.asynccontextmanager
    async def _own_turn(self) -> AsyncIterator[None]:
        """SQLite has one writer: tasks of this process queue here, not in its busy loop."""
        if self.engine.dialect.name != "sqlite":
            yield
            return
        async with self._writing:
            yield

    async def close(self) -> None:
        """Give all connections back."""
        await self.engine.dispose()


def is_locked(error: DBAPIError) -> bool:
    """Whether another process only held the lock too long, so that asking again may help."""
    return "database is locked" in str(error.orig)


async def _begun(connection: AsyncConnection) -> None:
    for attempt in range(1, LOCK_ATTEMPTS + 1):
        try:
            await connection.begin()
        except OperationalError as error:
            if attempt == LOCK_ATTEMPTS or not is_locked(error):
                raise
            await asyncio.sleep(LOCK_PAUSE_S * attempt)
        else:
            return


async def open_store(url: str) -> Store:
    """The store at `url`, migrated to this release's schema.

    Raises:
        UsageError: the url makes no sense. SchemaTooNew: a newer release wrote the database.
        Unreachable: the database does not answer, or is no database.
    """
    engine = _engine(url)
    store = Store(engine)
    lock = _migrating.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    try:
        _make_room(engine)
        async with lock:
            await _migrated(store)
    except (DBAPIError, OSError) as error:
        await engine.dispose()
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise Unreachable(
            f"the store at {engine.url.render_as_string()} does not answer: {cause}",
            field="store.url",
            remedy="check the path, its rights, and that no other program holds the file",
        ) from error
    except SchemaTooNew:
        await engine.dispose()
        raise
    return store


async def _migrated(store: Store) -> None:
    """Upgrade under the write lock, and only when needed: opening must not wait for writers."""
    for attempt in range(1, LOCK_ATTEMPTS + 1):
        try:
            async with store.read() as connection:
                current = await connection.run_sync(is_current)
            if not current:
                async with store.write() as connection:
                    await connection.run_sync(migrate)
        except OperationalError as error:
            if attempt == LOCK_ATTEMPTS or not is_locked(error):
                raise
            await asyncio.sleep(LOCK_PAUSE_S * attempt)
        else:
            return


def is_current(connection: Connection) -> bool:
    """Whether the schema is this release's newest.

    Raises:
        SchemaTooNew: a newer release wrote the database.
    """
    known = revisions()
    current = _revision(connection)
    if current is not None and current not in known:
        raise SchemaTooNew(
            f"the database has schema {current}, which this release does not know",
            field="store.url",
            remedy="run the newer release of sickbay, or name another database",
        )
    return current == known[-1]


def migrate(connection: Connection, *, target: str = "head") -> None:
    """Bring the schema up to `target`; a revision this release does not know is refused.

    Raises:
        SchemaTooNew: a newer release wrote the database.
    """
    if not is_current(connection):
        # Imported here: Alembic is slow to load, and most commands find the schema current.
        from alembic import command  # noqa: PLC0415

        config = migration_config()
        config.attributes["connection"] = connection
        command.upgrade(config, target)


def revisions() -> list[str]:
    """The schema's revisions this release knows, oldest first: the files' leading numbers."""
    return sorted(f.name.partition("_")[0] for f in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def _revision(connection: Connection) -> str | None:
    """The revision the database is at, None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("select version_num from alembic_version")).scalar()
    return None if found is None else str(found)


def migration_config() -> "Config":
    """Alembic's configuration for the migrations shipped in this package."""
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _engine(url: str) -> AsyncEngine:
    try:
        engine = create_async_engine(make_url(url))
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, InvalidRequestError) as error:
        raise UsageError(
            f"store.url {url!r} is no database url this release can open",
            field="store.url",
            remedy="e.g. sqlite+aiosqlite:///sickbay.db",
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _on_connect)
        event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


def _make_room(engine: AsyncEngine) -> None:
    if engine.dialect.name == "sqlite" and engine.url.database:
        Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)


def _on_connect(connection: Any, _record: Any) -> None:
    """WAL for readers beside a writer; NORMAL is safe against a killed process."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get(IMMEDIATE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
