"""What every command prints: one JSON document with `--json`, a screen for people without."""

import json
import sys
from typing import Annotated, Any

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console, RenderableType

from sickbay.errors import Refused, SickbayError, Unreachable, UsageError
from sickbay.secret_refs import scrub

EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_UNREACHABLE = 4
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

# What is printed comes from tools and people: brackets are no markup, a bus id is no emoji.
console = Console(markup=False, emoji=False, highlight=False)
_errors = Console(stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False)


def emit(data: Any, screen: RenderableType, *, as_json: bool) -> None:
    """Print `data` as JSON, or `screen` for people."""
    if as_json:
        sys.stdout.write(json.dumps(to_jsonable_python(data), indent=2) + "\n")
    else:
        console.print(screen)


def exit_code(error: SickbayError) -> int:
    """The exit code an error ends a command with."""
    if isinstance(error, UsageError):
        return EXIT_USAGE
    if isinstance(error, Refused):
        return EXIT_REFUSED
    return EXIT_UNREACHABLE if isinstance(error, Unreachable) else EXIT_FAILED


def report_error(error: SickbayError, *, as_json: bool) -> int:
    """Print an error, one clear line or one JSON document; its exit code."""
    if as_json:
        body = {
            "code": error.code,
            "message": scrub(error.message),
            "field": error.field,
            "remedy": error.remedy,
        }
        sys.stdout.write(json.dumps({"error": body}) + "\n")
    else:
        remedy = f" ({error.remedy})" if error.remedy else ""
        _errors.print(scrub(f"error: {error.message}{remedy}"), markup=False, highlight=False)
    return exit_code(error)
