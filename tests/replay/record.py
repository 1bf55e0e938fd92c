"""Record the histories that the replay test keeps honest: `python tests/replay/record.py`.

Runs the loop over nodes in memory on a development server of its own and writes the histories of
repairs of every ending, of repairs parked in several stages, and of the budget. Names as arguments
record only those. Run it again only when a change of the workflows is meant to need
`workflow.patched` no more, and say so in the changelog.
"""

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from sickbay.contracts.names import SEARCH_ATTRIBUTES
from sickbay.contracts.repair import AdoptedHold, PartReplaced
from sickbay.contracts.steps import Action, Permission
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.proof import CheckName
from sickbay.payloads import shared_data_converter
from tests.workflows.conftest import POLICY, POOL, WHOLE_LADDER, Loop, running, utc_now

Recorder = Callable[[Loop], Awaitable[dict[str, str]]]
HISTORIES = Path(__file__).with_name("histories")
WELL = Health(value=1.0, confidence=1.0, worst=None, reason="")


async def record(loop: Loop) -> dict[str, str]:
    """Histories as JSON, by name."""
    found = {}
    reset = await loop.broken("n001", Treatment.RESET)
    await loop.ended("n001")
    found["reset_cured"] = (await reset.fetch_history()).to_json()
    reboot = await loop.broken("n001", Treatment.REBOOT, treatment=Treatment.REBOOT)
    await loop.ended("n001")
    found["reboot_cured"] = (await reboot.fetch_history()).to_json()
    swap = await loop.broken("n002", Treatment.SWAP, treatment=Treatment.SWAP)
    await loop.until_stage("swap", "n002", waits="ticket")
    found["swap_waiting"] = (await swap.fetch_history()).to_json()
    await loop.order("release", "n002")
    await loop.ended("n002")
    found["released"] = (await swap.fetch_history()).to_json()
    await loop.freeze()
    waiting = await loop.report("n001", id="waits")
    await loop.until_queued("n001")
    found["permit_waiting"] = (await waiting.fetch_history()).to_json()
    await loop.order("abort", "n001")
    await loop.ended("n001")
    found["aborted"] = (await waiting.fetch_history()).to_json()
    await loop.unfreeze()
    found["budget"] = (await loop.budget().fetch_history()).to_json()
    return found


async def record_adopted(loop: Loop) -> dict[str, str]:
    """A repair that goes on under its hold after its workflow was lost."""
    loop.runner.hold("n001")
    first = await loop.broken("n001", Treatment.RESET)
    view = await loop.until_stage("diagnose", "n001")
    await first.terminate("lost")
    (hold,) = await loop.records.holds("n001")
    adopted = AdoptedHold(view.repair_id, hold.reason, hold.placed_at, ordinal=view_ordinal(loop))
    await loop.repairs.adopt("n001", pool=POOL, hold=adopted)
    loop.runner.let_go("n001")
    await loop.ended("n001")
    return {"adopted": (await loop.repair("n001").fetch_history()).to_json()}


def view_ordinal(loop: Loop) -> int:
    """The last step on record."""
    return max(step.ordinal for step in loop.records.steps)


async def record_pair(loop: Loop) -> dict[str, str]:
    """The history of a repair that borrowed neighbours, was blamed, and returned."""
    for node in loop.fleet.nodes:
        await loop.records.save_health(
            node, health=WELL, standing=Standing.HEALTHY, at=utc_now(), rules="1"
        )
    loop.fleet.break_part(
        "n001",
        None,
        cured_by={Treatment.REBOOT},
        category=Category.FABRIC,
        seen_by={CheckName.NCCL_PAIR},
    )
    pair = await loop.report("n001", category=Category.FABRIC, source="person", slot=None)
    await loop.ended("n001")
    return {"pair_blamed": (await pair.fetch_history()).to_json()}


async def record_ladder(loop: Loop) -> dict[str, str]:
    """Every rung in turn, a power cycle that cures, and firmware that is for a person."""
    found = {}
    whole = await loop.broken("n001")
    await loop.until_stage("swap", "n001", waits="ticket")
    loop.fleet.swap_part("n001", "gpu0", serial="NEW1")
    await loop.send("part_replaced", PartReplaced(slot="gpu0", serial="NEW1", by="tom"))
    await loop.ended("n001")
    found["whole_ladder"] = (await whole.fetch_history()).to_json()
    cold = await loop.broken("n002", Treatment.POWER_CYCLE, treatment=Treatment.POWER_CYCLE)
    await loop.ended("n002")
    found["power_cycle_cured"] = (await cold.fetch_history()).to_json()
    # The version failed its proof on the first node: it is frozen now.
    loop.fleet.break_part("n003", "gpu0", cured_by=(), first_rung=Treatment.REFLASH)
    person = await loop.report("n003", treatment=Treatment.REFLASH)
    await loop.until_stage("needs_human", "n003", waits="a person")
    found["needs_human_waiting"] = (await person.fetch_history()).to_json()
    return found


async def record_reflash(loop: Loop) -> dict[str, str]:
    """A flash that cures."""
    loop.fleet.break_part(
        "n001", "gpu0", cured_by={Treatment.REFLASH}, first_rung=Treatment.REFLASH
    )
    handle = await loop.report("n001", treatment=Treatment.REFLASH)
    await loop.ended("n001")
    return {"reflash_cured": (await handle.fetch_history()).to_json()}


async def record_untreated(loop: Loop) -> dict[str, str]:
    """Endings without a treatment, a drain that waits for a job, an act that waits for approval."""
    found = {}
    early = utc_now()
    await loop.records.returned("n001", repair_id="n001.earlier", at=utc_now())
    stale = await loop.report("n001", observed_at=early)
    await loop.ended("n001")
    found["stale"] = (await stale.fetch_history()).to_json()
    await loop.freeze()
    soft = await loop.report("n002", reason="min:memory", hard=False, category=Category.MEMORY)
    await loop.until_queued("n002")
    well = Health(0.95, 1.0, Category.MEMORY, "min:memory")
    await loop.records.save_health(
        "n002", health=well, standing=Standing.HEALTHY, at=utc_now(), rules="1"
    )
    await loop.ended("n002")
    found["withdrawn"] = (await soft.fetch_history()).to_json()
    await loop.unfreeze()
    loop.fleet["n003"].jobs.append("job7")
    busy = await loop.broken("n003", Treatment.RESET, severity=Severity.WARNING)
    await loop.until_stage("drain", "n003")
    found["drain_waiting"] = (await busy.fetch_history()).to_json()
    loop.safety.set(Action.RESET, Permission.APPROVE)
    asks = await loop.broken("n004", Treatment.RESET)
    await loop.until_stage("reset", "n004", waits="approval")
    found["approval_waiting"] = (await asks.fetch_history()).to_json()
    return found


async def record_observed(loop: Loop) -> dict[str, str]:
    """What observe mode leaves: a repair that would have been."""
    seen = await loop.report("n001")
    await loop.ended("n001")
    return {"observed": (await seen.fetch_history()).to_json()}


@dataclass(frozen=True)
class Recording:
    """One loop, how it is set up, and the names of the histories it gives."""

    names: frozenset[str]
    recorded: Recorder
    options: dict[str, Any]


def _of(recorded: Recorder, *names: str, **options: Any) -> Recording:
    return Recording(frozenset(names), recorded, options)


RECORDS = (
    _of(
        record,
        *("reset_cured", "reboot_cured", "swap_waiting", "released"),
        *("permit_waiting", "aborted", "budget"),
        count=2,
    ),
    _of(record_adopted, "adopted", count=1),
    _of(record_pair, "pair_blamed", count=4),
    _of(
        record_ladder,
        *("whole_ladder", "power_cycle_cured", "needs_human_waiting"),
        count=3,
        policy=WHOLE_LADDER,
    ),
    _of(record_reflash, "reflash_cured", count=1, policy=WHOLE_LADDER),
    _of(
        record_untreated,
        *("stale", "withdrawn", "drain_waiting", "approval_waiting"),
        count=4,
        policy=replace(POLICY, drain_deadline_minor_s=600.0),
    ),
    _of(record_observed, "observed", count=1, mode=Permission.OBSERVE),
)


async def on_a_server(recording: Recording) -> dict[str, str]:
    """What one loop gives on a development server of its own."""
    beside = Path(sys.executable).with_name("temporal")
    cli = str(beside) if beside.exists() else shutil.which("temporal")
    env = await WorkflowEnvironment.start_local(
        dev_server_existing_path=cli,
        dev_server_extra_args=["--log-level", "error"],
        data_converter=shared_data_converter,
        search_attributes=[SearchAttributeKey.for_keyword(n) for n in SEARCH_ATTRIBUTES],
    )
    try:
        async with running(env, **recording.options) as loop:
            return await recording.recorded(loop)
    finally:
        await env.shutdown()


async def main() -> None:
    """Run each loop and write the files; names as arguments run and write only those."""
    wanted = set(sys.argv[1:]) or {name for r in RECORDS for name in r.names}
    HISTORIES.mkdir(exist_ok=True)
    for recording in RECORDS:
        if not wanted & recording.names:
            continue
        for name, text in (await on_a_server(recording)).items():
            if name in wanted:
                (HISTORIES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
                print(f"{name}: {len(text)} bytes")


if __name__ == "__main__":
    asyncio.run(main())
