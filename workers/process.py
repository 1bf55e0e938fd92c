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
from sickbay.secret_refs import log_to_stderr, scrub
from sickbay.settings import Settings, load_settings
from workers.metrics_page import metrics_page

log = logging.getLogger(__name__)

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


Serve = Callable[[Settings, asyncio.Event], Awaitable[None]]


def run(serve: Serve, *, config: Path, process: str = "", page_offset: int = 0) -> None:
    """Run `serve` until SIGTERM or SIGINT sets its event; a known error is one line and exit 2.

    `process` names the metrics page of the settings (`control`, `node`), nothing for none; several
    processes of one kind on a machine count up from its port by `page_offset`.
    """
    log_to_stderr()
    try:
        asyncio.run(_until_signalled(serve, load_settings(config), process, page_offset))
    except SickbayError as error:
        remedy = f" ({error.remedy})" if error.remedy else ""
        sys.stderr.write(scrub(f"error: {error.message}{remedy}") + "\n")
        sys.exit(2)
    except Exception:
        # Through the log, not the interpreter: a traceback may quote what must not be shown.
        log.critical("ends by an error it does not know", exc_info=True)
        sys.exit(1)


async def _until_signalled(
    serve: Serve, settings: Settings, process: str, page_offset: int
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    port = settings.metrics.port_of(process)
    async with metrics_page(
        settings.metrics, port=port + page_offset if port else 0, process=process
    ):
        await serve(settings, stop)
