"""What differs between SQLite and PostgreSQL: urls, connections, and how a writer takes its turn.

SQLite has one writer at a time. On PostgreSQL writers run side by side, and only those that name
the same turn (one node, one repair, one pool) wait for each other, so that what a write read stays
true until it commits.
"""

import re
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidRequestError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from sickbay.errors import UsageError

BUSY_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 5
# A server that went away without a word (its machine, or the network) is noticed after this long:
# well inside the time an activity has, so that an unreadable stop switch is found unreadable.
SILENCE_MS = 8_000
IMMEDIATE = "sickbay_immediate"
POSTGRESQL = "postgresql+psycopg"
_ALIASES = {"postgres": POSTGRESQL, "postgresql": POSTGRESQL}
# PostgreSQL's code of a lock that was not given in time.
_LOCK_NOT_AVAILABLE = "55P03"
_CREDENTIALS = re.compile(r"(://[^:/@]*):[^@]*@")
# Held for as long as one transaction; the second key is the turn's own.
_TAKE_TURN = text("SELECT pg_advisory_xact_lock(hashtextextended(:turn, 5124))")


def database_url(url: str, *, password: str | None = None) -> URL:
    """The url as SQLAlchemy wants it, `postgresql://` with the driver of this release.

    Raises:
        UsageError: it is no url.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise _no_such(url) from error
    parsed = parsed.set(drivername=_ALIASES.get(parsed.drivername, parsed.drivername))
    return parsed if password is None else parsed.set(password=password)


def open_engine(url: URL) -> AsyncEngine:
    """An engine that connects when it is first used.

    Raises:
        UsageError: no database of this name, or its driver is not installed.
    """
    options: dict[str, Any] = {}
    # What the url asks for itself comes last, and wins.
    asked = url.query.get("options", "")
    if url.get_backend_name() == "postgresql":
        options = {
            "pool_pre_ping": True,
            "connect_args": {
                "connect_timeout": CONNECT_TIMEOUT_S,
                "application_name": "sickbay",
                "tcp_user_timeout": SILENCE_MS,
                "keepalives_idle": SILENCE_MS // 1000,
                "options": f"-c lock_timeout={BUSY_TIMEOUT_MS} {asked}",
            },
        }
    try:
        engine = create_async_engine(url, **options)
    except ImportError as error:
        if url.drivername != POSTGRESQL:
            raise _no_such(str(url)) from error
        raise UsageError(
            "the store's url names PostgreSQL, whose driver is not installed",
            field="store.url",
            remedy="pip install 'sickbay[postgresql]'",
        ) from error
    except (ArgumentError, NoSuchModuleError, InvalidRequestError) as error:
        raise _no_such(str(url)) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _on_connect)
        event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


def make_room(engine: AsyncEngine) -> None:
    """Make the directory of a SQLite file. Raises `OSError`."""
    if engine.dialect.name == "sqlite" and engine.url.database:
        Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)


async def for_reading(connection: AsyncConnection) -> AsyncConnection:
    """The connection set to see one moment of the database, whatever is written meanwhile."""
    if connection.dialect.name != "postgresql":
        return connection
    return await connection.execution_options(
        isolation_level="REPEATABLE READ", postgresql_readonly=True
    )


async def for_writing(connection: AsyncConnection) -> AsyncConnection:
    """The connection set to take SQLite's write lock before it reads."""
    return await connection.execution_options(**{IMMEDIATE: True})


async def take_turn(connection: AsyncConnection, turn: str | None) -> None:
    """Wait until no other transaction has this turn; SQLite's own lock is the turn of all.

    Raises:
        OperationalError: others kept the turn for the whole lock timeout (`is_locked`).
    """
    if turn is not None and connection.dialect.name == "postgresql":
        await connection.execute(_TAKE_TURN, {"turn": turn})


def is_locked(error: DBAPIError) -> bool:
    """Whether another process only held the lock too long, so that asking again may help."""
    locked = getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE
    return locked or "database is locked" in str(error.orig)


def _no_such(url: str) -> UsageError:
    shown = _CREDENTIALS.sub(r"\1:***@", url)
    return UsageError(
        f"store.url {shown!r} is no database url this release can open",
        field="store.url",
        remedy="e.g. sqlite+aiosqlite:///sickbay.db or postgresql+psycopg://USER@HOST/DATABASE",
    )


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
