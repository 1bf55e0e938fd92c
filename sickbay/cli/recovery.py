"""Commands for the day after: give lost repairs back, remove what is old, make a backup."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from sickbay.adapters.simulated_scheduler import SimulatedScheduler
from sickbay.cli.output import Json, emit
from sickbay.cli.session import (
    Config,
    DryRun,
    Session,
    State,
    find_installation,
    run,
    simulator_url,
)
from sickbay.domain.recovery import RemedyKind
from sickbay.errors import Refused
from sickbay.recovery import Difference, Recovery
from sickbay.store.backup import Backup, back_up
from sickbay.store.evidence import EvidenceFiles
from sickbay.store.retention import StoreRetention


def rebuild(
    dry_run: DryRun = False,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """After a restore: give each hold of ours its repair back; opens no gate."""

    async def work(session: Session) -> tuple[Difference, ...]:
        async with _recovery(session) as recovery:
            found = await recovery.look()
            return found if dry_run else await recovery.mend(found)

    rows = run(work, config=config, state=state)
    shown = [_row(row) for row in rows]
    emit({"dry_run": dry_run, "differences": shown}, _table(rows, dry_run), as_json=as_json)
    unclear = sum(
        r.remedy.kind is RemedyKind.UNCLEAR or r.done.startswith("not done") for r in rows
    )
    if unclear:
        raise Refused(
            f"{unclear} of {len(rows)} differences are not mended",
            remedy="see the lines above; run it again when everything answers",
        )


@contextlib.asynccontextmanager
async def _recovery(session: Session) -> AsyncIterator[Recovery]:
    async with httpx.AsyncClient(timeout=10.0) as http:
        yield Recovery(
            SimulatedScheduler(simulator_url(session.settings), client=http),
            records=session.records,
            repairs=await session.repairs(),
            budgets=await session.permits(),
            clock=lambda: datetime.now(UTC),
        )


def _row(row: Difference) -> dict[str, Any]:
    remedy = row.remedy
    return {
        "node": remedy.node,
        "pool": row.pool,
        "remedy": str(remedy.kind),
        "hold": remedy.hold.id if remedy.hold else None,
        "start_at": str(remedy.start_at) if remedy.start_at else None,
        "why": remedy.why,
        "done": row.done or None,
    }


def _table(rows: Sequence[Difference], dry_run: bool) -> Table | str:
    if not rows:
        return "store, scheduler and Temporal agree: nothing to rebuild"
    table = Table("node", "remedy", "why", "would be done" if dry_run else "done")
    for row in rows:
        stage = f" at {row.remedy.start_at}" if row.remedy.start_at else ""
        kind = str(row.remedy.kind)
        table.add_row(row.remedy.node, kind, row.remedy.why, row.done or f"{kind}{stage}")
    return table


def prune(as_json: Json = False, config: Config = None, state: State = None) -> None:
    """Remove what is older than the settings' `[retention]` says."""

    async def work(session: Session) -> Any:
        settings = session.settings
        evidence = EvidenceFiles(settings.evidence_dir.resolve())
        pruner = StoreRetention(session.store, evidence=evidence)
        return await pruner.prune(settings.sweep().retention, now=datetime.now(UTC))

    gone = run(work, config=config, state=state)
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in vars(gone).items())
    emit(gone, f"removed: {counts}", as_json=as_json)


def backup(
    directory: Annotated[Path, typer.Argument(help="A new directory for the backup.")],
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Copy store, evidence and the embedded Temporal's database, while everything runs."""
    settings = find_installation(config, state)
    made: Backup = back_up(
        settings.store_url,
        directory,
        state_dir=settings.state_dir.resolve(),
        evidence_dir=settings.evidence_dir.resolve(),
        at=datetime.now(UTC),
    )
    text = f"{directory}: {', '.join(made.databases)}, {made.evidence} evidence files"
    emit(made, text, as_json=as_json)
