"""Reading and writing the store on behalf of a repair."""

from datetime import datetime

from temporalio import activity

from activities.clock import Clock
from sickbay.contracts.repair import RepairPolicy
from sickbay.contracts.steps import NodeContext, PresentHealth, RepairRecord, StepRecord
from sickbay.domain.gate import Hold
from sickbay.domain.node import Part
from sickbay.domain.repair import Ending, Stage, StageOutcome
from sickbay.ports import Records
from sickbay.ports_out_of_band import Rollouts


class RecordActivities:
    """The loop's view of the store through the Records port."""

    def __init__(self, records: Records, *, clock: Clock, rollouts: Rollouts | None = None) -> None:
        self._records = records
        self._clock = clock
        self._rollouts = rollouts

    @activity.defn(name="load_node")
    async def load_node(self, node: str, policy: RepairPolicy) -> NodeContext:
        """What is on record about a node when its repair starts."""
        return await self._records.node_context(
            node,
            now=self._clock(),
            memory_s=policy.attempt_memory_s,
            probation_s=policy.probation_s,
        )

    @activity.defn(name="record_stage")
    async def record_stage(self, repair: RepairRecord, step: StepRecord | None) -> None:
        """Write the repair's row and, when a stage ended, the step."""
        if step is not None:
            await self._records.save_step(step)
            if step.stage == Stage.PROVE and step.outcome == StageOutcome.FAILED:
                await self._settle(step.node, proven=False, why="it failed its proof")
        await self._records.save_repair(repair)
        if repair.ending not in {None, str(Ending.RETURNED)}:
            await self._settle(repair.node, proven=None, why=f"{repair.ending}")

    @activity.defn(name="present_health")
    async def present_health(self, node: str) -> PresentHealth:
        """The node's newest health; unknown when the record is older than the store can trust."""
        return await self._records.present_health(node)

    @activity.defn(name="replace_part")
    async def replace_part(self, node: str, slot: str, part: Part) -> None:
        """Re-key a slot after a swap."""
        await self._records.replace_part(node, slot=slot, part=part, at=self._clock())

    @activity.defn(name="keep_hold")
    async def keep_hold(self, hold: Hold) -> None:
        """A repair's hold goes on in a person's name; the gate itself does not move."""
        await self._records.lift_hold(hold.id, by=hold.owner, at=self._clock())
        await self._records.place_hold(hold)

    @activity.defn(name="record_return")
    async def record_return(
        self, node: str, repair_id: str, at: datetime, proven_from: datetime
    ) -> None:
        """Book a proven return; findings older than its last proof no longer count."""
        await self._records.returned(node, repair_id=repair_id, at=at, proven_from=proven_from)
        await self._settle(node, proven=True, why="returned")

    async def _settle(self, node: str, *, proven: bool | None, why: str) -> None:
        """Tell the firmware this node carries for others how it went; most carry none."""
        if self._rollouts is not None:
            await self._rollouts.settle(node, proven=proven, why=why, at=self._clock())
