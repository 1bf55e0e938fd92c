"""The repair loop in one process: real Temporal, the real workflows, the outside in memory.

Durations of the policy are so short that tests seldom move time; waits of hours are moved with
`jump`. Nothing here sleeps for a while and hopes: `until` polls with a deadline.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from activities.checks import CheckActivities
from activities.drain import DrainActivities
from activities.gate import GateActivities
from activities.loads import Loads
from activities.neighbour import NeighbourActivities
from activities.out_of_band import Ledger, OutOfBandActivities, Outside, Rules
from activities.people import PeopleActivities
from activities.permit import PermitActivities
from activities.records import RecordActivities
from activities.treatment import TreatmentActivities
from sickbay.client import PoolSize, TemporalPermits, TemporalRepairs
from sickbay.contracts import names
from sickbay.contracts.budget import BudgetSwitch
from sickbay.contracts.operations import OutOfBandTimes
from sickbay.contracts.repair import Fault, OperatorNote, RepairPolicy, RepairView
from sickbay.contracts.steps import Permission
from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.firmware import FirmwareImage
from sickbay.domain.node import Category, Node, Severity, Treatment
from sickbay.domain.radius import Limits
from sickbay.domain.repair import LADDER
from sickbay.errors import Refused
from sickbay.testing import (
    MemoryBmc,
    MemoryCheckRunner,
    MemoryEvidence,
    MemoryFleet,
    MemoryJournal,
    MemoryLeases,
    MemoryNodeControl,
    MemoryOperations,
    MemoryPager,
    MemoryRecords,
    MemoryRollouts,
    MemorySafety,
    MemoryScheduler,
    MemoryTickets,
    some_nodes,
)
from tests.conftest import DYNAMIC_CONFIG
from workers.process import patient, sandbox
from workers.wiring import activities_of
from workflows.node_repair import NodeRepair
from workflows.pool_budget import PoolBudget

WITHIN_S = 60.0
POLL_S = 0.05
POOL = "train"
BUDGET = BudgetPolicy(allowance=3, cap=4)
POLICY = RepairPolicy(
    drain_deadline_major_s=0.3,
    drain_poll_s=0.05,
    suite_deadline_s=30.0,
    check_deadline_s=30.0,
    treatment_deadline_s=30.0,
    node_queue_timeout_s=5.0,
    # A cancelled activity learns it at a heartbeat, and those are sent every 0.8 timeouts.
    heartbeat_timeout_s=2.5,
    inconclusive_wait_s=0.02,
    permit_recheck_s=0.2,
    stopped_recheck_s=0.05,
)
# The whole ladder, and how long controllers in memory are given.
WHOLE_LADDER = replace(POLICY, available=LADDER, reflash_deadline_s=30.0)
TIMES = OutOfBandTimes(poll_s=0.01, answer_wait_s=0.1, off_s=0.02, back_s=3.0, flash_quiet_s=0.2)
OLD, NEW = "96.00.5E", "96.00.74"
IMAGE = FirmwareImage("GPU_*", NEW, "hgx-8", "fw.bin", "0" * 64)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Loop:
    """The running loop, and all that a test scripts or reads of it."""

    def __init__(
        self,
        env: WorkflowEnvironment,
        *,
        nodes: tuple[Node, ...],
        policy: RepairPolicy,
        budget: BudgetPolicy,
        mode: Permission,
    ) -> None:
        self.env = env
        self.client: Client = env.client
        self.fleet = MemoryFleet(nodes, now=utc_now)
        self.records = MemoryRecords(dict(self.fleet.records))
        self.safety = MemorySafety(mode=mode)
        self.tickets = MemoryTickets(self.fleet)
        self.pager = MemoryPager(self.fleet)
        self.evidence = MemoryEvidence()
        self.runner = MemoryCheckRunner(self.fleet)
        self.scheduler = MemoryScheduler(self.fleet)
        self.control = {n.id: MemoryNodeControl(self.fleet, node=n.id) for n in nodes}
        self.journals = {n.id: MemoryJournal() for n in nodes}
        size = PoolSize(nodes_on_record=len(nodes), policy=budget, reconcile_s=3600.0)
        self.permits = TemporalPermits(self.client, sizes={POOL: size})
        self.repairs = TemporalRepairs(self.client, policy_of=lambda _pool: policy)
        self.interceptors: list[Any] = []
        old = {"GPU_0": OLD, "GPU_1": OLD}
        self.bmc = MemoryBmc(self.fleet, versions={n.id: old for n in nodes})
        self.ledger = Ledger(MemoryOperations(), MemoryLeases(), MemoryRollouts())
        self.limits = Limits()
        self.images: tuple[FirmwareImage, ...] = (IMAGE,)
        self.neighbours = NeighbourActivities(
            self.scheduler,
            records=self.records,
            safety=self.safety,
            repairs=self.repairs,
            clock=utc_now,
        )
        self._ids = itertools.count(1)

    # --- workers --------------------------------------------------------------------------------

    def control_worker(self) -> Worker:
        owners = [
            GateActivities(
                self.scheduler,
                records=self.records,
                safety=self.safety,
                permits=self.permits,
                clock=utc_now,
            ),
            PeopleActivities(
                self.tickets, pager=self.pager, inventory=self.records, safety=self.safety
            ),
            PermitActivities(self.permits, records=self.records),
            RecordActivities(self.records, clock=utc_now, rollouts=self.ledger.rollouts),
            DrainActivities(self.scheduler, safety=self.safety, clock=utc_now),
            self.neighbours,
            self.out_of_band(),
        ]
        return patient(
            Worker(
                self.client,
                task_queue=names.CONTROL_QUEUE,
                workflows=[NodeRepair, PoolBudget],
                activities=[method for owner in owners for method in activities_of(owner)],
                workflow_runner=sandbox(),
                interceptors=self.interceptors,
            )
        )

    def out_of_band(self) -> OutOfBandActivities:
        return OutOfBandActivities(
            Outside(
                self.bmc, self.bmc, self.scheduler, self.bmc, self.safety, inventory=self.records
            ),
            ledger=self.ledger,
            rules=Rules(self.limits, self.images, TIMES),
            clock=utc_now,
        )

    def loads(self) -> Loads:
        return Loads(self.ledger.leases, limits=self.limits, inventory=self.records, clock=utc_now)

    def node_worker(self, node: str) -> Worker:
        checks = CheckActivities(
            self.runner,
            control=self.control[node],
            evidence=self.evidence,
            safety=self.safety,
            inventory=self.records,
            loads=self.loads(),
        )
        treatment = TreatmentActivities(
            self.control[node],
            journal=self.journals[node],
            scheduler=self.scheduler,
            safety=self.safety,
            clock=utc_now,
            loads=self.loads(),
        )
        return Worker(
            self.client,
            task_queue=names.node_queue(node),
            activities=[*activities_of(checks), *activities_of(treatment)],
            max_concurrent_activities=1,
            activity_task_poller_behavior=PollerBehaviorSimpleMaximum(1),
            interceptors=self.interceptors,
        )

    # --- what a test does -----------------------------------------------------------------------

    async def report(self, node: str = "n001", **changes: Any) -> WorkflowHandle[Any, Any]:
        """Report a finding: a hard fail of compute, unless told otherwise."""
        fault = Fault(
            id=f"f{next(self._ids)}",
            node=node,
            observed_at=utc_now(),
            reason="hard_fail:xid_79",
            severity=Severity.MAJOR,
            category=Category.COMPUTE,
            source="kernel_log",
            hard=True,
            slot="gpu0",
        )
        await self.repairs.report(replace(fault, **changes), pool=POOL)
        return self.repair(node)

    async def broken(
        self, node: str = "n001", *cured_by: Treatment, slot: str | None = "gpu0", **changes: Any
    ) -> WorkflowHandle[Any, Any]:
        """Break a part, and report it."""
        self.fleet.break_part(node, slot, cured_by=cured_by)
        return await self.report(node, slot=slot, **changes)

    def repair(self, node: str = "n001") -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(names.repair_workflow_id(node))

    def budget(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(names.budget_workflow_id(POOL))

    async def send(self, update: str, message: Any, node: str = "n001") -> RepairView:
        return await self.repairs.send(node, update, message)

    async def order(self, update: str, node: str = "n001") -> RepairView:
        """An order of ann, with a reason."""
        return await self.send(update, OperatorNote(by="ann", reason="because"), node)

    # --- what a test sees -----------------------------------------------------------------------

    async def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """Poll until `holds` (plain or async) is true; its value."""
        ends_at = time.monotonic() + WITHIN_S
        while time.monotonic() < ends_at:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            if self.fleet.broken:
                pytest.fail(f"physics broken while waiting for {what}: {self.fleet.broken}")
            await asyncio.sleep(POLL_S)
        pytest.fail(f"not within {WITHIN_S} s: {what}; {await self.story()}")

    async def until_stage(self, stage: str, node: str = "n001", *, waits: str = "") -> RepairView:
        """Wait until the repair is at `stage` (and waits for something with `waits` in it)."""

        async def there() -> RepairView | None:
            view = await self.repairs.status(node)
            return view if view.stage == stage and waits in view.waiting_for else None

        found: RepairView = await self.until(f"{node} at {stage} {waits}", there)
        return found

    async def ended(self, node: str = "n001") -> RepairView:
        """The repair's view at its end."""

        async def over() -> RepairView | None:
            view = await self.repairs.status(node)
            return view if view.ending else None

        found: RepairView = await self.until(f"the end of the repair of {node}", over)
        await asyncio.wait_for(self.repair(node).result(), WITHIN_S)
        return found

    async def until_queued(self, node: str) -> None:
        """Wait until the node's ask is in the budget's queue."""

        async def queued() -> bool:
            return node in (await self.permits.status(POOL)).queue

        await self.until(f"{node} is queued", queued)

    async def until_count(self, what: str, count: int, node: str = "n001") -> None:
        """Wait until a `stage outcome` is this often in the story."""

        async def counted() -> bool:
            return (await self.story(node)).count(what) >= count

        await self.until(f"{count} times {what}", counted)

    async def until_taken(self, update: str, message: Any, node: str = "n001") -> None:
        """Send a message again until the repair accepts it."""

        async def taken() -> bool:
            try:
                await self.send(update, message, node)
            except Refused:
                return False
            return True

        await self.until(f"{update} is accepted", taken)

    async def freeze(self) -> None:
        """Nobody gets a permit."""
        await self.permits.freeze(POOL, BudgetSwitch(by="ann", reason="a test"))

    async def unfreeze(self) -> None:
        """Permits are granted again."""
        await self.permits.unfreeze(POOL, BudgetSwitch(by="ann", reason="a test"))

    async def jump(self, handle: WorkflowHandle[Any, Any], *, hours: float) -> None:
        """Let hours pass for one workflow."""
        await self.env.fast_forward(handle, timedelta(hours=hours))

    async def details(self, handle: WorkflowHandle[Any, Any]) -> str:
        """What Temporal's own pages show as the workflow's current details."""
        found = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        return str(found.current_details)

    async def story(self, node: str = "n001") -> list[str]:
        """The finished stages as `stage outcome`, in order."""
        return [f"{s.stage} {s.outcome}" for s in await self.repairs.history(node)]


@contextlib.asynccontextmanager
async def running(
    env: WorkflowEnvironment,
    *,
    count: int = 2,
    group_size: int = 1,
    policy: RepairPolicy = POLICY,
    budget: BudgetPolicy = BUDGET,
    mode: Permission = Permission.ACT,
    silent: tuple[str, ...] = (),
    control: bool = True,
    prepare: Callable[[Loop], None] = lambda _loop: None,
) -> AsyncIterator[Loop]:
    """The loop over `count` nodes; a `silent` node has no worker, nor has `control` when False.

    `prepare` exchanges parts.
    """
    nodes = some_nodes(count, pool=POOL, group_size=group_size)
    loop = Loop(env, nodes=nodes, policy=policy, budget=budget, mode=mode)
    prepare(loop)
    async with contextlib.AsyncExitStack() as stack:
        if control:
            await stack.enter_async_context(loop.control_worker())
        for node in nodes:
            if node.id not in silent:
                await stack.enter_async_context(loop.node_worker(node.id))
        yield loop
    assert loop.fleet.broken == [], "physics was broken"


@pytest.fixture
def start(temporal_env: WorkflowEnvironment):
    """The loop over nodes in memory, to be entered with options: an async context manager."""

    def begin(**options: Any) -> contextlib.AbstractAsyncContextManager[Loop]:
        return running(temporal_env, **options)

    return begin


@pytest.fixture
def start_outside(temporal_local: WorkflowEnvironment):
    """As `start`, on the wall clock and without a control worker: the test runs its own."""

    def begin(**options: Any) -> contextlib.AbstractAsyncContextManager[Loop]:
        return running(temporal_local, control=False, **options)

    return begin


@contextlib.asynccontextmanager
async def small_server(cli: Path, *, events: int) -> AsyncIterator[WorkflowEnvironment]:
    """A server on the wall clock that suggests continue-as-new after so many events."""
    extra = ["--log-level", "error"]
    for key in (*DYNAMIC_CONFIG, f"limit.historyCount.suggestContinueAsNew={events}"):
        extra += ["--dynamic-config-value", key]
    env = await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(cli),
        dev_server_extra_args=extra,
        data_converter=pydantic_data_converter,
        search_attributes=[SearchAttributeKey.for_keyword(n) for n in names.SEARCH_ATTRIBUTES],
    )
    try:
        yield env
    finally:
        await env.shutdown()


@pytest_asyncio.fixture
async def start_small(temporal_cli: Path):
    """As `start`, on a server that suggests continue-as-new after very short histories."""
    async with small_server(temporal_cli, events=25) as env:
        yield lambda **options: running(env, **options)
