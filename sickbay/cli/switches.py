"""Budgets, the stop switch, and breaking simulated nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated

import httpx
import typer
from rich.table import Table

from sickbay.cli.output import Json, emit
from sickbay.cli.session import By, Config, Reason, Session, State, run, simulator_url
from sickbay.contracts.budget import BudgetGrant, BudgetSwitch, BudgetView
from sickbay.contracts.repair import Work
from sickbay.domain.nodeset import fold
from sickbay.errors import UsageError
from sickbay.simulator.client import SimulatorClient

Fleet = Annotated[bool, typer.Option("--fleet", help="The whole fleet.")]
PoolOption = Annotated[str | None, typer.Option("--pool", help="One pool.")]


def budget(
    pool: Annotated[str, typer.Argument(help="The pool.")],
    grant: Annotated[int | None, typer.Option("--grant", help="Closures to lend.")] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="Stop all grants.")] = False,
    unfreeze: Annotated[bool, typer.Option("--unfreeze", help="Let grants go on.")] = False,
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Show a pool's budget, lend closures, freeze or unfreeze it."""
    if (grant is not None) + freeze + unfreeze > 1:
        raise UsageError(
            "choose one of --grant, --freeze, --unfreeze", field="budget", remedy="one at a time"
        )

    if grant is not None and grant < 1:
        raise UsageError("lend at least one closure", field="grant", remedy="e.g. --grant 2")

    async def work(session: Session) -> BudgetView:
        name = await session.pool(pool)
        permits = await session.permits()
        if grant is not None:
            return await permits.grant(name, BudgetGrant(grant, by, reason))
        if freeze:
            return await permits.freeze(name, BudgetSwitch(by, reason))
        if unfreeze:
            return await permits.unfreeze(name, BudgetSwitch(by, reason))
        return await permits.status(name)

    view = run(work, config=config, state=state)
    emit(view, _budget_table(view), as_json=as_json)


def _budget_table(view: BudgetView) -> Table:
    table = Table(title=f"budget of {view.pool}", show_header=False)
    rows = {
        "nodes on record": view.nodes_on_record,
        "closures spent in the window": f"{view.spent} of {view.allowed} per {view.window_s:g} s",
        "lent by people": view.extra,
        "out now": fold(view.out) or "-",
        "withheld now": fold(view.withheld) or "-",
        "cap on automatic closures": view.cap,
        "waiting": fold(view.queue) or "-",
        "frozen": f"by {view.frozen_by}" if view.frozen_by else "no",
        "storm until": view.storm_until or "-",
        "granted, refused": f"{view.granted}, {view.refused}",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def stop(
    by: By,
    reason: Reason,
    fleet: Fleet = False,
    pool: PoolOption = None,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Block every destructive step, eviction and new closure, repairs in flight included."""

    async def work(session: Session) -> dict[str, str]:
        scope = await _scope(session, fleet=fleet, pool=pool)
        await session.records.set_stop(scope, by=by, reason=reason, at=datetime.now(UTC))
        return {"stopped": scope or "fleet", "by": by}

    done = run(work, config=config, state=state)
    text = f"stopped: {done['stopped']}. Proven nodes still return. `sickbay go` ends it."
    emit(done, text, as_json=as_json)


def go(
    by: By,
    fleet: Fleet = False,
    pool: PoolOption = None,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """End a stop."""

    async def work(session: Session) -> dict[str, str]:
        scope = await _scope(session, fleet=fleet, pool=pool)
        await session.records.lift_stop(scope, by=by, at=datetime.now(UTC))
        return {"going": scope or "fleet", "by": by}

    done = run(work, config=config, state=state)
    emit(done, f"going on: {done['going']}", as_json=as_json)


async def _scope(session: Session, *, fleet: bool, pool: str | None) -> str | None:
    """The pool meant, None for the fleet. Raises `UsageError`."""
    if fleet == (pool is not None):
        raise UsageError(
            "name what to stop: --fleet or --pool, one of the two",
            field="pool",
            remedy="e.g. --pool NAME, or --fleet",
        )
    return await session.pool(pool) if pool is not None else None


def inject(
    node: Annotated[str, typer.Argument(help="The simulated node.")],
    fault: Annotated[str, typer.Argument(help="The fault kind; `list` shows them.")],
    slot: Annotated[str | None, typer.Option("--slot")] = None,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Break a simulated node."""

    async def work(session: Session) -> tuple[object, str]:
        async with _simulator(session) as fleet:
            kinds = await fleet.kinds()
            if fault == "list":
                rows = [{"kind": kind, "says": says} for kind, says in kinds.items()]
                return rows, "\n".join(f"{kind}: {says}" for kind, says in kinds.items())
            known = await session.node(node)
            _check(known.id, fault, list(kinds), slot, [p.slot for p in known.parts])
            answer = await fleet.inject(node, kind=fault, slot=slot)
        return answer, f"{node}: {fault}; watch it with `sickbay explain {node}`"

    data, text = run(work, config=config, state=state)
    emit(data, text, as_json=as_json)


def hands(
    node: Annotated[str, typer.Argument(help="The simulated node.")],
    slot: Annotated[str, typer.Option("--slot", help="The slot to work on.")],
    work: Annotated[
        Work | None, typer.Option("--work", help="Work that changes no part, instead of a swap.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Be the technician's hands at a simulated node: replace a part, or clean or reseat it."""

    async def do(session: Session) -> tuple[object, str]:
        known = await session.node(node)
        _check_slot(known.id, slot, [p.slot for p in known.parts])
        async with _simulator(session) as fleet:
            if work:
                await fleet.work(node, slot=slot, work=work)
                answer: object = {"node": node, "slot": slot, "work": str(work)}
                done, verb, report = str(work), "work-done", f"--work {work}"
            else:
                new = await fleet.replace(node, slot=slot)
                answer, verb = new, "part-replaced"
                done, report = f"new serial {new.serial}", f"--slot {slot} --serial {new.serial}"
        return answer, f"{node} {slot}: {done}; report it: sickbay {verb} {node} {report} --by YOU"

    data, text = run(do, config=config, state=state)
    emit(data, text, as_json=as_json)


@asynccontextmanager
async def _simulator(session: Session) -> AsyncIterator[SimulatorClient]:
    async with httpx.AsyncClient(timeout=5.0) as http:
        yield SimulatorClient(simulator_url(session.settings), client=http)


def _check_slot(node: str, slot: str, slots: list[str]) -> None:
    # NICs are not on record: the simulated fleet itself names those it has.
    if slot not in slots and not slot.startswith("nic"):
        raise UsageError(
            f"{node} has no slot {slot!r}", field="slot", remedy=f"its slots: {', '.join(slots)}"
        )


def _check(node: str, fault: str, kinds: list[str], slot: str | None, slots: list[str]) -> None:
    if fault not in kinds:
        raise UsageError(
            f"no fault {fault!r}", field="fault", remedy=f"the faults are: {', '.join(kinds)}"
        )
    if slot is not None:
        _check_slot(node, slot, slots)
