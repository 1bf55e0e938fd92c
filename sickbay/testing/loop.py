"""The repair loop over a fleet in memory: the real workflows and activities, every port in memory.

For tests and benchmarks of the loop itself. It needs a Temporal server to connect to, and the
packages of the shell (workflows, activities, workers), which `sickbay.testing` itself does not.
"""

from collections.abc import Callable, Sequence

from temporalio.client import Client
from temporalio.worker import Interceptor, PollerBehaviorSimpleMaximum, Worker

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
from sickbay.contracts.operations import OutOfBandTimes
from sickbay.contracts.repair import RepairPolicy
from sickbay.contracts.steps import Permission
from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.firmware import FirmwareImage
from sickbay.domain.node import Node
from sickbay.domain.radius import Limits
from sickbay.testing.bmc import MemoryBmc
from sickbay.testing.evidence import MemoryEvidence
from sickbay.testing.fleet import MemoryFleet
from sickbay.testing.ledger import MemoryLeases, MemoryOperations, MemoryRollouts
from sickbay.testing.machine import MemoryCheckRunner, MemoryJournal, MemoryNodeControl
from sickbay.testing.people import MemoryPager, MemoryTickets
from sickbay.testing.records import MemoryRecords
from sickbay.testing.safety import MemorySafety
from sickbay.testing.scheduler import MemoryScheduler
from workers.process import patient, sandbox, utc_now
from workers.wiring import activities_of
from workflows.node_repair import NodeRepair
from workflows.pool_budget import PoolBudget

RECONCILE_S = 3600.0
TIMES = OutOfBandTimes(poll_s=0.01, answer_wait_s=0.1, off_s=0.02, back_s=3.0, flash_quiet_s=0.2)
OLD, NEW = "96.00.5E", "96.00.74"
IMAGE = FirmwareImage("GPU_*", NEW, "hgx-8", "fw.bin", "0" * 64)


def lifted(nodes: int) -> BudgetPolicy:
    """A budget that never stands in the way of a pool of so many nodes."""
    return BudgetPolicy(allowance=nodes, cap=nodes, storm_factor=1e9)


class MemoryLoop:
    """Everything the loop over one pool is made of; a caller runs the workers.

    Args:
        client: connected with the pydantic converter.
        nodes: the pool's nodes.
        pool: its name.
        policy: of every repair.
        budget: of the pool.
        mode: what the safety switches permit.
        scheduler: makes the scheduler of the fleet, e.g. a slow one.
    """

    def __init__(
        self,
        client: Client,
        *,
        nodes: Sequence[Node],
        pool: str,
        policy: RepairPolicy,
        budget: BudgetPolicy,
        mode: Permission = Permission.ACT,
        scheduler: Callable[[MemoryFleet], MemoryScheduler] = MemoryScheduler,
    ) -> None:
        self.client = client
        self.fleet = MemoryFleet(nodes, now=utc_now)
        self.records = MemoryRecords(dict(self.fleet.records))
        self.safety = MemorySafety(mode=mode)
        self.tickets = MemoryTickets(self.fleet)
        self.pager = MemoryPager(self.fleet)
        self.evidence = MemoryEvidence()
        self.runner = MemoryCheckRunner(self.fleet)
        self.scheduler = scheduler(self.fleet)
        self.control = {n.id: MemoryNodeControl(self.fleet, node=n.id) for n in nodes}
        self.journals = {n.id: MemoryJournal() for n in nodes}
        size = PoolSize(nodes_on_record=len(nodes), policy=budget, reconcile_s=RECONCILE_S)
        self.permits = TemporalPermits(client, sizes={pool: size})
        self.repairs = TemporalRepairs(client, policy_of=lambda _pool: policy)
        self.interceptors: list[Interceptor] = []
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

    def control_worker(self) -> Worker:
        """The one control worker."""
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
        """The hands on the controllers in memory."""
        return OutOfBandActivities(
            Outside(
                self.bmc, self.bmc, self.scheduler, self.bmc, self.safety, inventory=self.records
            ),
            ledger=self.ledger,
            rules=Rules(self.limits, self.images, TIMES),
            clock=utc_now,
        )

    def loads(self) -> Loads:
        """Places in racks and power units, kept in memory."""
        return Loads(self.ledger.leases, limits=self.limits, inventory=self.records, clock=utc_now)

    def node_worker(self, node: str) -> Worker:
        """One node's worker."""
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
