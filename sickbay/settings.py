"""One frozen Settings from TOML and the environment, read once by a process's entry.

Environment variables `SICKBAY_SECTION__KEY=value` replace keys of the file. One `time_scale`
divides every policy duration, window and beat when the settings become policies; what a machine
needs to answer at all has a floor (docs/decisions/0011).
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from sickbay.cluster_settings import CodecSettings, MetricsSettings, TemporalSettings
from sickbay.contracts.repair import RepairPolicy
from sickbay.contracts.steps import Action
from sickbay.contracts.sweep import Retention, SweepInput
from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.node import Treatment
from sickbay.errors import UsageError
from sickbay.out_of_band_settings import BmcSettings, FirmwareSettings, LimitsSettings
from sickbay.policy_settings import (
    BudgetSettings,
    ClassSettings,
    Mode,
    PolicySettings,
    PoolSettings,
    RecoverySettings,
    RetentionSettings,
    SimulatorSettings,
)
from sickbay.secret_refs import remember
from sickbay.section import Section
from sickbay.source_settings import PrometheusSettings, PushSettings

ENV_PREFIX = "SICKBAY_"
ENV_FILE = "SICKBAY_CONFIG"

_PASSWORD_IN_URL = re.compile(r"://[^/@?#]*:[^/@]+@|[?&]password=")

# What a machine needs to answer at all, however fast policy time runs (seconds of wall clock).
FLOORS_S: Mapping[str, float] = {
    "heartbeat_timeout_s": 5.0,
    "node_queue_timeout_s": 20.0,
    "suite_deadline_s": 60.0,
    "check_deadline_s": 60.0,
    "treatment_deadline_s": 60.0,
    "reflash_deadline_s": 60.0,
    "drain_poll_s": 0.2,
    "inconclusive_wait_s": 0.5,
    "neighbour_wait_s": 20.0,
    "permit_recheck_s": 5.0,
    "stopped_recheck_s": 1.0,
}


class StoreSettings(Section):
    """Where the store is. Without a url: SQLite in the state directory.

    A password is named by reference: a file that holds it, or an environment variable.
    """

    url: str = ""
    password_file: Path | None = None
    password_env: str = ""

    @field_validator("url")
    @classmethod
    def _no_password(cls, url: str) -> str:
        if _PASSWORD_IN_URL.search(url):
            raise PydanticCustomError(
                "password_in_url",
                "a password in the url would be shown and copied: name it by "
                "store.password_file or store.password_env",
            )
        return url


class Settings(Section):
    """All settings of one installation."""

    time_scale: float = Field(default=1.0, ge=1.0, le=100_000)
    state_dir: Path = Path(".sickbay")
    temporal: TemporalSettings = TemporalSettings()
    codec: CodecSettings = CodecSettings()
    metrics: MetricsSettings = MetricsSettings()
    store: StoreSettings = StoreSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    push: PushSettings = PushSettings()
    simulator: SimulatorSettings = SimulatorSettings()
    bmc: BmcSettings = BmcSettings()
    limits: LimitsSettings = LimitsSettings()
    firmware: FirmwareSettings = FirmwareSettings()
    rules: Path | None = None
    policy: PolicySettings = PolicySettings()
    budget: BudgetSettings = BudgetSettings()
    recovery: RecoverySettings = RecoverySettings()
    retention: RetentionSettings = RetentionSettings()
    pools: dict[str, PoolSettings] = Field(default_factory=dict)
    classes: dict[str, ClassSettings] = Field(default_factory=dict)

    @property
    def store_url(self) -> str:
        """The database of the store."""
        return self.store.url or f"sqlite+aiosqlite:///{self.state_dir / 'sickbay.db'}"

    def store_password(self, *, environ: Mapping[str, str] | None = None) -> str | None:
        """The password of the store's user, read from where the settings say; None without one.

        Raises:
            UsageError: the file cannot be read or is empty, or the variable is not set.
        """
        file, name = self.store.password_file, self.store.password_env
        if file is not None:
            try:
                found = file.read_text(encoding="utf-8").strip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"{file}: the store's password cannot be read ({error})",
                    field="store.password_file",
                    remedy="name a file this user may read, with the password alone in it",
                ) from error
            where = ("store.password_file", str(file))
        elif name:
            found = (os.environ if environ is None else environ).get(name, "")
            where = ("store.password_env", f"${name}")
        else:
            return None
        if not found:
            raise UsageError(
                f"{where[1]} holds no password for the store",
                field=where[0],
                remedy="put the password there, or remove the setting",
            )
        return remember(found)

    @property
    def evidence_dir(self) -> Path:
        """Where evidence files lie."""
        return self.state_dir / "evidence"

    @property
    def simulator_dir(self) -> Path:
        """Where the simulated fleet lives."""
        return self.state_dir / "simulator"

    def mode_of(self, pool: str, action: Action) -> Mode:
        """What may be done: observe, unless said otherwise or every node is simulated."""
        default: Mode = "act" if self.simulator.enabled else "observe"
        own = self.pools.get(pool)
        if own is None:
            return default
        return own.actions.get(action) or own.mode or default

    def modes(self, pools: list[str]) -> dict[str, dict[Action, Mode]]:
        """Every pool's mode per action, as the safety switches want it."""
        return {pool: {action: self.mode_of(pool, action) for action in Action} for pool in pools}

    def scaled_s(self, name: str, seconds: float) -> float:
        """A duration of fleet time as wall-clock seconds, never under what a machine needs."""
        return max(seconds / self.time_scale, FLOORS_S.get(name, 0.0))

    def repair_policy(self, pool: str) -> RepairPolicy:
        """The repair policy of a pool, in wall-clock seconds."""
        own = self.pools.get(pool)
        chosen = (own and own.policy) or self.policy
        fields = {"hour_s": 3600.0 / self.time_scale, **self._scaled(chosen)}
        missing = self._out_of_band_missing()
        fields["available"] = tuple(t for t in chosen.available if t not in missing)
        return RepairPolicy(**fields)

    def _out_of_band_missing(self) -> set[Treatment]:
        """Treatments this installation has no controller or no firmware image for."""
        if self.simulator.enabled:
            return set()
        if not self.bmc.url:
            return {Treatment.POWER_CYCLE, Treatment.REFLASH}
        flashes = self.firmware.images and not self.bmc.by_ipmi
        return set() if flashes else {Treatment.REFLASH}

    def budget_policy(self, pool: str) -> BudgetPolicy:
        """The budget policy of a pool, in wall-clock seconds."""
        fields = self._scaled(self._budget(pool))
        fields.pop("reconcile_s")
        return BudgetPolicy(**fields)

    def reconcile_s(self, pool: str) -> float:
        """How often a budget looks for permits nobody uses, in wall-clock seconds."""
        return max(self._budget(pool).reconcile_s / self.time_scale, 30.0)

    def sweep(self) -> SweepInput:
        """How often the sweep runs and what it keeps, in wall-clock seconds.

        However fast fleet time runs, nothing younger than an hour of the wall clock is removed.
        """
        days = {
            name.replace("_days", "_s"): max(value * 86_400.0 / self.time_scale, 3600.0)
            if value
            else None
            for name, value in self.retention
        }
        every_s = max(self.recovery.every_s / self.time_scale, 30.0)
        return SweepInput(every_s=every_s, retention=Retention(**days))

    def _budget(self, pool: str) -> BudgetSettings:
        own = self.pools.get(pool)
        return (own and own.budget) or self.budget

    def _scaled(self, section: Section) -> dict[str, Any]:
        return {
            name: self.scaled_s(name, value) if name.endswith("_s") else value
            for name, value in section
        }


def load_settings(
    path: Path | None, *, environ: Mapping[str, str] | None = None, **overrides: Any
) -> Settings:
    """Settings of `path` (or `$SICKBAY_CONFIG`), the environment, and `overrides`, in that order.

    Raises:
        UsageError: the file cannot be read, or a key is unknown, or a value has the wrong type;
            the message names file, field and remedy.
    """
    env = dict(os.environ) if environ is None else dict(environ)
    chosen = path or (Path(env[ENV_FILE]) if env.get(ENV_FILE) else None)
    data = _read(chosen) if chosen else {}
    _overlay(data, env)
    for key, value in overrides.items():
        if value is not None:
            _put(data, key.split("__"), value)
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise _usage(error, source=str(chosen or "settings")) from error


def save_resolved(settings: Settings, path: Path) -> None:
    """Write settings for the processes of this installation to read (`load_settings(path)`).

    Secrets stay references. The file is the owner's alone all the same: it says where they are.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A new file put in its place: an older one may be readable by others, or be read right now.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(settings.model_dump_json(indent=2))
    beside.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return dict(json.loads(text))
        return tomllib.loads(text)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror})",
            field=str(path),
            remedy="name a readable TOML file with --config",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be parsed: {error}", field=str(path), remedy="mend the line it names"
        ) from error


def _overlay(data: dict[str, Any], env: Mapping[str, str]) -> None:
    for name in sorted(env):
        if name.startswith(ENV_PREFIX) and name != ENV_FILE and not name.startswith("SICKBAY_SIM_"):
            keys = name.removeprefix(ENV_PREFIX).lower().split("__")
            if keys[0] in Settings.model_fields:
                _put(data, keys, env[name])


def _put(data: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        below = data.setdefault(key, {})
        if not isinstance(below, dict):
            return
        data = below
    data[keys[-1]] = value


def _usage(error: ValidationError, *, source: str) -> UsageError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        remedy = "remove it, or see docs/reference/settings.md for the keys there are"
        return UsageError(f"{source}: unknown key {field}", field=field, remedy=remedy)
    if first["type"] == "value_error":
        # A rule over several keys: its sentence says what is wrong, and its input may hold secrets.
        text = f"{source}: {field}: {str(first['msg']).removeprefix('Value error, ')}"
        return UsageError(text, field=field, remedy="see docs/reference/settings.md")
    got = "" if first["type"] == "password_in_url" else f" (got {first['input']!r})"
    text = f"{source}: {field}: {first['msg']}{got}"
    return UsageError(text, field=field, remedy="see docs/reference/settings.md")
