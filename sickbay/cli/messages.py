"""Commands that send a person's message to a node's repair."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from sickbay.cli.output import Json, emit
from sickbay.cli.release import release_without_repair
from sickbay.cli.session import (
    By,
    Config,
    DryRun,
    Nodes,
    Pool,
    Reason,
    Session,
    State,
    Yes,
    confirm,
    run,
)
from sickbay.contracts.repair import (
    Fault,
    NeedsTime,
    OperatorNote,
    PartReplaced,
    RepairView,
    Skip,
    Work,
    WorkDone,
)
from sickbay.domain.node import Category, Node, Severity, Treatment
from sickbay.domain.repair import Stage
from sickbay.errors import Refused, UsageError

Slot = Annotated[str, typer.Option("--slot", help="The slot, e.g. gpu3.")]
OneNode = Annotated[str, typer.Argument(help="The node.")]
SendEach = Callable[[Session, Node], Awaitable[str]]


def repair(
    by: By,
    nodes: Nodes = None,
    pool: Pool = None,
    reason: Reason = "requested",
    slot: Annotated[str | None, typer.Option("--slot", help="The suspected slot.")] = None,
    category: Annotated[Category | None, typer.Option("--category")] = None,
    severity: Annotated[Severity, typer.Option("--severity")] = Severity.MAJOR,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Start a repair of nodes (or add a finding to the running one)."""

    async def one(session: Session, node: Node) -> str:
        if slot is not None and node.part_in(slot) is None:
            slots = ", ".join(p.slot for p in node.parts)
            raise UsageError(
                f"{node.id} has no slot {slot!r}", field="slot", remedy=f"its slots are {slots}"
            )
        part = node.part_in(slot) if slot else None
        now = datetime.now(UTC)
        fault = Fault(
            id=f"person/{by}/{now.isoformat()}",
            node=node.id,
            observed_at=now,
            reason=reason,
            severity=severity,
            category=category,
            source="person",
            hard=False,
            slot=slot,
            part_uuid=part.uuid if part else None,
            treatment=Treatment.RESET if part else Treatment.REBOOT,
            detail=f"requested by {by}",
        )
        await (await session.repairs()).report(fault, pool=node.pool)
        return "repair asked for"

    _each(one, "repair", nodes, pool, dry_run, yes, as_json, config, state)


def part_replaced(
    node: OneNode,
    slot: Slot,
    serial: Annotated[str, typer.Option("--serial", help="Serial of the new part.")],
    by: By,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Report that the part in a slot was replaced."""
    message = PartReplaced(slot=slot, serial=serial, by=by)
    _send(node, "part_replaced", message, as_json, config, state)


def work_done(
    node: OneNode,
    work: Annotated[Work, typer.Option("--work", help="What was done; no serial changed.")],
    by: By,
    slot: Annotated[str | None, typer.Option("--slot")] = None,
    note: Annotated[str, typer.Option("--note")] = "",
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Report hands-on work that changed no serial."""
    message = WorkDone(work=work, by=by, slot=slot, note=note)
    _send(node, "work_done", message, as_json, config, state)


def cannot_fix(
    node: OneNode,
    by: By,
    reason: Reason,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Report that the part cannot be mended or replaced: a person decides what follows."""
    _send(node, "cannot_fix", OperatorNote(by, reason), as_json, config, state)


def needs_time(
    node: OneNode,
    hours: Annotated[float, typer.Option("--hours", help="Hours until the next reminder.")],
    by: By,
    reason: Reason = "",
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Ask for more time before the next reminder."""
    _send(node, "needs_time", NeedsTime(hours, by, reason), as_json, config, state)


def release(
    by: By,
    reason: Reason,
    nodes: Nodes = None,
    pool: Pool = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Take our hold off nodes, unproven, in your name."""

    async def one(session: Session, node: Node) -> str:
        try:
            repairs = await session.repairs()
            await repairs.send(node.id, "release", OperatorNote(by, reason))
        except Refused as refused:
            return await release_without_repair(session, node, by=by, refused=refused)
        return f"released by {by}, unproven"

    _each(one, "release", nodes, pool, dry_run, yes, as_json, config, state)


def abort(
    by: By,
    reason: Reason,
    nodes: Nodes = None,
    pool: Pool = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """End repairs; the gates stay closed in your name."""
    note = OperatorNote(by, reason)
    _order("abort", note, nodes, pool, dry_run, yes, as_json, config, state)


def _operator_command(update: str, *, says: str) -> Callable[..., None]:
    """A command that sends one operator's note to the repairs of the nodes it is given."""

    def command(
        by: By,
        reason: Reason = "",
        nodes: Nodes = None,
        pool: Pool = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        as_json: Json = False,
        config: Config = None,
        state: State = None,
    ) -> None:
        note = OperatorNote(by, reason)
        _order(update, note, nodes, pool, dry_run, yes, as_json, config, state)

    command.__doc__ = says
    return command


pause = _operator_command("pause", says="Begin no further stage of repairs until resumed.")
resume = _operator_command(
    "resume", says="Let paused repairs, or those that asked for a person, go on."
)
approve = _operator_command("approve", says="Approve the act that repairs wait with.")


def skip(
    stage: Annotated[str, typer.Option("--to", help="The stage to go to.")],
    by: By,
    reason: Reason,
    nodes: Nodes = None,
    pool: Pool = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Send repairs to another stage; the owed proof is never skipped."""
    if stage not in set(Stage):
        stages = ", ".join(Stage)
        raise UsageError(f"no stage {stage!r}", field="stage", remedy=f"the stages are: {stages}")
    order = Skip(stage=stage, by=by, reason=reason)
    _order("skip", order, nodes, pool, dry_run, yes, as_json, config, state)


def _order(
    update: str,
    message: Any,
    nodes: str | None,
    pool: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    config: Any,
    state: Any,
) -> None:
    async def one(session: Session, node: Node) -> str:
        view = await (await session.repairs()).send(node.id, update, message)
        return f"{update}: at {view.stage}"

    _each(one, update, nodes, pool, dry_run, yes, as_json, config, state)


def _each(
    one: SendEach,
    verb: str,
    nodes: str | None,
    pool: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    config: Any,
    state: Any,
) -> None:
    """Do one thing for each node; a refusal of one node is its own line and the exit code."""

    async def work(session: Session) -> None:
        chosen = await session.targets(nodes, pool=pool)
        if dry_run:
            rows = [{"node": n.id, "would": verb} for n in chosen]
            emit(rows, "\n".join(f"{n.id}: would {verb}" for n in chosen), as_json=as_json)
            return
        confirm(chosen, verb=verb, yes=yes, as_json=as_json)
        rows, refused = [], []
        for node in chosen:
            try:
                rows.append({"node": node.id, "done": await one(session, node)})
            except Refused as error:
                refused.append(error)
                rows.append({"node": node.id, "refused": error.message})
        if refused and len(chosen) == 1:
            raise refused[0]
        lines = [f"{r['node']}: {r.get('done') or 'refused: ' + r['refused']}" for r in rows]
        emit(rows, "\n".join(lines), as_json=as_json)
        if refused:
            raise Refused(f"{len(refused)} of {len(chosen)} nodes refused")

    run(work, config=config, state=state)


def _send(node: str, update: str, message: Any, as_json: bool, config: Any, state: Any) -> None:
    async def work(session: Session) -> RepairView:
        known = await session.node(node)
        slot = getattr(message, "slot", None)
        if slot is not None and known.part_in(slot) is None:
            slots = ", ".join(p.slot for p in known.parts)
            raise UsageError(
                f"{node} has no slot {slot!r}", field="slot", remedy=f"its slots are {slots}"
            )
        return await (await session.repairs()).send(node, update, message)

    view = run(work, config=config, state=state)
    told = "the machine is asked whether it is true; `sickbay tickets` shows its answer"
    sequel = told if update == "part_replaced" else f"next: {view.next_step}"
    emit(view, f"{node}: report taken; {sequel}", as_json=as_json)
