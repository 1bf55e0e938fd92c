"""Firmware on its way through the fleet: what was flashed where, and letting it go on."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from sickbay.cli.output import Json, emit
from sickbay.cli.session import By, Config, Reason, Session, State, run
from sickbay.domain.firmware import Rollout, RolloutKey
from sickbay.errors import UsageError
from sickbay.store.out_of_band import StoreRollouts

WORDS = 3


def firmware(
    what: Annotated[str, typer.Argument(help="`list`, or `unfreeze`.")] = "list",
    version: Annotated[
        str | None, typer.Argument(help="CLASS/COMPONENT/VERSION, as `list` shows it.")
    ] = None,
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Show the firmware versions on their way, or let a frozen one go on with a new canary."""
    if what not in {"list", "unfreeze"}:
        raise UsageError(f"no {what!r} here", field="what", remedy="list or unfreeze")
    if what == "list" and version is not None:
        raise UsageError("`list` lists them all", field="version", remedy="leave it away")
    key = _key(version) if what == "unfreeze" else None

    async def work(session: Session) -> tuple[Rollout, ...]:
        rollouts = StoreRollouts(session.store)
        if key is None:
            return await rollouts.all()
        now = datetime.now(UTC)
        return (await rollouts.unfreeze(key, by=by, reason=reason, at=now),)

    found = run(work, config=config, state=state)
    emit(found, _table(found), as_json=as_json)


def _key(text: str | None) -> RolloutKey:
    words = (text or "").split("/")
    if len(words) != WORDS or not all(words):
        raise UsageError(
            "name the version to unfreeze",
            field="version",
            remedy="CLASS/COMPONENT/VERSION, as `sickbay firmware` shows it",
        )
    return RolloutKey(*words)


def _table(rollouts: tuple[Rollout, ...]) -> Table | str:
    if not rollouts:
        return "no firmware was flashed"
    table = Table("version", "stage", "canary", "in flight", "why")
    for rollout in rollouts:
        key = rollout.key
        table.add_row(
            f"{key.node_class}/{key.component}/{key.version}",
            str(rollout.stage),
            rollout.canary or "-",
            ", ".join(rollout.in_flight) or "-",
            rollout.why or "-",
        )
    return table
