"""How the fleet, a node and the tickets look on a terminal."""

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sickbay.domain.gate import Hold
from sickbay.domain.health import Health, Standing
from sickbay.store.queries import FleetRow, NodeView, RepairRow

_COLOUR = {
    Standing.HEALTHY: "green",
    Standing.DEGRADED: "yellow",
    Standing.QUARANTINED: "red",
    Standing.UNKNOWN: "magenta",
}


def age(moment: datetime | None, *, scale: float = 1.0) -> str:
    """How long ago, in fleet time, for people."""
    if moment is None:
        return "-"
    seconds = (datetime.now(UTC) - moment).total_seconds() * scale
    return span(seconds)


def until(moment: datetime | None, *, scale: float = 1.0) -> str:
    """How long from now, in fleet time, for people."""
    if moment is None:
        return "-"
    seconds = (moment - datetime.now(UTC)).total_seconds() * scale
    return f"in {span(seconds)}" if seconds >= 0 else f"overdue by {span(-seconds)}"


def span(seconds: float) -> str:
    """A duration with its two largest units."""
    whole = int(max(0.0, seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {left:02d}s" if minutes else f"{left}s"


def health_text(health: Health | None) -> str:
    """A health value with its reason."""
    if health is None or health.value is None:
        return f"unknown ({health.reason if health else 'never scored'})"
    return f"{health.value:.2f} ({health.reason})"


def fleet_table(rows: list[FleetRow], *, title: str, scale: float) -> Table:
    """Node, gate, health, standing, stage, since, next step."""
    table = Table(title=title, expand=True, show_edge=False)
    for name in ("node", "pool", "gate", "health", "standing", "stage", "since", "next step"):
        table.add_column(name, overflow="fold")
    for row in rows:
        gate = Text("open", "green") if row.gate_open else Text("closed", "red")
        standing = Text(str(row.standing), _COLOUR.get(row.standing, "white"))
        table.add_row(
            row.node,
            row.pool,
            gate,
            health_text(row.health),
            standing,
            row.stage or "-",
            age(row.since, scale=scale),
            row.next_step or "-",
        )
    return table


def node_screen(view: NodeView, *, scale: float) -> RenderableType:
    """Everything about one node on one screen."""
    parts: list[RenderableType] = [_head(view, scale=scale)]
    parts.append(_holds(view.holds, view.reopens, scale=scale))
    if view.repair is not None:
        parts.append(_repair(view.repair, scale=scale))
    parts.append(_past(view.past, scale=scale))
    return Group(*parts)


def _head(view: NodeView, *, scale: float) -> Panel:
    node = view.node
    gate = "open: it may run jobs" if view.gate_open else "closed: it gets no new job"
    confidence = view.health.confidence if view.health else 0.0
    lines = [
        f"gate      {gate}",
        f"health    {health_text(view.health)}, confidence {confidence:.2f}",
        f"standing  {view.standing} for {age(view.standing_since, scale=scale)}",
        f"where     pool {node.pool}, group {node.group}, rack {node.rack}, {node.node_class}",
    ]
    if view.health and view.health.detail:
        lines.append(f"detail    {view.health.detail}")
    return Panel("\n".join(lines), title=node.id, title_align="left")


def _holds(holds: tuple[Hold, ...], reopens: str, *, scale: float) -> Panel:
    if not holds:
        return Panel(reopens or "no hold stands", title="holds", title_align="left")
    lines = []
    for hold in holds:
        lines.append(
            f"{hold.kind} by {hold.owner} for {age(hold.placed_at, scale=scale)}: {hold.reason}"
        )
        due = until(hold.deadline, scale=scale)
        lines.append(f"  ends with: {hold.release_condition}; next: {hold.next_step}, {due}")
    return Panel("\n".join(lines), title="holds", title_align="left")


def _repair(row: RepairRow, *, scale: float) -> Panel:
    lines = [
        f"stage     {row.stage} for {age(row.stage_since, scale=scale)}"
        + (f", paused by {row.paused_by}" if row.paused_by else ""),
        f"because   {row.reason} ({row.severity}), part {row.part or '-'}",
        f"next      {row.next_step}, {until(row.deadline, scale=scale)}",
    ]
    lines += [_step(s) for s in row.steps]
    return Panel("\n".join(lines), title=f"repair {row.repair_id}", title_align="left")


def _step(step: object) -> str:
    stage, outcome, detail = (getattr(step, name) for name in ("stage", "outcome", "detail"))
    return f"  {stage:<11} {outcome:<13} {detail}"


def _past(rows: tuple[RepairRow, ...], *, scale: float) -> Panel:
    if not rows:
        return Panel("no repair yet", title="last repairs", title_align="left")
    lines = []
    for row in rows:
        cured = f", cured by {row.cured_by}" if row.cured_by else ""
        took = span((row.ended_at - row.started_at).total_seconds() * scale) if row.ended_at else ""
        lines.append(f"{row.repair_id}: {row.reason}: {row.ending}{cured}, took {took}")
    return Panel("\n".join(lines), title="last repairs", title_align="left")
