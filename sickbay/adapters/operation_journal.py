"""The node's own record of operations: started, then done, durable before anybody is told."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sickbay.contracts.steps import Effect, Outcome
from sickbay.ports import JournalEntry

_SCHEMA = """
create table if not exists operations (
    operation_id text primary key,
    boot_id text not null,
    outcome text,
    detail text
)
"""


class SqliteJournal:
    """One small SQLite file per node; every write is synced before it returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with self._open() as db:
            db.execute(_SCHEMA)

    def lookup(self, operation_id: str) -> JournalEntry | None:
        """The entry of this operation, None when it never began here."""
        with self._open() as db:
            row = db.execute(
                "select boot_id, outcome, detail from operations where operation_id = ?",
                (operation_id,),
            ).fetchone()
        if row is None:
            return None
        boot_id, outcome, detail = row
        effect = Effect(Outcome(outcome), detail or "") if outcome else None
        return JournalEntry(operation_id, boot_id=boot_id, fresh=False, effect=effect)

    def begin(self, operation_id: str, *, boot_id: str) -> JournalEntry:
        """The entry of this operation, made now when there is none."""
        with self._open() as db:
            done = db.execute(
                "insert or ignore into operations (operation_id, boot_id) values (?, ?)",
                (operation_id, boot_id),
            )
            fresh = done.rowcount == 1
        if fresh:
            return JournalEntry(operation_id, boot_id=boot_id, fresh=True, effect=None)
        known = self.lookup(operation_id)
        if known is None:
            raise sqlite3.IntegrityError(f"{operation_id} was refused and is not there")
        return known

    def finish(self, operation_id: str, *, effect: Effect) -> None:
        """Record the outcome of an operation that began here. Raises `LookupError` otherwise."""
        with self._open() as db:
            done = db.execute(
                "update operations set outcome = ?, detail = ? where operation_id = ?",
                (str(effect.outcome), effect.detail, operation_id),
            )
        if done.rowcount != 1:
            raise LookupError(f"{operation_id} never began here")

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self._path, timeout=10)
        try:
            db.execute("pragma journal_mode=wal")
            db.execute("pragma synchronous=full")
            with db:
                yield db
        finally:
            db.close()
