"""Opening the store: engine, pragmas, migrations, and short transactions that wait their turn.

Several processes use one SQLite file at once. A write takes the lock before it reads, so it never
fails half-way; a lock that stays taken is asked for again, a bounded number of times.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

import sickbay.store.source_tables  # noqa: F401 - its tables belong to the schema
from sickbay.errors import SchemaTooNew, Unreachable
from sickbay.store.databases import (
    database_url,
    for_reading,
    for_writing,
    is_locked,
    make_room,
    open_engine,
    take_turn,
)

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).with_name("migrations")
LOCK_ATTEMPTS = 3
LOCK_PAUSE_S = 0.05
MIGRATION = "migration"

_REMEDY = {
    True: "check the path, its rights, and that no other program holds the file",
    False: "check that the server runs, and host, port, database, user and password",
}

# Alembic keeps the running migration in module globals: one at a time per event loop.
_migrating: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


@dataclass(frozen=True)
class Store:
    """An open database. `read()` and `write()` give short transactions."""

    engine: AsyncEngine
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads, and sees one moment of the database."""
        async with self.engine.connect() as plain:
            connection = await for_reading(plain)
            await _begun(connection)
            yield connection

    @contextlib.asynccontextmanager
    async def write(self, *, turn: str | None = None) -> AsyncIterator[AsyncConnection]:
        """A transaction that takes its turn before it reads, so that it never fails half-way on it.

        Writers that name the same `turn` run one after the other; on SQLite all writers do.

        Raises:
            OperationalError: others held the lock for `LOCK_ATTEMPTS` busy timeouts.
        """
        async with self._own_turn(), self.engine.connect() as plain:
            connection = await for_writing(plain)
            await _begun(connection, turn=turn)
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


async def _begun(connection: AsyncConnection, *, turn: str | None = None) -> None:
    for attempt in range(1, LOCK_ATTEMPTS + 1):
        try:
            await connection.begin()
            await take_turn(connection, turn)
        except OperationalError as error:
            if attempt == LOCK_ATTEMPTS or not is_locked(error):
                raise
            await connection.rollback()
            await asyncio.sleep(LOCK_PAUSE_S * attempt)
        else:
            return


async def open_store(url: str, *, password: str | None = None) -> Store:
    """The store at `url`, migrated to this release's schema.

    `password` is the database user's, kept apart from the url so that no url ever shows it.

    Raises:
        UsageError: the url makes no sense. SchemaTooNew: a newer release wrote the database.
        Unreachable: the database does not answer, or is no database.
    """
    engine = open_engine(database_url(url, password=password))
    store = Store(engine)
    lock = _migrating.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    try:
        make_room(engine)
        async with lock:
            await _migrated(store)
    except (DBAPIError, OSError) as error:
        await engine.dispose()
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise Unreachable(
            f"the store at {engine.url.render_as_string()} does not answer: {cause}",
            field="store.url",
            remedy=_REMEDY[engine.dialect.name == "sqlite"],
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
                async with store.write(turn=MIGRATION) as connection:
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
