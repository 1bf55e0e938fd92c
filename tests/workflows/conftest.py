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
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from sickbay.contracts import names
from sickbay.contracts.budget import BudgetSwitch
from sickbay.contracts.repair import Fault, OperatorNote, RepairPolicy, RepairView
from sickbay.contracts.steps import Permission
from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.repair import LADDER
from sickbay.errors import Refused
from sickbay.payloads import shared_data_converter
from sickbay.testing import some_nodes
from sickbay.testing.loop import MemoryLoop
from tests.conftest import DYNAMIC_CONFIG
from workers.process import utc_now

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


class Loop(MemoryLoop):
    """The running loop, and all that a test scripts or reads of it."""

    def __init__(self, env: WorkflowEnvironment, **parts: Any) -> None:
        super().__init__(env.client, pool=POOL, **parts)
        self.env = env
        self._ids = itertools.count(1)

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
        data_converter=shared_data_converter,
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
