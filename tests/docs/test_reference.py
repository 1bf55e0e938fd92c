"""The reference pages name everything there is: a list in the docs that rots is a lie."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from sickbay.domain.repair import TABLE, Ending, Stage
from sickbay.settings import Settings
from workflows.fleet_sweep import FleetSweep
from workflows.node_repair import NodeRepair
from workflows.pool_budget import PoolBudget
from workflows.pool_scoring import PoolScoring

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def keys(model: type[BaseModel], prefix: str = ""):
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("key", sorted(keys(Settings)))
def test_every_settings_key_is_documented(key):
    page = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    assert f"`{key}`" in page


@pytest.mark.parametrize("workflow", [NodeRepair, PoolBudget, PoolScoring, FleetSweep])
def test_every_message_is_documented(workflow):
    page = (REFERENCE / "messages.md").read_text(encoding="utf-8")
    definition = workflow.__temporal_workflow_definition
    for kind in (definition.signals, definition.updates, definition.queries):
        for name in kind:
            if name and not name.startswith("__"):
                assert f"`{name}`" in page, name


def test_every_command_is_documented():
    from sickbay.cli.main import COMMANDS

    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    for name, _, _ in COMMANDS:
        assert f"## {name}" in page, name


def test_the_table_of_stages_in_the_docs_is_the_one_the_loop_uses():
    page = (REFERENCE.parent / "explanation" / "repair-loop.md").read_text(encoding="utf-8")
    start, end = page.index("<!-- table:next_stage -->"), page.index("<!-- /table:next_stage -->")
    shown = [line for line in page[start:end].splitlines() if line.startswith("| `")]
    assert shown == [row_of(stage, outcome, there) for (stage, outcome), there in TABLE.items()]


def row_of(stage, outcome, there) -> str:
    if isinstance(there, Ending):
        where = f"ends: `{there}`"
    else:
        where = f"`{there}`" if isinstance(there, Stage) else str(there)
    return f"| `{stage}` | `{outcome}` | {where} |"
