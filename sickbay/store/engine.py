"""Opening the store: engine, pragmas, migrations."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, make_url
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from sickbay.errors import SchemaTooNew, Unreachable, UsageError

MIGRATIONS = Path(__file__).with_name("migrations")
BUSY_TIMEOUT_MS = 15_000
IMMEDIATE = "sickbay_immediate"


@dataclass(frozen=True)
class Store:
    """An open database. `read()` and `write()` give short transactions."""

    engine: AsyncEngine

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads."""
        async with self.engine.connect() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that takes the write lock first, so that it never fails half-way on it."""
        async with self.engine.connect() as plain:
            connection = await plain.execution_options(**{IMMEDIATE: True})
            async with connection.begin():
                yield connection

    async def close(self) -> None:
        """Give all connections back."""
        await self.engine.dispose()


async def open_store(url: str) -> Store:
    """The store at `url`, migrated to this release's schema.

    Raises:
        UsageError: the url makes no sense. SchemaTooNew: a newer release wrote the database.
        Unreachable: the database does not answer.
    """
    engine = _engine(url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(migrate)
    except OperationalError as error:
        await engine.dispose()
        raise Unreachable(
            f"the store at {engine.url.render_as_string()} does not answer: {error.orig}",
            field="store.url",
        ) from error
    except SchemaTooNew:
        await engine.dispose()
        raise
    return Store(engine)


def migrate(connection: Connection, *, target: str = "head") -> None:
    """Bring the schema to `target`; a revision this release does not know is refused.

    Raises:
        SchemaTooNew: a newer release wrote the database.
    """
    config = migration_config()
    known = {r.revision for r in ScriptDirectory.from_config(config).walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        raise SchemaTooNew(
            f"the database has schema {current}, which this release does not know",
            field="store.url",
            remedy="run the newer release of sickbay, or name another database",
        )
    config.attributes["connection"] = connection
    command.upgrade(config, target)


def migration_config() -> Config:
    """Alembic's configuration for the migrations shipped in this package."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _engine(url: str) -> AsyncEngine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UsageError(
            f"store.url {url!r} is no database url",
            field="store.url",
            remedy="e.g. sqlite+aiosqlite:///sickbay.db",
        ) from error
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_async_engine(parsed)
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine.sync_engine, "connect", _on_connect)
        event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


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
