"""Reading a rule set's file; `sickbay.scoring` itself opens none."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from sickbay.errors import UsageError
from sickbay.scoring.ruleset import load_ruleset


def read_rules(path: Path | None) -> dict[str, Any]:
    """The content of a rule set, checked: the file at `path`, or the shipped one.

    Raises:
        UsageError: the file cannot be read, or the rules make no sense.
    """
    shipped = resources.files("sickbay.scoring").joinpath("default_rules.toml")
    source = path or shipped
    try:
        rules = tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{source}: the rule set cannot be read: {error}",
            field="rules",
            remedy="name a TOML rule set, or leave `rules` out for the shipped one",
        ) from error
    load_ruleset(rules)
    return rules
