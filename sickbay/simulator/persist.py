"""Saves the fleet so that a killed process goes on where it was.

Each commit is one transaction: changed nodes, defects, kernel records, counters and the log rows
of the same change. The log file is written after it, and rows a kill kept from it are added at the
next start: what happened is in the file exactly once.
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sickbay.errors import UsageError
from sickbay.simulator.kernel import KEPT, Journal, Record

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS node (name TEXT PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS defect (id TEXT PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, line TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS record (
    node TEXT NOT NULL, number INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY (node, number)
);
"""


@dataclass
class Change:
    """What one commit writes."""

    meta: Mapping[str, Any]
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defects: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    records: Sequence[tuple[str, Record]] = ()
    lines: Sequence[tuple[int, str]] = ()


class StateFiles:
    """`state.sqlite` and `log.jsonl` of one simulated fleet, held by one process.

    Raises:
        UsageError: another process holds the directory.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = (directory / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"{directory}: a simulated fleet already runs there",
                field="dir",
                remedy="end that process, or name another directory",
            ) from error
        self._db = sqlite3.connect(directory / "state.sqlite", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        # A killed process loses nothing at this setting; only a power cut could.
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._log_path = directory / "log.jsonl"
        self.lines = self._mend_log()
        self._log = self._log_path.open("ab", buffering=0)
        self._finish_log()

    def meta(self) -> dict[str, Any]:
        """The saved counters; empty before the first commit."""
        return {key: json.loads(value) for key, value in self._db.execute("SELECT * FROM meta")}

    def nodes(self) -> list[dict[str, Any]]:
        """The saved nodes in their order."""
        return [json.loads(row[0]) for row in self._db.execute("SELECT data FROM node ORDER BY 1")]

    def defects(self) -> list[dict[str, Any]]:
        """The saved defects in their order."""
        rows = self._db.execute("SELECT data FROM defect ORDER BY id")
        return [json.loads(row[0]) for row in rows]

    def journals(self) -> dict[str, Journal]:
        """The saved kernel records per node; those beyond what a node keeps are dropped."""
        self._db.execute(
            "DELETE FROM record WHERE number <="
            " (SELECT MAX(r.number) FROM record r WHERE r.node = record.node) - ?",
            (KEPT,),
        )
        found: dict[str, Journal] = {}
        for node, data in self._db.execute("SELECT node, data FROM record ORDER BY node, number"):
            journal = found.setdefault(node, Journal())
            record = Record(**json.loads(data))
            journal.records.append(record)
            journal.next_number = record.number + 1
        return found

    def commit(self, change: Change) -> None:
        """Write one change: all of it or nothing, the log's lines after it."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            # The lines of the commit before are in the file by now.
            db.execute("DELETE FROM log")
            self._write(change)
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        self._append(line for _, line in change.lines)

    def close(self) -> None:
        """Close the files."""
        self._db.close()
        self._log.close()
        self._lock.close()

    def _write(self, change: Change) -> None:
        db = self._db
        db.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(key, json.dumps(value)) for key, value in change.meta.items()],
        )
        db.executemany(
            "INSERT OR REPLACE INTO node VALUES (?, ?)",
            [(name, json.dumps(data)) for name, data in change.nodes.items()],
        )
        for defect_id, data in change.defects.items():
            if data is None:
                db.execute("DELETE FROM defect WHERE id = ?", (defect_id,))
            else:
                db.execute(
                    "INSERT OR REPLACE INTO defect VALUES (?, ?)", (defect_id, json.dumps(data))
                )
        db.executemany(
            "INSERT OR REPLACE INTO record VALUES (?, ?, ?)",
            [(node, r.number, json.dumps(asdict(r))) for node, r in change.records],
        )
        db.executemany("INSERT INTO log VALUES (?, ?)", change.lines)

    def _append(self, lines: Iterable[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        if text:
            self._log.write(text.encode())

    def _mend_log(self) -> list[str]:
        """The whole lines of the log; a line cut off by a kill is removed from the file."""
        if not self._log_path.exists():
            return []
        data = self._log_path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._log_path, whole)
        return data[:whole].decode().splitlines()

    def _finish_log(self) -> None:
        last = json.loads(self.lines[-1])["seq"] if self.lines else 0
        rows = self._db.execute("SELECT line FROM log WHERE seq > ? ORDER BY seq", (last,))
        missing = [row[0] for row in rows]
        self._append(missing)
        self.lines.extend(missing)
