"""Typed Temporal client: start a repair, send it a message, ask for a permit.

Every way in is a message that starts what it needs (signal-with-start), so that nothing is lost
while no worker runs.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from sickbay.connection import connect as connect  # noqa: PLC0414 - part of this module's API
from sickbay.contracts import names
from sickbay.contracts.budget import (
    BudgetGrant,
    BudgetInput,
    BudgetSwitch,
    BudgetView,
    GateClosed,
    PermitAdopted,
    PermitAsk,
    PermitReleased,
    WithholdAsk,
    WithholdEnded,
)
from sickbay.contracts.repair import (
    AdoptedHold,
    Fault,
    RepairInput,
    RepairPolicy,
    RepairView,
    StepView,
)
from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.node import Node
from sickbay.domain.recovery import Run, RunStatus
from sickbay.errors import Unreachable
from sickbay.sending import ANSWER_TIMEOUT, query, signal_with_start, silent, update
from sickbay.settings import Settings


async def ensure_search_attributes(client: Client) -> None:
    """Register our search attributes where the namespace lacks them.

    Raises:
        Unreachable: they are missing and may not be registered with this access.
    """
    wanted = dict.fromkeys(names.SEARCH_ATTRIBUTES, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
    operator = client.operator_service
    try:
        listed = await operator.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
        missing = {n: t for n, t in wanted.items() if n not in listed.custom_attributes}
        if missing:
            await operator.add_search_attributes(
                AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
            )
    except RPCError as error:
        raise Unreachable(
            f"search attributes cannot be registered: {error.message}",
            field="temporal.namespace",
            remedy=f"register as Keyword: {', '.join(wanted)}",
        ) from error


class TemporalRepairs:
    """Reports findings to repairs, and carries people's messages to them."""

    def __init__(self, client: Client, *, policy_of: Callable[[str], RepairPolicy]) -> None:
        self._client = client
        self._policy_of = policy_of

    async def report(self, fault: Fault, *, pool: str) -> None:
        """Start the node's repair or merge the fault into the running one. Needs no worker."""
        await signal_with_start(
            self._client,
            names.REPAIR_WORKFLOW,
            RepairInput(node=fault.node, pool=pool, policy=self._policy_of(pool)),
            workflow_id=names.repair_workflow_id(fault.node),
            signal="fault_reported",
            message=fault,
            summary=f"{fault.node}: {fault.reason}",
        )

    async def adopt(self, node: str, *, pool: str, hold: AdoptedHold) -> bool:
        """Let a repair go on under a standing hold; False when one of this node runs already.

        Raises:
            Unreachable: Temporal does not answer.
        """
        try:
            await self._client.start_workflow(
                names.REPAIR_WORKFLOW,
                RepairInput(node=node, pool=pool, policy=self._policy_of(pool), adopted=hold),
                id=names.repair_workflow_id(node),
                task_queue=names.CONTROL_QUEUE,
                static_summary=f"{node}: {hold.reason} (goes on under its hold)",
            )
        except WorkflowAlreadyStartedError:
            return False
        except RPCError as error:
            raise silent("Temporal") from error
        return True

    async def last_run(self, node: str) -> Run:
        """The newest run of a node's repair; unknown while Temporal gives no whole answer."""
        handle = self._client.get_workflow_handle(
            names.repair_workflow_id(node), result_type=RepairView
        )
        try:
            found = await handle.describe(rpc_timeout=ANSWER_TIMEOUT)
            if found.status is WorkflowExecutionStatus.RUNNING:
                return Run(RunStatus.RUNNING)
            if found.status is not WorkflowExecutionStatus.COMPLETED:
                return Run(RunStatus.ENDED)
            view = await handle.result(rpc_timeout=ANSWER_TIMEOUT)
        except RPCError as error:
            gone = error.status is RPCStatusCode.NOT_FOUND
            return Run(RunStatus.NONE if gone else RunStatus.UNKNOWN)
        except (WorkflowFailureError, ValueError, TypeError, RuntimeError):
            # An answer that cannot be read, e.g. written with a key this process lacks.
            return Run(RunStatus.UNKNOWN)
        return Run(RunStatus.ENDED, repair_id=view.repair_id, ending=view.ending)

    async def send(self, node: str, order: str, message: Any) -> RepairView:
        """Send one message of a person and return the repair as it stands after it.

        Raises:
            Refused: the repair refused it, or no repair of this node runs.
            Unreachable: no answer in time (Temporal or every worker is down).
        """
        handle = self._client.get_workflow_handle(names.repair_workflow_id(node))
        view: RepairView = await update(handle, order, message, what=f"the repair of {node}")
        return view

    async def status(self, node: str) -> RepairView:
        """The node's running or last repair. Raises as `send` does."""
        handle = self._client.get_workflow_handle(names.repair_workflow_id(node))
        view: RepairView = await query(handle, "status", RepairView, what=f"the repair of {node}")
        return view

    async def history(self, node: str) -> list[StepView]:
        """The finished stages of the node's running or last repair. Raises as `send` does."""
        handle = self._client.get_workflow_handle(names.repair_workflow_id(node))
        rows = await query(handle, "history", list[StepView], what=f"the repair of {node}")
        return list(rows)


@dataclass(frozen=True)
class PoolSize:
    """What a budget must know to be started."""

    nodes_on_record: int
    policy: BudgetPolicy
    reconcile_s: float


def pool_sizes(settings: Settings, nodes: Sequence[Node]) -> dict[str, PoolSize]:
    """What each pool's budget is started with: its nodes on record and its policy."""
    counts = Counter(node.pool for node in nodes)
    return {
        pool: PoolSize(
            nodes_on_record=count,
            policy=settings.budget_policy(pool),
            reconcile_s=settings.reconcile_s(pool),
        )
        for pool, count in counts.items()
    }


class TemporalPermits:
    """Carries messages to the pools' budgets, starting them where they do not run."""

    def __init__(self, client: Client, *, sizes: Mapping[str, PoolSize]) -> None:
        self._client = client
        self._sizes = sizes

    async def ask(self, pool: str, ask: PermitAsk) -> None:
        """Ask for a permit."""
        await self._signal(pool, "ask_permit", ask)

    async def adopt(self, pool: str, message: PermitAdopted) -> None:
        """Tell that a node is out already, under a hold whose repair goes on."""
        await self._signal(pool, "adopt_permit", message)

    async def gate_closed(self, pool: str, message: GateClosed) -> None:
        """Tell when the gate was truly closed."""
        await self._signal(pool, "gate_closed", message)

    async def release(self, pool: str, message: PermitReleased) -> None:
        """Give a permit or a place in the queue back."""
        await self._signal(pool, "release_permit", message)

    async def ask_withhold(self, pool: str, ask: WithholdAsk) -> None:
        """Ask to keep new work off a node without a permit."""
        await self._signal(pool, "ask_withhold", ask)

    async def end_withhold(self, pool: str, message: WithholdEnded) -> None:
        """Say that the reason to withhold is gone."""
        await self._signal(pool, "end_withhold", message)

    async def resize(self, pool: str) -> None:
        """Tell the budget how many nodes the pool has on record."""
        await self._signal(pool, "resize", self._sizes[pool].nodes_on_record)

    async def running(self, repairs: Mapping[str, str]) -> Mapping[str, bool]:
        """Whether each repair (id to workflow id) still runs; an unreadable one is left out."""
        answers: dict[str, bool] = {}
        for repair_id, workflow_id in repairs.items():
            try:
                found = await self._client.get_workflow_handle(workflow_id).describe()
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    answers[repair_id] = False
                continue
            node = workflow_id.partition("/")[2]
            first = found.raw_description.workflow_execution_info.first_run_id or found.run_id
            same = names.same_execution(repair_id, node, first)
            answers[repair_id] = same and found.status is WorkflowExecutionStatus.RUNNING
        return answers

    async def grant(self, pool: str, message: BudgetGrant) -> BudgetView:
        """Lend closures. Raises `Refused` or `Unreachable`."""
        return await self._change(pool, "grant", message)

    async def freeze(self, pool: str, message: BudgetSwitch) -> BudgetView:
        """Stop grants. Raises `Refused` or `Unreachable`."""
        return await self._change(pool, "freeze", message)

    async def unfreeze(self, pool: str, message: BudgetSwitch) -> BudgetView:
        """Let grants go on. Raises `Refused` or `Unreachable`."""
        return await self._change(pool, "unfreeze", message)

    async def status(self, pool: str) -> BudgetView:
        """The budget as it stands. Raises `Refused` or `Unreachable`."""
        await self.resize(pool)
        handle = self._client.get_workflow_handle(names.budget_workflow_id(pool))
        view: BudgetView = await query(handle, "status", BudgetView, what=f"the budget of {pool}")
        return view

    async def _change(self, pool: str, order: str, message: Any) -> BudgetView:
        await self.resize(pool)
        handle = self._client.get_workflow_handle(names.budget_workflow_id(pool))
        view: BudgetView = await update(
            handle,
            order,
            message,
            what=f"the budget of {pool}",
            result=BudgetView,
            keeps_orders=True,
        )
        return view

    async def _signal(self, pool: str, signal: str, message: Any) -> None:
        size = self._sizes[pool]
        await signal_with_start(
            self._client,
            names.BUDGET_WORKFLOW,
            BudgetInput(
                pool=pool,
                nodes_on_record=size.nodes_on_record,
                policy=size.policy,
                reconcile_s=size.reconcile_s,
            ),
            workflow_id=names.budget_workflow_id(pool),
            signal=signal,
            message=message,
            summary=f"budget of {pool}",
        )
