"""Record the histories that the replay test keeps honest: `python tests/replay/record.py`.

Runs the loop over nodes in memory on a development server of its own and writes the histories of
a finished repair, of one that waits for a technician, and of the budget. Run it again only when a
change of the workflows is meant to need `workflow.patched` no more, and say so in the changelog.
"""

import asyncio
import shutil
import sys
from pathlib import Path

from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from sickbay.contracts.names import SEARCH_ATTRIBUTES
from sickbay.contracts.repair import AdoptedHold
from sickbay.domain.node import Treatment
from tests.workflows.conftest import POOL, Loop, running

HISTORIES = Path(__file__).with_name("histories")


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


async def main() -> None:
    """Start a server, run the loop, write the files."""
    beside = Path(sys.executable).with_name("temporal")
    cli = str(beside) if beside.exists() else shutil.which("temporal")
    env = await WorkflowEnvironment.start_local(
        dev_server_existing_path=cli,
        dev_server_extra_args=["--log-level", "error"],
        data_converter=pydantic_data_converter,
        search_attributes=[SearchAttributeKey.for_keyword(n) for n in SEARCH_ATTRIBUTES],
    )
    try:
        async with running(env, count=2) as loop:
            found = await record(loop)
        async with running(env, count=1) as loop:
            found |= await record_adopted(loop)
    finally:
        await env.shutdown()
    HISTORIES.mkdir(exist_ok=True)
    for name, text in found.items():
        (HISTORIES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(text)} bytes")


if __name__ == "__main__":
    asyncio.run(main())
