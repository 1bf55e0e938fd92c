"""Record the histories that the replay test keeps honest: `python tests/replay/record.py`.

Runs the loop over nodes in memory on a development server of its own and writes the histories of
a finished repair, of one that waits for a technician, of one with neighbours, and of the budget.
Names as arguments write only those. Run it again only when a
change of the workflows is meant to need `workflow.patched` no more, and say so in the changelog.
"""

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from sickbay.contracts.names import SEARCH_ATTRIBUTES
from sickbay.contracts.repair import AdoptedHold
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Category, Treatment
from sickbay.domain.proof import CheckName
from sickbay.payloads import shared_data_converter
from tests.workflows.conftest import POOL, Loop, running, utc_now

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


RECORDS = ((2, record), (1, record_adopted), (4, record_pair))


async def on_a_server(count: int, recorded: Recorder) -> dict[str, str]:
    """What a loop over `count` nodes gives on a development server of its own."""
    beside = Path(sys.executable).with_name("temporal")
    cli = str(beside) if beside.exists() else shutil.which("temporal")
    env = await WorkflowEnvironment.start_local(
        dev_server_existing_path=cli,
        dev_server_extra_args=["--log-level", "error"],
        data_converter=shared_data_converter,
        search_attributes=[SearchAttributeKey.for_keyword(n) for n in SEARCH_ATTRIBUTES],
    )
    try:
        async with running(env, count=count) as loop:
            return await recorded(loop)
    finally:
        await env.shutdown()


async def main() -> None:
    """Run each loop and write the files; names as arguments write only those."""
    found: dict[str, str] = {}
    for count, recorded in RECORDS:
        found |= await on_a_server(count, recorded)
    HISTORIES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or found:
        text = found[name]
        (HISTORIES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(text)} bytes")


if __name__ == "__main__":
    asyncio.run(main())
