"""What every worker process does alike: arguments, logging, and ending on a signal."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.worker import PollerBehaviorSimpleMaximum, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from sickbay.errors import SickbayError
from sickbay.settings import Settings, load_settings

GRACE = timedelta(seconds=5)
# Less than the ten seconds after which the server gives a task to another worker.
TASK_S = 9.0
ONE_POLLER = PollerBehaviorSimpleMaximum(1)


def utc_now() -> datetime:
    """The clock every activity is given."""
    return datetime.now(UTC)


def sandbox() -> SandboxedWorkflowRunner:
    """The workflow sandbox; our own modules are deterministic by rule and pass through."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(
        "sickbay", "activities", "pydantic", "pydantic_core", "annotated_types"
    )
    return SandboxedWorkflowRunner(restrictions=restrictions)


def patient(worker: Worker) -> Worker:
    """The worker, with `TASK_S` for one workflow task before it is taken for a deadlock.

    The library allows two seconds and has no setting for it. A storm that is delivered in one task
    to a loaded machine needs longer, and a task that fails at that limit fails again for ever.
    """
    inner = getattr(worker, "_workflow_worker", None)
    if getattr(inner, "_deadlock_timeout_seconds", None) is not None:
        vars(inner)["_deadlock_timeout_seconds"] = TASK_S
    return worker


def arguments(purpose: str) -> argparse.ArgumentParser:
    """The arguments every worker takes."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--config", type=Path, required=True, help="resolved settings (TOML, JSON)")
    return parser


def run(serve: Callable[[Settings, asyncio.Event], Awaitable[None]], *, config: Path) -> None:
    """Run `serve` until SIGTERM or SIGINT sets its event; a known error is one line and exit 2."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        asyncio.run(_until_signalled(serve, load_settings(config)))
    except SickbayError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(2)


async def _until_signalled(
    serve: Callable[[Settings, asyncio.Event], Awaitable[None]], settings: Settings
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, stop)
