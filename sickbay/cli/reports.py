"""`sickbay report`: the summary, and what would have been done."""

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sickbay.cli.output import Json, emit
from sickbay.cli.screens import age, span
from sickbay.cli.session import Config, Session, State, run
from sickbay.domain.usage import Band
from sickbay.store.queries import WouldHaveRow, would_have_rows
from sickbay.store.reports import Summary, summary


def report(
    would_have: Annotated[
        bool, typer.Option("--would-have", help="List the acts that a switch withheld.")
    ] = False,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """What happened: repairs by what cured, time per stage, proofs, pages, usable compute."""
    if would_have:
        _report_would_have(as_json=as_json, config=config, state=state)
        return

    async def work(session: Session) -> tuple[Summary, float]:
        return await summary(session.store), session.settings.time_scale

    found, scale = run(work, config=config, state=state)
    emit(found, summary_screen(found, scale=scale), as_json=as_json)


def _report_would_have(*, as_json: bool, config: Config, state: State) -> None:
    async def work(session: Session) -> tuple[list[WouldHaveRow], float]:
        return await would_have_rows(session.store), session.settings.time_scale

    rows, scale = run(work, config=config, state=state)
    table = Table("ago", "node", "pool", "would have", "detail", "withheld by")
    for row in rows:
        ago = age(row.at, scale=scale)
        table.add_row(ago, row.node, row.pool, row.action, row.detail, row.why)
    emit(rows, table, as_json=as_json)


def summary_screen(found: Summary, *, scale: float) -> RenderableType:
    """The summary for people; times are fleet time."""
    cures = Table("cured by", "repairs", title="Returned nodes", title_justify="left")
    for cure, count in sorted(found.by_cure.items(), key=lambda c: -c[1]):
        cures.add_row(cure, str(count))
    stages = Table("stage", "times", "mean", "longest", title="Time", title_justify="left")
    for stage, (count, mean, longest) in found.seconds_by_stage.items():
        stages.add_row(stage, str(count), span(mean * scale), span(longest * scale))
    untested = len(found.returned_untested)
    colour = "bold red" if untested else "bold green"
    verdict = Text(f"{untested} nodes returned untested", colour)
    return Group(*[Text(line) for line in _lines(found, scale=scale)], cures, stages, verdict)


def _lines(found: Summary, *, scale: float) -> list[str]:
    took = span((found.until - found.since).total_seconds() * scale)
    endings = ", ".join(f"{n} {name}" for name, n in sorted(found.by_ending.items())) or "none"
    proofs = ", ".join(f"{n} {name}" for name, n in sorted(found.proofs.items())) or "none"
    use = found.usage
    bands = ", ".join(
        f"{str(band).replace('_', ' ')} {use.share(band):.1%}" for band in Band if use.share(band)
    )
    return [
        f"{found.nodes} nodes over {took} of fleet time",
        f"repairs: {found.repairs}, {found.running} running; ended: {endings}",
        f"not confirmed: {found.not_confirmed} of {found.returned} returned",
        f"proofs: {proofs}",
        f"pages: {found.pages}, {found.urgent_pages} urgent",
        f"usable compute: {use.usable:.2%} ({use.usable_of_known:.2%} of the known)",
        f"GPU-time: {bands}",
    ]
