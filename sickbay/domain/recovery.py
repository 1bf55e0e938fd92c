"""What a comparison of store, scheduler and Temporal calls for, node by node.

After a restore one of the three is older than the others. The scheduler is the truth about gates,
Temporal about what runs and how it ended, the store about why. Unknown calls for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from sickbay.domain.gate import (
    Hold,
    HoldKind,
    borrow_mark,
    is_borrow,
    is_ours,
    mark_of,
    withheld_mark,
)
from sickbay.domain.health import HARD_FAIL, SOFT_REASON
from sickbay.domain.repair import Ending, Stage

OWNER = "sickbay"
# A reason the scorer gave is telemetry's word; any other came from a person.
SCORED = (HARD_FAIL, SOFT_REASON)
_UNKNOWN_REASON = "found in the scheduler; its reason is not on record"
ABORTER = "whoever aborted its repair"


class RunStatus(StrEnum):
    """Whether a repair's workflow runs."""

    RUNNING = "running"
    ENDED = "ended"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Run:
    """The newest run of a node's repair. Of a run that ended: which repair, and how."""

    status: RunStatus
    repair_id: str = ""
    ending: str | None = None


@dataclass(frozen=True)
class NodeSeen:
    """One node as store, scheduler and Temporal show it.

    `marks` is None when the scheduler gives no whole answer. `drained` is what it says about jobs.
    `withheld` tells whether the pool's budget knows that it keeps new work off this node, None
    when the budget does not answer; `well` whether the newest health calls for no withholding.
    `open_repairs` are those the store believes to run, each with the stage it is at.
    """

    node: str
    holds: tuple[Hold, ...]
    marks: tuple[tuple[str, str], ...] | None
    run: Run
    drained: bool = False
    withheld: bool | None = None
    well: bool = False
    open_repairs: tuple[tuple[str, str], ...] = ()


class RemedyKind(StrEnum):
    """What is done about one difference."""

    BOOK_HOLD = "book_hold"
    KEEP_HOLD = "keep_hold"
    END_HOLD = "end_hold"
    START = "start"
    REHOLD = "rehold"
    ADOPT_WITHHELD = "adopt_withheld"
    END_WITHHELD = "end_withheld"
    END_REPAIR = "end_repair"
    REPORT_AGAIN = "report_again"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Remedy:
    """One thing to do about a node, with the hold it is about and a sentence for people."""

    kind: RemedyKind
    node: str
    why: str
    hold: Hold | None = None
    start_at: Stage | None = None
    by: str = OWNER
    repair_id: str = ""


def remedies(seen: NodeSeen, *, now: datetime) -> tuple[Remedy, ...]:
    """What the differences of one node call for, in the order in which it is done."""
    if not seen.holds and not seen.open_repairs and not _our_marks(seen):
        if seen.marks is not None:
            return ()
        return (Remedy(RemedyKind.UNCLEAR, seen.node, "the scheduler does not show its marks"),)
    if seen.marks is None or seen.run.status is RunStatus.UNKNOWN:
        who = "the scheduler" if seen.marks is None else "Temporal"
        why = f"{who} gives no whole answer: nothing is done"
        return (Remedy(RemedyKind.UNCLEAR, seen.node, why),)
    missing = [_hold_of(seen, mark, reason, now=now) for mark, reason in _unbooked(seen)]
    booked = tuple(
        Remedy(
            RemedyKind.BOOK_HOLD,
            seen.node,
            "our mark stands in the scheduler and its hold is not on record",
            hold=hold,
        )
        for hold in missing
    )
    repairs = _of_repairs(seen, missing)
    return (*booked, *repairs, *_of_withheld(seen), *_of_rows(seen, repairs))


def _of_repairs(seen: NodeSeen, missing: Sequence[Hold]) -> tuple[Remedy, ...]:
    """Each quarantine of ours has a running repair, or ends, or gets one again."""
    holds = [
        h for h in (*seen.holds, *missing) if h.kind is HoldKind.QUARANTINE and h.owner == OWNER
    ]
    if seen.run.status is RunStatus.RUNNING or not holds:
        return ()
    over = [h for h in holds if _ended(seen, h) and h.mark not in _marks(seen)]
    kept = [h for h in holds if _ended(seen, h) == Ending.ABORTED and h not in over]
    aborted = tuple(
        Remedy(
            RemedyKind.KEEP_HOLD,
            seen.node,
            "its repair was aborted: the gate stays closed until a person releases it",
            hold=_in_a_persons_name(hold),
        )
        for hold in kept
    )
    ended = tuple(
        Remedy(
            RemedyKind.END_HOLD,
            seen.node,
            f"its repair has ended ({seen.run.ending}) and the scheduler shows no mark of it",
            hold=hold,
        )
        for hold in over
    )
    left = [h for h in holds if h not in over and h not in kept]
    return (*ended, *aborted, *((_start(seen, left),) if left else ()))


def _of_rows(seen: NodeSeen, repairs: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """A repair on record that does not run, and that goes on under no hold, was lost."""
    if seen.run.status is RunStatus.RUNNING:
        return ()
    go_on = {r.hold.repair_id for r in repairs if r.hold and r.start_at}
    return tuple(
        _of_row(seen, repair_id, stage)
        for repair_id, stage in seen.open_repairs
        if repair_id not in go_on
    )


def _of_row(seen: NodeSeen, repair_id: str, stage: str) -> Remedy:
    """One that waited for its permit is asked for again; later ones end with their hold."""
    known = seen.run.repair_id == repair_id and seen.run.ending is not None
    if stage == Stage.PERMIT and not known:
        why = "it waited for its permit when it was lost"
        return Remedy(RemedyKind.REPORT_AGAIN, seen.node, why, repair_id=repair_id)
    why = "on record it runs, and it does not; it keeps no gate closed"
    return Remedy(RemedyKind.END_REPAIR, seen.node, why, repair_id=repair_id)


def _start(seen: NodeSeen, holds: Sequence[Hold]) -> Remedy:
    """A repair goes on under the newest hold; closing its gate again ends the older ones."""
    newest = max(holds, key=lambda h: (h.mark in _marks(seen), h.placed_at))
    if newest.mark not in _marks(seen):
        why = "the hold stands on record, but the scheduler shows no mark of it and no repair runs"
        return Remedy(RemedyKind.REHOLD, seen.node, why, hold=newest, start_at=Stage.PERMIT)
    emptied = Stage.DIAGNOSE if seen.drained else Stage.DRAIN
    stage = Stage.PERMIT if len(holds) > 1 else emptied
    why = "our hold stands and no repair runs"
    return Remedy(RemedyKind.START, seen.node, why, hold=newest, start_at=stage)


def _ended(seen: NodeSeen, hold: Hold) -> str | None:
    """How Temporal remembers that this hold's own repair ended, None when it does not."""
    return seen.run.ending if seen.run.repair_id == hold.repair_id else None


def _marks(seen: NodeSeen) -> frozenset[str]:
    return frozenset(mark for mark, _ in seen.marks or ())


def _of_withheld(seen: NodeSeen) -> tuple[Remedy, ...]:
    """A withheld mark belongs to the budget: one that lost it learns of it again."""
    mark = withheld_mark(seen.node)
    if mark not in _marks(seen) or seen.withheld is None:
        return ()
    if not seen.withheld:
        why = "withheld in the scheduler, and the pool's budget does not know it"
        return (Remedy(RemedyKind.ADOPT_WITHHELD, seen.node, why),)
    if seen.well:
        why = "withheld, and its newest health gives no reason to"
        return (Remedy(RemedyKind.END_WITHHELD, seen.node, why),)
    return ()


def _our_marks(seen: NodeSeen) -> list[tuple[str, str]]:
    return [(mark, reason) for mark, reason in seen.marks or () if is_ours(mark)]


def _unbooked(seen: NodeSeen) -> list[tuple[str, str]]:
    known = {h.mark for h in seen.holds}
    return [(mark, reason) for mark, reason in _our_marks(seen) if mark not in known]


def _hold_of(seen: NodeSeen, mark: str, reason: str, *, now: datetime) -> Hold:
    """The hold behind a mark, as far as it can be told without the store."""
    repair_id = mark.removeprefix(mark_of(""))
    hold = Hold(
        id=mark,
        node=seen.node,
        kind=HoldKind.QUARANTINE,
        owner=OWNER,
        mark=mark,
        reason=reason or _UNKNOWN_REASON,
        placed_at=now,
        release_condition="the owed passes of the proof",
        next_step="a repair goes on at diagnosis",
        repair_id=repair_id,
    )
    if mark == withheld_mark(seen.node):
        return replace(
            hold,
            kind=HoldKind.WITHHELD,
            release_condition="its permit, or the reason ends by itself",
            next_step="the budget of the pool decides",
            repair_id=None,
        )
    if is_borrow(mark):
        # Expired from the start: the sweep of borrowed neighbours gives it back.
        return replace(
            hold,
            kind=HoldKind.BORROWED,
            release_condition="the run it was borrowed for is not on record: at once",
            next_step="give it back to the scheduler",
            deadline=now,
            repair_id=mark.removeprefix(borrow_mark("")),
        )
    return _in_a_persons_name(hold) if _ended(seen, hold) == Ending.ABORTED else hold


def _in_a_persons_name(hold: Hold) -> Hold:
    return replace(
        hold,
        owner=ABORTER,
        release_condition="released by a person",
        next_step=f"a person decides: `sickbay release {hold.node}`",
        deadline=None,
    )
