"""How a repair goes on under a standing hold whose own workflow was lost.

The hold, the repair's name and its permit stay as they were: no gate is opened, and no second
closure is charged. What was proven before is not remembered, so the whole proof is owed again.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.permit import PermitActivities
    from activities.records import RecordActivities
    from sickbay.contracts.budget import PermitAdopted, PermitAsk
    from sickbay.contracts.repair import AdoptedHold, Fault
    from sickbay.contracts.steps import NodeContext
    from sickbay.domain.gate import HoldKind, mark_of
    from sickbay.domain.health import HARD_FAIL
    from sickbay.domain.node import Treatment
    from sickbay.domain.recovery import OWNER, SCORED
    from sickbay.domain.repair import Ending, Progress, Stage
    from workflows.options import local
    from workflows.repair_context import RepairContext


async def adopt(c: RepairContext, adopted: AdoptedHold) -> None:
    """Load what the store knows, and go on where the hold still stands."""
    known = await workflow.execute_local_activity_method(
        RecordActivities.load_node, args=[c.inp.node, c.policy], **local("load_node")
    )
    if all(hold.id != c.mark for hold in known.holds):
        # Released, or returned, between the comparison and now: there is nothing to go on under.
        c.set(ending=Ending.STALE)
        return
    await go_on(c, known, adopted)


def left_standing(known: NodeContext, fault: Fault, *, besides: str) -> AdoptedHold | None:
    """The hold of ours that stands when another repair of this node begins: its own was lost.

    One node has one repair at a time, so the one that placed it runs no more. Its gate is closed
    under the same mark again, which changes nothing where it still is. A hold of the repair itself
    (`besides`) stands when its workflow was reset: it takes the same steps under the same ids, and
    what was done is not done again.
    """
    for hold in known.holds:
        ours = hold.kind is HoldKind.QUARANTINE and hold.owner == OWNER
        other = hold.repair_id not in {None, besides}
        if ours and other and hold.repair_id and hold.mark == mark_of(hold.repair_id):
            part = known.node.part_in(fault.slot) if fault.slot else None
            return AdoptedHold(
                hold.repair_id,
                hold.reason,
                hold.placed_at,
                start_at=Stage.PERMIT,
                severity=fault.severity,
                category=fault.category,
                part=part.uuid if part else "",
                ordinal=known.last_step,
            )
    return None


async def go_on(
    c: RepairContext,
    known: NodeContext,
    adopted: AdoptedHold,
    *,
    first: Treatment | None = None,
) -> None:
    """Take over the hold's name, and tell the budget that this node is out."""
    part = next((p for p in known.node.parts if p.uuid == adopted.part), None)
    slot = part.slot if part else None
    fault = _fault(c, adopted, slot=slot)
    progress = Progress(
        stage=adopted.start_at,
        severity=adopted.severity,
        part=part.uuid if part else known.node.id,
        slot=slot,
        categories=(adopted.category,) if adopted.category else (),
        first_treatment=first,
        attempts=known.attempts,
        evidence=(fault.source,),
    )
    c.set(
        repair_id=adopted.repair_id,
        node=known.node,
        last_return_at=known.last_return_at,
        progress=progress,
        reason=adopted.reason,
        faults=(*c.state.faults, fault),
        started_at=adopted.started_at or c.state.started_at,
        ordinal=adopted.ordinal,
        tickets=adopted.tickets,
        permit=True,
        gate_closed=True,
        run=workflow.info().first_execution_run_id.replace("-", "")[:8],
    )
    c.set(deadline=c.deadline_of(adopted.start_at))
    await workflow.execute_local_activity_method(
        PermitActivities.adopt_permit,
        args=[known.node.pool, PermitAdopted(_ask(c), closed_at=adopted.placed_at)],
        **local("adopt_permit"),
    )
    await c.record()


def _fault(c: RepairContext, adopted: AdoptedHold, *, slot: str | None) -> Fault:
    """The finding the hold stands for; of its evidence only the kind is remembered."""
    return Fault(
        id=f"adopted/{adopted.repair_id}/{workflow.info().first_execution_run_id}",
        node=c.inp.node,
        observed_at=workflow.now(),
        reason=adopted.reason,
        severity=adopted.severity,
        category=adopted.category,
        source="telemetry" if adopted.reason.startswith(SCORED) else "person",
        hard=False,
        slot=slot,
        detail="the hold stood and its repair was lost",
    )


def _ask(c: RepairContext) -> PermitAsk:
    s = c.state
    return PermitAsk(
        repair_id=s.repair_id,
        workflow_id=workflow.info().workflow_id,
        node=s.node.id,
        group=s.node.group,
        severity=s.progress.severity,
        hard=s.reason.startswith(HARD_FAIL),
        reason=s.reason,
        factors={"rack": s.node.rack, "group": s.node.group, "node_class": s.node.node_class},
    )
