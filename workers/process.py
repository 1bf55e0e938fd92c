"""What every worker process does alike: arguments, logging, and ending on a signal."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.worker import PollerBehaviorSimpleMaximum
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from sickbay.errors import SickbayError
from sickbay.secret_refs import log_to_stderr, scrub
from sickbay.settings import Settings, load_settings

log = logging.getLogger(__name__)

GRACE = timedelta(seconds=5)
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


def arguments(purpose: str) -> argparse.ArgumentParser:
    """The arguments every worker takes."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--config", type=Path, required=True, help="resolved settings (TOML, JSON)")
    return parser


def run(serve: Callable[[Settings, asyncio.Event], Awaitable[None]], *, config: Path) -> None:
    """Run `serve` until SIGTERM or SIGINT sets its event; a known error is one line and exit 2."""
    log_to_stderr()
    try:
        asyncio.run(_until_signalled(serve, load_settings(config)))
    except SickbayError as error:
        remedy = f" ({error.remedy})" if error.remedy else ""
        sys.stderr.write(scrub(f"error: {error.message}{remedy}") + "\n")
        sys.exit(2)
    except Exception:
        # Through the log, not the interpreter: a traceback may quote what must not be shown.
        log.critical("ends by an error it does not know", exc_info=True)
        sys.exit(1)


async def _until_signalled(
    serve: Callable[[Settings, asyncio.Event], Awaitable[None]], settings: Settings
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, stop)
