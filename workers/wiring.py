"""The one place that knows concrete classes: which adapter stands behind which port."""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client

from activities.checks import CheckActivities
from activities.drain import DrainActivities
from activities.gate import GateActivities
from activities.loads import Loads
from activities.neighbour import NeighbourActivities
from activities.people import PeopleActivities
from activities.permit import PermitActivities
from activities.records import RecordActivities
from activities.scoring import ScoringActivities
from activities.sweep import SweepActivities
from activities.treatment import TreatmentActivities
from sickbay.adapters.collectors import ToolCollectors
from sickbay.adapters.local_pager import LocalPager
from sickbay.adapters.local_tickets import LocalTickets
from sickbay.adapters.node_control import NvidiaNodeControl
from sickbay.adapters.operation_journal import SqliteJournal
from sickbay.adapters.simulated_scheduler import SimulatedScheduler
from sickbay.adapters.tool_checks import Fittings, ToolCheckRunner
from sickbay.client import TemporalPermits, TemporalRepairs, pool_sizes
from sickbay.contracts.scoring import ScoringInput, scaled_times
from sickbay.domain.node import Node
from sickbay.errors import Unreachable, UsageError
from sickbay.policy_settings import ClassSettings
from sickbay.recovery import Recovery
from sickbay.rules import read_rules
from sickbay.scoring.ruleset import load_ruleset
from sickbay.secret_refs import tool_environment
from sickbay.settings import Settings
from sickbay.store.evidence import EvidenceFiles
from sickbay.store.out_of_band import StoreLeases, StoreRollouts
from sickbay.store.pushes import StorePushes
from sickbay.store.records import StoreRecords
from sickbay.store.retention import StoreRetention
from sickbay.store.rule_book import StoreRuleBook
from sickbay.store.safety import StoreSafety
from workers.disk_full import DiskFullPages
from workers.out_of_band import Around, out_of_band_activities
from workers.process import utc_now
from workers.sources import AT_ONCE, exporter_pages, signals_of

SCORING_HEARTBEAT_S = 15.0


@dataclass(frozen=True)
class Outside:
    """What stands outside sickbay: here, the simulated fleet."""

    base_url: str
    directory: Path
    http: httpx.AsyncClient
    told: Mapping[str, str] = field(default_factory=dict)

    def scheduler(self) -> SimulatedScheduler:
        """The scheduler of the fleet."""
        return SimulatedScheduler(self.base_url, client=self.http)


def outside(settings: Settings) -> Outside:
    """Where the running simulator listens.

    Raises:
        UsageError: no simulator is configured, so there is no scheduler to act on.
        Unreachable: it is configured but does not run.
    """
    if not settings.simulator.enabled:
        raise UsageError(
            "no scheduler is configured",
            field="simulator.enabled",
            remedy="this release drives the simulated fleet: set simulator.enabled = true",
        )
    directory = settings.simulator_dir.resolve()
    where = directory / "simulator.json"
    try:
        told = {k: str(v) for k, v in json.loads(where.read_text(encoding="utf-8")).items()}
        base_url = told["base_url"]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise Unreachable(f"the simulated fleet does not run ({where})") from error
    # Few connections: a large pool costs httpx more than it wins on loopback.
    http = httpx.AsyncClient(timeout=5.0, limits=httpx.Limits(max_connections=AT_ONCE * 2))
    return Outside(base_url=base_url, directory=directory, http=http, told=told)


async def control_activities(
    settings: Settings, *, client: Client, records: StoreRecords, out: Outside
) -> list[Callable[..., Any]]:
    """The activities of the control queue."""
    nodes = await records.nodes()
    names = [n.id for n in nodes]
    pools = sorted({n.pool for n in nodes})
    scheduler = out.scheduler()
    safety = StoreSafety(records.store, modes=settings.modes(pools), clock=utc_now)
    sizes = pool_sizes(settings, nodes)
    permits = TemporalPermits(client, sizes=sizes)
    for pool in pools:
        await permits.resize(pool)
    repairs = TemporalRepairs(client, policy_of=settings.repair_policy)
    gate = GateActivities(scheduler, records=records, safety=safety, permits=permits, clock=utc_now)
    people = PeopleActivities(
        LocalTickets(records, clock=utc_now),
        pager=LocalPager(records, clock=utc_now),
        inventory=records,
        safety=safety,
    )
    scoring = _scoring(settings, out, nodes=names, around=(records, repairs, permits))
    recovery = Recovery(scheduler, records=records, repairs=repairs, budgets=permits, clock=utc_now)
    sweep = _sweep(settings, recovery=recovery, records=records)
    permit = PermitActivities(permits, records=records)
    record = RecordActivities(records, clock=utc_now, rollouts=StoreRollouts(records.store))
    drain = DrainActivities(scheduler, safety=safety, clock=utc_now)
    neighbour = neighbour_activities(settings, pools=pools, client=client, records=records, out=out)
    owners: list[object] = [gate, people, scoring, permit, record, drain, sweep, neighbour]
    pages = exporter_pages(out.base_url, http=out.http, nodes=names)
    around = Around(records.store, scheduler, witness=pages, safety=safety, inventory=records)
    owners += out_of_band_activities(
        settings, around=around, simulated=out.told, directory=out.directory
    )
    return [method for owner in owners for method in activities_of(owner)]


def _sweep(settings: Settings, *, recovery: Recovery, records: StoreRecords) -> SweepActivities:
    evidence = EvidenceFiles(settings.evidence_dir.resolve())
    return SweepActivities(
        recovery,
        retention=StoreRetention(records.store, evidence=evidence),
        pager=LocalPager(records, clock=utc_now),
        clock=utc_now,
    )


def _scoring(
    settings: Settings,
    out: Outside,
    *,
    nodes: list[str],
    around: tuple[StoreRecords, TemporalRepairs, TemporalPermits],
) -> ScoringActivities:
    records, repairs, permits = around
    source = signals_of(
        settings,
        base_url=out.base_url,
        http=out.http,
        nodes=nodes,
        inbox=StorePushes(records.store),
    )
    return ScoringActivities(
        source,
        records=records,
        repairs=repairs,
        permits=permits,
        inventory=records,
        clock=utc_now,
        rule_book=StoreRuleBook(records.store),
    )


def neighbour_activities(
    settings: Settings, *, pools: list[str], client: Client, records: StoreRecords, out: Outside
) -> NeighbourActivities:
    """What borrows neighbours and gives them back."""
    safety = StoreSafety(records.store, modes=settings.modes(pools), clock=utc_now)
    return NeighbourActivities(
        out.scheduler(),
        records=records,
        safety=safety,
        repairs=TemporalRepairs(client, policy_of=settings.repair_policy),
        clock=utc_now,
    )


def node_activities(
    settings: Settings, *, node: Node, records: StoreRecords, out: Outside
) -> list[Callable[..., Any]]:
    """The activities of one node's own queue."""
    home = settings.state_dir.resolve() / "nodes" / node.id
    home.mkdir(parents=True, exist_ok=True)
    env = {
        **tool_environment(),
        "PATH": f"{out.directory / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "SICKBAY_SIM_NODE": node.id,
        "SICKBAY_SIM_SOCKET": str(out.directory / "tools.sock"),
    }
    control = NvidiaNodeControl(
        node_id=node.id,
        inventory=records,
        state_dir=home,
        env=env,
        boot_id_file=out.directory / "nodes" / node.id / "boot_id",
    )
    safety = StoreSafety(records.store, modes=settings.modes([node.pool]), clock=utc_now)
    expected = settings.classes.get(node.node_class, ClassSettings())
    loads = _loads(settings, records)
    checks = CheckActivities(
        _check_runner(expected, env=env),
        control=control,
        evidence=EvidenceFiles(
            settings.evidence_dir.resolve(),
            index=lambda ref: records.index_evidence(ref, at=utc_now()),
        ),
        safety=safety,
        inventory=records,
        loads=loads,
        collectors=ToolCollectors(env),
    )
    treatment = TreatmentActivities(
        control,
        journal=SqliteJournal(home / "journal.db"),
        scheduler=out.scheduler(),
        safety=safety,
        clock=utc_now,
        loads=loads,
    )
    return [*activities_of(checks), *activities_of(treatment)]


def _loads(settings: Settings, records: StoreRecords) -> Loads:
    limits = settings.limits.limits()
    return Loads(StoreLeases(records.store), limits=limits, inventory=records, clock=utc_now)


def disk_full_pages(records: StoreRecords) -> DiskFullPages:
    """The watch every worker has over its activities: one page per machine and day."""
    pager = LocalPager(records, clock=utc_now)
    return DiskFullPages(pager, where=platform.node(), clock=utc_now)


def scoring_input(settings: Settings, pool: str) -> ScoringInput:
    """What a pool's scoring is started with: the rule set, its times scaled.

    Raises:
        UsageError: the rule set cannot be read or makes no sense.
    """
    rules = read_rules(settings.rules)
    times = scaled_times(load_ruleset(rules), time_scale=settings.time_scale)
    return ScoringInput(
        pool=pool,
        rules=rules,
        times=times,
        time_scale=settings.time_scale,
        heartbeat_timeout_s=SCORING_HEARTBEAT_S,
    )


def activities_of(owner: object) -> Sequence[Callable[..., Any]]:
    """The activity methods of an object, by Temporal's own mark on them."""
    methods = (getattr(owner, name) for name in dir(owner) if not name.startswith("_"))
    return [m for m in methods if hasattr(m, "__temporal_activity_definition")]


def _check_runner(expected: ClassSettings, *, env: Mapping[str, str]) -> ToolCheckRunner:
    fittings = Fittings(
        ib_ports=expected.ib_ports,
        ib_rate_gbps=expected.ib_rate_gbps,
        storage_dir=expected.storage_dir,
    )
    return ToolCheckRunner(
        env=env,
        floors=expected.floors,
        nccl_network=expected.nccl_network or None,
        launcher=expected.nccl_launcher,
        fittings=fittings,
    )
