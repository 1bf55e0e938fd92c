"""The wheel, installed in an environment of its own, holds and finds all that is ours."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sickbay", "workflows", "activities", "workers")
# The build and the environment take seconds: the tests of this file stay in one process.
pytestmark = pytest.mark.xdist_group("packaging")


def run(*argv, cwd, env=None):
    ran = subprocess.run(
        [str(a) for a in argv],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, cwd=ROOT)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel in a new environment that borrows our dependencies, but not our working tree.

    A path added by a `.pth` file is not searched for further `.pth` files, so the editable install
    of this working tree stays out of sight.
    """
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=True, symlinks=True)
    python = home / "bin" / "python"
    site = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home
        ).strip()
    )
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--no-index", "--force-reinstall", wheel, cwd=home,
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull},
    )  # fmt: skip
    return python, site


def test_the_wheel_holds_what_runs_need(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/__init__.py" for package in PACKAGES} <= names
    assert {
        "sickbay/py.typed",
        "sickbay/demo.toml",
        "sickbay/scoring/default_rules.toml",
        "sickbay/store/migrations/env.py",
    } <= names
    versions = {p.name for p in (ROOT / "sickbay/store/migrations/versions").glob("0*.py")}
    assert {f"sickbay/store/migrations/versions/{name}" for name in versions} <= names
    tools = {p.name for p in (ROOT / "sickbay/simulator/tools").glob("*.py")}
    assert {f"sickbay/simulator/tools/{name}" for name in tools} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_nothing_else(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_from_any_directory_the_installed_package_is_ours(installed, tmp_path, package):
    python, site = installed
    found = run(python, "-P", "-c", f"import {package}; print({package}.__file__)", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(site)


def test_the_installed_command_runs_without_the_source(installed, tmp_path):
    python, _ = installed
    told = run(python.with_name("sickbay"), "--help", cwd=tmp_path)
    assert "explain" in told


@pytest.mark.parametrize("module", ["workers.control", "workers.node"])
def test_the_processes_start_from_the_install(installed, tmp_path, module):
    python, _ = installed
    told = run(python, "-P", "-m", module, "--help", cwd=tmp_path)
    assert "--config" in told


def test_the_installed_rule_set_is_readable(installed, tmp_path):
    python, _ = installed
    code = (
        "import tomllib; from importlib import resources;"
        "from sickbay.scoring.ruleset import load_ruleset;"
        "text = resources.files('sickbay.scoring').joinpath('default_rules.toml').read_text();"
        "print(load_ruleset(tomllib.loads(text)).version)"
    )
    assert run(python, "-P", "-c", code, cwd=tmp_path).strip()
