"""Why a message to a repair is refused: one sentence that says what is wanted, or None.

Pure functions of the repair's state, used by the validators of `NodeRepair`.
"""

from sickbay.contracts.repair import (
    NeedsTime,
    OperatorNote,
    PartReplaced,
    RepairState,
    Skip,
    WorkDone,
)
from sickbay.domain.repair import Limits, Stage

SKIP_TARGETS = (
    Stage.DIAGNOSE,
    Stage.RESET,
    Stage.REBOOT,
    Stage.POWER_CYCLE,
    Stage.REFLASH,
    Stage.SWAP,
    Stage.PROVE,
    Stage.NEEDS_HUMAN,
)
LONGEST_NEEDS_TIME_H = 14 * 24.0

Pending = PartReplaced | WorkDone | OperatorNote | None


def part_replaced(state: RepairState, pending: Pending, report: PartReplaced) -> str | None:
    """Why a reported swap is refused: wrong stage, unknown slot, or no new serial."""
    wrong = hands_on(state, pending, report.slot)
    if wrong:
        return wrong
    asked = state.progress.slot
    if asked is not None and report.slot != asked:
        return (
            f"the ticket of {state.node.id} is about {asked}, not {report.slot}: "
            "report what was done elsewhere with `work-done --work other`"
        )
    part = state.node.part_in(report.slot)
    serial = report.serial.strip()
    if not serial:
        return f"give the serial of the new part in {report.slot}"
    if part is not None and serial == part.serial:
        return (
            f"serial {serial} is the part that was in {report.slot} before: "
            "report the new part's serial, or `work-done` when no part changed"
        )
    other = state.node.find_part(serial)
    if other is not None:
        return f"serial {serial} sits in {other.slot} of this node: check the slot"
    return None


def hands_on(state: RepairState, pending: Pending, slot: str | None) -> str | None:
    """Why a technician's report is refused: nothing waits for one, or no such slot."""
    stage = state.progress.stage
    if stage is not Stage.SWAP or state.ending is not None:
        return f"{state.node.id} waits for no technician: its repair is at {stage}"
    if pending is not None:
        return f"a report for {state.node.id} is being checked: wait for its answer"
    if slot is not None and state.node.part_in(slot) is None:
        slots = ", ".join(p.slot for p in state.node.parts)
        return f"{state.node.id} has no slot {slot!r}: its slots are {slots}"
    return None


def needs_time(state: RepairState, report: NeedsTime) -> str | None:
    """Why more time is refused."""
    if not 0 < report.hours <= LONGEST_NEEDS_TIME_H:
        return f"hours must be more than 0 and at most {LONGEST_NEEDS_TIME_H:.0f}"
    return hands_on(state, None, None)


def approve(state: RepairState, note: OperatorNote) -> str | None:
    """Why an approval is refused."""
    if not state.waiting_for.startswith("approval"):
        return f"nothing of {state.node.id} waits for an approval: it is at {state.progress.stage}"
    return named(state, note, reason_needed=False)


def pause(state: RepairState, note: OperatorNote) -> str | None:
    """Why a pause is refused."""
    if state.paused_by:
        return f"{state.node.id} is already paused by {state.paused_by}"
    return named(state, note, reason_needed=False)


def resume(state: RepairState, note: OperatorNote) -> str | None:
    """Why a resume is refused."""
    if not state.paused_by and state.progress.stage is not Stage.NEEDS_HUMAN:
        return f"{state.node.id} is neither paused nor waiting for a person"
    return named(state, note, reason_needed=False)


def skip(state: RepairState, order: Skip, limits: Limits) -> str | None:
    """Why a skip is refused: no such stage, no gate closed yet, or a rung that is not there."""
    targets = [str(s) for s in SKIP_TARGETS]
    if order.stage not in targets:
        return f"cannot skip to {order.stage!r}: choose one of {', '.join(targets)}"
    if not state.gate_closed:
        return f"{state.node.id} waits for its permit: its gate is not closed yet"
    missing = {Stage.RESET, Stage.REBOOT, Stage.POWER_CYCLE, Stage.REFLASH} - {
        Stage(t.value) for t in limits.available if t.value in set(Stage)
    }
    if Stage(order.stage) in missing:
        return f"{order.stage} is not available in this pool"
    return named(state, OperatorNote(order.by, order.reason))


def named(state: RepairState, note: OperatorNote, *, reason_needed: bool = True) -> str | None:
    """Why an order is refused: it has no name, no reason, or another order is being carried out."""
    if not note.by.strip():
        return "give your name (--by)"
    if reason_needed and not note.reason.strip():
        return "give a reason (--reason)"
    if state.command is not None:
        return f"{state.command.kind} by {state.command.by} is being carried out"
    if state.ending is not None:
        return f"the repair of {state.node.id} has ended: {state.ending}"
    return None
