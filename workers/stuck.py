"""Pages a person, once per run, about workflows that cannot go on."""

import asyncio
import logging
from collections.abc import Callable

from temporalio.client import Client

from sickbay.contracts import names
from sickbay.contracts.steps import Outcome, PageDraft
from sickbay.ports import Inventory, Pager
from sickbay.stuck import ATTEMPTS, StuckWorkflow, stuck_workflows

log = logging.getLogger(__name__)

SWEEP_S = 60.0
REMEDY = (
    "It goes on by itself when the release that recorded its history serves again. Otherwise reset "
    "it: `temporal workflow reset --workflow-id {id} --type FirstWorkflowTask --reason TEXT`; a "
    "step that was done is not done again."
)


async def watch(
    client: Client,
    *,
    pager: Pager,
    inventory: Inventory,
    stop: asyncio.Event,
    sweep_s: float = SWEEP_S,
    attempts: int = ATTEMPTS,
) -> None:
    """Sweep until `stop`; a sweep that fails is tried again at the next one."""
    paged: set[str] = set()
    while not stop.is_set():
        try:
            await sweep(client, pager=pager, inventory=inventory, paged=paged, attempts=attempts)
        except Exception as error:  # noqa: BLE001 - a look-out never ends the worker
            log.warning("stuck workflows cannot be looked for: %s", error)
        try:
            await asyncio.wait_for(stop.wait(), timeout=sweep_s)
        except TimeoutError:
            continue


async def sweep(
    client: Client,
    *,
    pager: Pager,
    inventory: Inventory,
    paged: set[str],
    attempts: int = ATTEMPTS,
) -> None:
    """One look. `paged` are the runs a page was delivered for; a lost page is sent again."""
    for one in await stuck_workflows(client, attempts=attempts):
        if one.run_id in paged:
            continue
        effect = await pager.page(await _draft(one, inventory))
        log.error("%s cannot go on: %d attempts of one task", one.workflow_id, one.attempts)
        if effect.outcome is Outcome.SUCCEEDED:
            paged.add(one.run_id)


async def _draft(one: StuckWorkflow, inventory: Inventory) -> PageDraft:
    say = _SENTENCES[one.kind]
    node = await inventory.node(one.subject) if one.kind == names.REPAIR_WORKFLOW else None
    return PageDraft(
        key=f"stuck/{one.run_id}",
        pool=node.pool if node else one.subject,
        node=one.subject if one.kind == names.REPAIR_WORKFLOW else None,
        summary=say(one.subject),
        detail=f"{one.workflow_id} failed {one.attempts} attempts of one task. "
        + REMEDY.format(id=one.workflow_id),
    )


_SENTENCES: dict[str, Callable[[str], str]] = {
    names.REPAIR_WORKFLOW: lambda node: (
        f"the repair of {node} cannot go on; its gate stays as it is"
    ),
    names.BUDGET_WORKFLOW: lambda pool: f"the budget of {pool} cannot go on; nothing is granted",
    names.SCORING_WORKFLOW: lambda pool: f"the scoring of {pool} cannot go on; standings grow old",
}
