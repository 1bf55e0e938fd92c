"""Comparing store, scheduler and Temporal, and mending what a restore or a lost process left.

`domain.recovery` decides; this reads the three, and carries out. Carrying out twice is once: a
repair has one workflow id, a hold one id, and a page one key.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from sickbay.contracts.budget import BudgetView, WithholdAsk, WithholdEnded
from sickbay.contracts.repair import AdoptedHold, Fault
from sickbay.contracts.steps import DrainState, PresentHealth, RepairRecord
from sickbay.domain.gate import Hold, is_ours, withheld_mark
from sickbay.domain.health import HARD_FAIL, Standing
from sickbay.domain.node import Category, Node
from sickbay.domain.recovery import (
    SCORED,
    NodeSeen,
    Remedy,
    RemedyKind,
    Run,
    RunStatus,
    remedies,
)
from sickbay.domain.repair import Stage
from sickbay.errors import SickbayError
from sickbay.ports import Scheduler

AT_ONCE = 8
_Row = tuple[str, str]
_Withheld = dict[str, frozenset[str] | None]
WITHHELD_FOUND = "withheld before a restore"
_WELL = {Standing.HEALTHY, Standing.DEGRADED}


class RecoveryRecords(Protocol):
    """What a comparison reads and writes of the store."""

    async def nodes(self, *, pool: str | None = None) -> tuple[Node, ...]:
        """The nodes on record."""

    async def standing_holds(self) -> tuple[Hold, ...]:
        """Every hold that stands in the fleet, oldest first."""

    async def repair_on_record(self, repair_id: str) -> tuple[RepairRecord, int] | None:
        """A repair's row and its highest step, None when there is no row."""

    async def holds(self, node: str) -> tuple[Hold, ...]:
        """The holds that stand on a node."""

    async def open_tickets_of(self, repair_id: str) -> tuple[str, ...]:
        """Ids of the local tickets of a repair that are still open."""

    async def open_repairs(self, node: str | None = None) -> tuple[RepairRecord, ...]:
        """Repairs that have not ended on record, of one node or of the fleet."""

    async def lose_repair(self, repair_id: str, *, at: datetime) -> None:
        """Record that how a repair ended is not known; one that ended on record stays so."""

    async def place_hold(self, hold: Hold) -> None:
        """Record a hold; a standing one with this id stays as it is."""

    async def lift_hold(self, hold_id: str, *, by: str, at: datetime) -> None:
        """Record that a hold ended."""

    async def gate_moved(self, node: str, *, open_: bool, at: datetime) -> None:
        """Record a change of the scheduler's bit; the same state again is no row."""

    async def present_health(self, node: str) -> PresentHealth:
        """The newest health on record."""


class RecoveryRepairs(Protocol):
    """What a comparison asks of the nodes' repairs."""

    async def last_run(self, node: str) -> Run:
        """The newest run of a node's repair."""

    async def report(self, fault: Fault, *, pool: str) -> None:
        """Start the node's repair or merge the fault into the running one."""

    async def adopt(self, node: str, *, pool: str, hold: AdoptedHold) -> bool:
        """Let a repair go on under a standing hold; False when one runs already."""


class RecoveryBudgets(Protocol):
    """What a comparison asks of the pools' budgets."""

    async def status(self, pool: str) -> BudgetView:
        """The budget as it stands. Raises `SickbayError` when it does not answer."""

    async def ask_withhold(self, pool: str, ask: WithholdAsk) -> None:
        """Ask to keep new work off a node without a permit."""

    async def end_withhold(self, pool: str, message: WithholdEnded) -> None:
        """Say that the reason to withhold is gone."""


@dataclass(frozen=True)
class Difference:
    """One remedy, and what came of it: empty while only looked for."""

    remedy: Remedy
    pool: str
    done: str = ""


class Recovery:
    """Compares the whole fleet, and mends.

    Args:
        scheduler: the truth about marks.
        records: the store.
        repairs: the way to the nodes' repairs.
        budgets: the way to the pools' budgets.
        clock: the present moment, UTC-aware.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        records: RecoveryRecords,
        repairs: RecoveryRepairs,
        budgets: RecoveryBudgets,
        clock: Callable[[], datetime],
    ) -> None:
        self._scheduler = scheduler
        self._records = records
        self._repairs = repairs
        self._budgets = budgets
        self._clock = clock

    async def look(self) -> tuple[Difference, ...]:
        """Every difference there is now; changes nothing."""
        nodes = await self._records.nodes()
        by_node: dict[str, list[Hold]] = {}
        for hold in await self._records.standing_holds():
            by_node.setdefault(hold.node, []).append(hold)
        repairs: dict[str, list[tuple[str, str]]] = {}
        for row in await self._records.open_repairs():
            repairs.setdefault(row.node, []).append((row.repair_id, row.stage))
        turn = asyncio.Semaphore(AT_ONCE)
        withheld: _Withheld = {}

        async def of_node(node: Node) -> list[Difference]:
            async with turn:
                mine = repairs.get(node.id, ())
                return await self._differences(node, by_node.get(node.id, ()), mine, withheld)

        rows = await asyncio.gather(*(of_node(node) for node in nodes))
        return tuple(row for of_one in rows for row in of_one)

    async def mend(self, differences: Sequence[Difference]) -> tuple[Difference, ...]:
        """Look at each node once more and carry out what is still called for, one by one.

        A long look is old when it ends: a repair may have returned its node meanwhile, or a person
        released it. Trouble with one node is its own line.
        """
        nodes = {n.id: n for n in await self._records.nodes()}
        rows = []
        for name in dict.fromkeys(d.remedy.node for d in differences):
            node = nodes[name]
            holds = await self._records.holds(name)
            found = await self._records.open_repairs(name)
            repairs = [(row.repair_id, row.stage) for row in found]
            for row in await self._differences(node, holds, repairs, {}):
                try:
                    done = await self._carry_out(row.remedy, node)
                except SickbayError as error:
                    done = f"not done: {error.message}"
                rows.append(replace(row, done=done))
        return tuple(rows)

    # --- looking --------------------------------------------------------------------------------

    async def _differences(
        self, node: Node, holds: Sequence[Hold], repairs: Sequence[_Row], withheld: _Withheld
    ) -> list[Difference]:
        ours = tuple(h for h in holds if is_ours(h.mark))
        seen = await self._seen(node, ours, tuple(repairs), withheld)
        return [Difference(r, node.pool) for r in remedies(seen, now=self._clock())]

    async def _seen(
        self, node: Node, holds: tuple[Hold, ...], repairs: tuple[_Row, ...], withheld: _Withheld
    ) -> NodeSeen:
        marks = await self._marks(node.id)
        if not holds and not repairs and not _ours(marks):
            return NodeSeen(node.id, holds, marks, Run(RunStatus.NONE))
        # Marks after the run: of a repair that ends in between, the mark it took away is gone.
        run = await self._repairs.last_run(node.id)
        marks = await self._marks(node.id)
        drained = False
        if marks is not None and run.status is not RunStatus.RUNNING:
            drained = (await self._scheduler.drain_state(node.id)).state is DrainState.DRAINED
        known: bool | None = None
        well = False
        if withheld_mark(node.id) in _ours(marks):
            names = await self._withheld(node.pool, withheld)
            known = None if names is None else node.id in names
            health = await self._records.present_health(node.id)
            well = health.standing in _WELL and health.health.value is not None
        return NodeSeen(
            node.id,
            holds,
            marks,
            run,
            drained=drained,
            withheld=known,
            well=well,
            open_repairs=repairs,
        )

    async def _marks(self, node: str) -> tuple[tuple[str, str], ...] | None:
        try:
            return await self._scheduler.marks(node)
        except SickbayError:
            return None

    async def _withheld(self, pool: str, seen: _Withheld) -> frozenset[str] | None:
        """The nodes a budget withholds, asked once per comparison; None when it is silent."""
        if pool not in seen:
            try:
                seen[pool] = frozenset((await self._budgets.status(pool)).withheld)
            except SickbayError:
                seen[pool] = None
        return seen[pool]

    # --- mending --------------------------------------------------------------------------------

    async def _carry_out(self, remedy: Remedy, node: Node) -> str:
        match remedy.kind, remedy.hold:
            case RemedyKind.BOOK_HOLD, Hold() as hold:
                await self._records.place_hold(hold)
                await self._records.gate_moved(node.id, open_=False, at=hold.placed_at)
                return "its hold is on record"
            case RemedyKind.KEEP_HOLD, Hold() as hold:
                await self._records.lift_hold(hold.id, by=hold.owner, at=self._clock())
                await self._records.place_hold(hold)
                return "its hold stands in a person's name"
            case RemedyKind.END_HOLD, Hold() as hold:
                now = self._clock()
                await self._records.lift_hold(hold.id, by=remedy.by, at=now)
                if not await self._scheduler.marks(node.id):
                    await self._records.gate_moved(node.id, open_=True, at=now)
                return "its hold is ended on record"
            case ((RemedyKind.START | RemedyKind.REHOLD), Hold() as hold):
                began = await self._repairs.adopt(
                    node.id, pool=node.pool, hold=await self._adopted(hold, remedy.start_at)
                )
                return (
                    f"a repair goes on at {remedy.start_at}" if began else "a repair runs already"
                )
            case RemedyKind.REPORT_AGAIN, _:
                await self._report_again(remedy.repair_id, node)
                return "its finding is reported again"
            case RemedyKind.END_REPAIR, _:
                await self._records.lose_repair(remedy.repair_id, at=self._clock())
                return "its row says that it was lost"
            case RemedyKind.ADOPT_WITHHELD, _:
                factors = {"rack": node.rack, "node_class": node.node_class, "group": node.group}
                ask = WithholdAsk(node.id, node.group, WITHHELD_FOUND, False, factors)
                await self._budgets.ask_withhold(node.pool, ask)
                return "the budget knows of it again"
            case RemedyKind.END_WITHHELD, _:
                await self._budgets.end_withhold(node.pool, WithholdEnded(node.id, "known again"))
                return "the budget ends it, unless a repair waits for its permit"
        return "nothing: not clear"

    async def _report_again(self, repair_id: str, node: Node) -> None:
        """A new repair asks for the permit; it drops what a proof has answered meanwhile."""
        found = await self._records.repair_on_record(repair_id)
        if found is None:
            return
        row, _ = found
        part = next((p for p in node.parts if p.uuid == row.part), None)
        scored = row.reason.startswith(SCORED)
        fault = Fault(
            id=f"reported_again/{repair_id}",
            node=node.id,
            observed_at=row.started_at,
            reason=row.reason,
            severity=row.severity,
            category=category_of(row),
            source="telemetry" if scored else "person",
            hard=row.reason.startswith(HARD_FAIL),
            slot=part.slot if part else None,
            part_uuid=part.uuid if part else None,
            detail="its repair was lost while it waited for a permit",
        )
        await self._repairs.report(fault, pool=node.pool)
        await self._records.lose_repair(repair_id, at=self._clock())

    async def _adopted(self, hold: Hold, start_at: Stage | None) -> AdoptedHold:
        """What the new run must know: from the repair's row where there is one, else the hold."""
        stage = start_at or Stage.DIAGNOSE
        repair_id = hold.repair_id or hold.id
        found = await self._records.repair_on_record(repair_id)
        tickets = await self._records.open_tickets_of(repair_id)
        if found is None:
            return AdoptedHold(
                repair_id, hold.reason, hold.placed_at, start_at=stage, tickets=tickets
            )
        row, ordinal = found
        return AdoptedHold(
            repair_id,
            row.reason or hold.reason,
            hold.placed_at,
            start_at=stage,
            severity=row.severity,
            category=category_of(row),
            part=row.part,
            started_at=row.started_at,
            ordinal=ordinal,
            tickets=tickets,
        )


def _ours(marks: tuple[tuple[str, str], ...] | None) -> list[str]:
    return [mark for mark, _ in marks or () if is_ours(mark)]


def category_of(row: RepairRecord) -> Category | None:
    """The category a repair's row names, None when it names none."""
    return Category(row.category) if row.category in set(Category) else None
