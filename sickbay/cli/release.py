"""Releasing a node whose repair has ended with our hold still standing (after an abort)."""

from datetime import UTC, datetime

import httpx

from sickbay.adapters.simulated_scheduler import SimulatedScheduler
from sickbay.cli.session import Session, simulator_url
from sickbay.contracts.budget import PermitReleased
from sickbay.contracts.steps import Outcome
from sickbay.domain.gate import HoldKind
from sickbay.domain.node import Node
from sickbay.errors import Refused, Unreachable


async def release_without_repair(session: Session, node: Node, *, by: str, refused: Refused) -> str:
    """Take our holds off a node in a person's name, and give their permits back.

    Raises:
        Refused: no hold of ours stands (the repair's own refusal is passed on).
        Unreachable: the scheduler did not answer; nothing was recorded as lifted.
    """
    ours = [h for h in await session.records.holds(node.id) if h.kind is HoldKind.QUARANTINE]
    if not ours:
        raise refused
    async with httpx.AsyncClient(timeout=5.0) as http:
        scheduler = SimulatedScheduler(simulator_url(session.settings), client=http)
        for hold in ours:
            effect = await scheduler.open_gate(node.id, mark=hold.mark)
            if effect.outcome is not Outcome.SUCCEEDED:
                raise Unreachable(f"the scheduler did not take our mark away: {effect.detail}")
            now = datetime.now(UTC)
            await session.records.lift_hold(hold.id, by=by, at=now)
            if not await scheduler.marks(node.id):
                await session.records.gate_moved(node.id, open_=True, at=now)
            if hold.repair_id:
                permits = await session.permits()
                await permits.release(node.pool, PermitReleased(repair_id=hold.repair_id))
    return f"released by {by}, unproven"
