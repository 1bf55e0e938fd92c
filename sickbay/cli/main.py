"""`sickbay`: the command line. Every command takes `--json`; errors are one clear line."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from sickbay.cli import (
    cluster,
    firmware,
    fleet,
    messages,
    read,
    recovery,
    reports,
    rules,
    switches,
    up,
)
from sickbay.cli.output import EXIT_INTERRUPTED, EXIT_USAGE, report_error
from sickbay.cli.processes import exit_now
from sickbay.errors import SickbayError, UsageError

# Typer carries its own click; its base of all usage errors is reached through a public one.
_ClickError: type[Exception] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)

app = typer.Typer(
    name="sickbay",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Whether each node of a GPU fleet may run a job, and the repair of those that may not.",
)

COMMANDS: Sequence[tuple[str, Callable[..., Any], str]] = (
    ("up", up.up, "Run it"),
    ("demo", up.demo, "Run it"),
    ("status", fleet.status, "Look"),
    ("explain", fleet.explain, "Look"),
    ("report", reports.report, "Look"),
    ("read", read.read, "Look"),
    ("repair", messages.repair, "Repairs"),
    ("approve", messages.approve, "Repairs"),
    ("pause", messages.pause, "Repairs"),
    ("resume", messages.resume, "Repairs"),
    ("skip", messages.skip, "Repairs"),
    ("abort", messages.abort, "Repairs"),
    ("release", messages.release, "Repairs"),
    ("part-replaced", messages.part_replaced, "Technicians"),
    ("work-done", messages.work_done, "Technicians"),
    ("cannot-fix", messages.cannot_fix, "Technicians"),
    ("needs-time", messages.needs_time, "Technicians"),
    ("tickets", fleet.tickets, "Technicians"),
    ("pages", fleet.pages, "Look"),
    ("budget", switches.budget, "Switches"),
    ("firmware", firmware.firmware, "Switches"),
    ("rules", rules.rules, "Switches"),
    ("stop", switches.stop, "Switches"),
    ("go", switches.go, "Switches"),
    ("healthcheck", cluster.healthcheck, "Clusters"),
    ("codec-server", cluster.codec_server, "Clusters"),
    ("rebuild", recovery.rebuild, "Recovery"),
    ("backup", recovery.backup, "Recovery"),
    ("prune", recovery.prune, "Recovery"),
    ("inject", switches.inject, "Simulated fleet"),
    ("hands", switches.hands, "Simulated fleet"),
)

for _name, _function, _panel in COMMANDS:
    app.command(_name, rich_help_panel=_panel)(_function)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    exit_now(invoke(args))


def invoke(args: list[str]) -> int:
    """Run one command; its exit code: 0, 2 usage, 3 refused, 4 unreachable."""
    as_json = "--json" in args
    try:
        result = app(args, standalone_mode=False, prog_name="sickbay")
    except typer.Abort:
        return EXIT_INTERRUPTED
    except SickbayError as error:
        return report_error(error, as_json=as_json)
    except _ClickError as error:
        return _usage(error, as_json=as_json)
    return result if isinstance(result, int) else 0


def _usage(error: Exception, *, as_json: bool) -> int:
    """Report what Typer found wrong with the arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{error}\n")
        return EXIT_USAGE
    field = getattr(getattr(error, "param", None), "name", None)
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    return report_error(UsageError(message, field=field, remedy="see --help"), as_json=as_json)


if __name__ == "__main__":
    main()
