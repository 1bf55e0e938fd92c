"""What the demo tells: what happens, in plain words, and after a while a summary."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

from sickbay.cli.installation import Installation
from sickbay.cli.live import where_to_look
from sickbay.cli.output import console
from sickbay.cli.reports import summary_screen
from sickbay.settings import Settings
from sickbay.store.engine import Store, open_store
from sickbay.store.queries import RepairRow, recent_repairs
from sickbay.store.reports import summary

LOOK_EVERY_S = 0.5
SHOW_FOR_S = 120.0
SETTLE_FOR_S = 45.0

_WORDS = {
    ("permit", "granted"): "may be repaired: a permit is granted and its gate is closed",
    ("permit", "withdrawn"): "recovered by itself while it waited",
    ("permit", "stale"): "had an old finding from before its last return: nothing to do",
    ("permit", "observed"): "would have been repaired (observe mode)",
    ("drain", "drained"): "runs no job any more",
    ("drain", "blocked"): "does not drain in time: a human is paged",
    ("diagnose", "confirmed"): "is diagnosed: the fault is real",
    ("diagnose", "not_confirmed"): "is diagnosed: nothing found, one proof is owed",
    ("diagnose", "inconclusive"): "is diagnosed: no verdict, so nothing is concluded",
    ("reset", "done"): "had its part reset",
    ("reset", "failed"): "refused the reset",
    ("reboot", "done"): "was rebooted",
    ("reboot", "failed"): "did not reboot",
    ("power_cycle", "done"): "was without power and is back",
    ("power_cycle", "failed"): "could not be power-cycled",
    ("power_cycle", "ambiguous"): "was power-cycled or not: the proof will tell",
    ("power_cycle", "blocked"): "waits for its turn at the power of its rack",
    ("reflash", "done"): "runs the wanted firmware",
    ("reflash", "failed"): "needed no firmware, or could not be flashed",
    ("reflash", "ambiguous"): "was flashed or not: the proof will tell",
    ("reflash", "blocked"): "waits until the first node with this firmware is proven",
    ("reflash", "cannot_fix"): "has wrong firmware that may not be flashed: a human is asked",
    ("swap", "replaced"): "has a new part",
    ("swap", "work_done"): "was worked on by a technician",
    ("prove", "passed"): "passed a proof",
    ("prove", "failed"): "failed a proof: the next rung of the ladder",
    ("return", "returned"): "is proven and back in service",
}


class Narrator:
    """Tells each finished stage once."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def lines(self, repairs: list[RepairRow]) -> Iterator[str]:
        """New sentences since the last call."""
        for row in sorted(repairs, key=lambda r: r.started_at):
            told = self._told.get(row.repair_id)
            if told is None:
                yield f"{row.node} {row.reason}: a repair begins"
                told = 0
            for step in row.steps:
                if step.ordinal > told:
                    told = step.ordinal
                    words = _WORDS.get((step.stage, step.outcome), f"{step.stage} {step.outcome}")
                    yield f"{row.node} {words}{_detail(step.stage, step.outcome, step.detail)}"
            self._told[row.repair_id] = told


def _detail(stage: str, outcome: str, detail: str) -> str:
    telling = {("diagnose", "confirmed"), ("prove", "failed"), ("swap", "replaced")}
    short = detail if len(detail) <= 110 else detail[:107] + "..."  # noqa: PLR2004
    return f" ({short})" if (stage, outcome) in telling and detail else ""


async def tell_demo(installation: Installation, stop: asyncio.Event, *, exit_after: bool) -> None:
    """Tell what happens; the summary after about two minutes; on until asked to stop."""
    settings = installation.settings
    store = await open_store(settings.store_url, password=settings.store_password())
    try:
        _introduce(settings)
        narrator = Narrator()
        await _tell(store, narrator, stop, for_s=SHOW_FOR_S)
        if exit_after:
            await _settle(store, narrator, stop)
        console.print()
        console.print(summary_screen(await summary(store), scale=settings.time_scale))
        if not exit_after and not stop.is_set():
            console.print("The demo runs on; Ctrl-C stops it.")
            await _tell(store, narrator, stop, for_s=None)
    finally:
        await store.close()


def _introduce(settings: Settings) -> None:
    s = settings.simulator
    hour_s = 3600 / settings.time_scale
    console.print(
        f"{s.nodes} simulated nodes of {s.gpus_per_node} GPUs in {s.pools} pools; "
        f"a simulated hour takes {hour_s:g} s. Nodes will break; sickbay repairs them.",
        highlight=False,
    )
    console.print(where_to_look(settings), highlight=False, soft_wrap=True)
    console.print()


async def _tell(
    store: Store, narrator: Narrator, stop: asyncio.Event, *, for_s: float | None
) -> None:
    ends_at = None if for_s is None else time.monotonic() + for_s
    while not stop.is_set() and (ends_at is None or time.monotonic() < ends_at):
        for line in narrator.lines(await recent_repairs(store)):
            console.print(line, highlight=False, soft_wrap=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), timeout=LOOK_EVERY_S)


async def _settle(store: Store, narrator: Narrator, stop: asyncio.Event) -> None:
    """Let repairs in flight end, within a bound, so that the summary has few of them."""
    ends_at = time.monotonic() + SETTLE_FOR_S
    while not stop.is_set() and time.monotonic() < ends_at:
        repairs = await recent_repairs(store)
        if all(r.ending for r in repairs):
            return
        await _tell(store, narrator, stop, for_s=1.0)
