"""Who may import whom: the contracts of pyproject.toml hold, and they name every room."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def contracts():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["importlinter"]["contracts"]


def test_every_import_contract_holds():
    ran = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(contracts())} kept, 0 broken" in ran.stdout


def test_no_room_stands_outside_the_layers():
    layers = next(c["layers"] for c in contracts() if c["type"] == "layers")
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    # Importable from everywhere: the error tree, the settings, secrets, running a tool.
    free = {
        "sickbay.errors",
        "sickbay.settings",
        "sickbay.out_of_band_settings",
        "sickbay.policy_settings",
        "sickbay.rule_diff",
        "sickbay.rules",
        "sickbay.section",
        "sickbay.source_settings",
        "sickbay.cluster_settings",
        "sickbay.secret_refs",
        "sickbay.tool_process",
        "sickbay.testing",
    }
    rooms = {
        f"sickbay.{path.stem}"
        for path in (ROOT / "sickbay").iterdir()
        if (path.is_dir() and (path / "__init__.py").exists())
        or (path.suffix == ".py" and path.stem != "__init__")
    }
    assert rooms - placed - free == set()
