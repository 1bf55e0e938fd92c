"""A backup of an embedded installation while it runs, whole or not at all.

SQLite's own online copy sees one moment of each database. The store is copied before Temporal's
database, so that what a restore finds running is never older than what is on record; the rest is
what `sickbay rebuild` mends.
"""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import make_url

from sickbay.errors import Refused, UsageError

TEMPORAL_DATABASE = "temporal.db"
STORE_DATABASE = "sickbay.db"
MANIFEST = "backup.json"
_PRIVATE = 0o700


@dataclass(frozen=True)
class Backup:
    """What a backup holds: databases by name with the SHA-256 of their copy."""

    at: datetime
    databases: dict[str, str]
    evidence: int


def back_up(
    url: str, directory: Path, *, state_dir: Path, evidence_dir: Path, at: datetime
) -> Backup:
    """Copy everything into `directory`, which appears only when the copy is whole.

    Raises:
        UsageError: the directory is there already, or cannot be written.
        Refused: the store is no SQLite file, or a copy is damaged.
    """
    database = make_url(url)
    if database.get_backend_name() != "sqlite" or not database.database:
        raise Refused(
            "the store is no SQLite file: its own tool makes the backup",
            field="store.url",
            remedy="PostgreSQL: pg_dump --format=custom; evidence and Temporal's database apart"
            " (docs/how-to/backup-and-restore.md)",
        )
    if directory.exists():
        raise UsageError(
            f"{directory} is there already", field="directory", remedy="name a new directory"
        )
    part = directory.with_name(f".{directory.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(mode=_PRIVATE, parents=True)
        made = _copy(
            Path(database.database), part, state_dir=state_dir, evidence_dir=evidence_dir, at=at
        )
        part.rename(directory)
    except OSError as error:
        raise UsageError(
            f"{directory}: cannot be written ({error.strerror or error})",
            field="directory",
            remedy="name a directory on a disk with room that this user may write",
        ) from error
    except sqlite3.Error as error:
        raise Refused(f"the copy is not whole: {error}", remedy="nothing was kept of it") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def _copy(store: Path, part: Path, *, state_dir: Path, evidence_dir: Path, at: datetime) -> Backup:
    sources = {STORE_DATABASE: store, TEMPORAL_DATABASE: state_dir / TEMPORAL_DATABASE}
    databases = {
        name: _online_copy(source, part / name)
        for name, source in sources.items()
        if source.exists()
    }
    # After the store: a row may lack its file for a moment, but no file of a row may be missed.
    evidence = 0
    if evidence_dir.exists():
        shutil.copytree(evidence_dir, part / "evidence", ignore=shutil.ignore_patterns("tmp*"))
        evidence = sum(1 for path in (part / "evidence").rglob("*") if path.is_file())
    made = Backup(at=at, databases=databases, evidence=evidence)
    text = json.dumps({**asdict(made), "at": at.isoformat()}, indent=2)
    (part / MANIFEST).write_text(text, encoding="utf-8")
    return made


def _online_copy(source: Path, target: Path) -> str:
    """Copy one SQLite database as of one moment; its copy's digest. Raises `sqlite3.Error`."""
    read_only = f"{source.resolve().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(read_only, uri=True, timeout=30)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)
        verdict = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"{source.name}: {verdict}")
        copy.execute("PRAGMA journal_mode=DELETE")
    target.chmod(0o600)
    return hashlib.sha256(target.read_bytes()).hexdigest()
