"""Settings of acts out of band: management controllers, limits of shared power, firmware images.

A password is named by where it is, never given: settings are shown, saved and passed on.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from sickbay.contracts.operations import OutOfBandTimes
from sickbay.domain.firmware import FirmwareImage
from sickbay.domain.radius import Limits, Load
from sickbay.secret_refs import read_secret
from sickbay.section import Positive, Section

Most = Annotated[int, Field(ge=0)]
SHA256 = re.compile(r"[0-9a-fA-F]{64}")

# What a controller and a machine need, however fast policy time runs (seconds of wall clock).
FLOORS_S = {"poll_s": 0.1, "answer_wait_s": 2.0, "back_s": 20.0, "flash_quiet_s": 2.0}


class BmcSettings(Section):
    """Management controllers. Without a url there are none, and nothing acts out of band."""

    url: str = ""
    system: str = "{node}"
    username: str = ""
    password_file: Path | None = None
    password_env: str = ""
    ca_file: Path | None = None
    verify: bool = True
    ipmi_interface: Literal["lanplus", "lan"] = "lanplus"
    timeout_s: Positive = 10.0
    upload_timeout_s: Positive = 300.0
    at_once: int = Field(default=16, ge=1, le=256)
    poll_s: Positive = 5.0
    answer_wait_s: Positive = 60.0
    off_s: Positive = 30.0
    back_s: Positive = 900.0
    flash_quiet_s: Positive = 1200.0

    @model_validator(mode="after")
    def _consistent(self) -> "BmcSettings":
        if not self.url:
            return self
        parts = urlsplit(self.url.replace("{node}", "node"))
        if parts.scheme not in {"http", "https", "ipmi"} or not parts.hostname:
            raise ValueError("url is no http(s) or ipmi address, e.g. https://{node}-bmc")
        if parts.username or parts.password:
            raise ValueError("url holds a password: name it by password_file or password_env")
        if self.password_file and self.password_env:
            raise ValueError("give password_file or password_env, not both")
        if self.by_ipmi and "{node}" not in self.url:
            raise ValueError("url has no {node}: one IPMI controller has one node")
        if "{node}" not in self.url and "{node}" not in self.system:
            raise ValueError("neither url nor system has {node}: every node would be one system")
        return self

    @property
    def by_ipmi(self) -> bool:
        """Whether the controllers are spoken to by IPMI: power only, no firmware."""
        return self.url.startswith("ipmi:")

    def times(self, time_scale: float) -> OutOfBandTimes:
        """Durations in wall-clock seconds."""

        def scaled(name: str) -> float:
            return float(max(getattr(self, name) / time_scale, FLOORS_S.get(name, 0.0)))

        names = ("poll_s", "answer_wait_s", "off_s", "back_s", "flash_quiet_s")
        return OutOfBandTimes(**{name: scaled(name) for name in names})

    def password(self) -> Callable[[], str]:
        """Reads the password each time it is called.

        The callable raises `UsageError` when the file or the variable cannot be read.
        """
        return lambda: (
            read_secret(file=self.password_file, env=self.password_env, field="bmc.password") or ""
        )


class LimitsSettings(Section):
    """How many loads run at once in one rack and on one power unit; 0 is no limit."""

    resets_per_rack: Most = 4
    resets_per_power_unit: Most = 4
    power_cycles_per_rack: Most = 2
    power_cycles_per_power_unit: Most = 2
    stress_runs_per_rack: Most = 0
    stress_runs_per_power_unit: Most = 0

    def limits(self) -> Limits:
        """As the rule wants them."""

        def of(place: str) -> dict[Load, int]:
            named = {
                Load.RESET: getattr(self, f"resets_per_{place}"),
                Load.POWER_CYCLE: getattr(self, f"power_cycles_per_{place}"),
                Load.STRESS: getattr(self, f"stress_runs_per_{place}"),
            }
            return {load: most for load, most in named.items() if most > 0}

        return Limits(per_rack=of("rack"), per_power_unit=of("power_unit"))


class FirmwareImageSettings(Section):
    """One image that may be flashed. `component` and `node_class` may hold `*` and `?`."""

    component: str = Field(min_length=1)
    version: str = Field(min_length=1)
    node_class: str = "*"
    path: Path | None = None
    uri: str = ""
    sha256: str

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, dict) and bool(data.get("path")) == bool(data.get("uri")):
            raise ValueError("give the image's path or its uri, one of the two")
        return data

    @model_validator(mode="after")
    def _consistent(self) -> "FirmwareImageSettings":
        if not SHA256.fullmatch(self.sha256):
            raise ValueError("sha256 is not 64 hexadecimal digits")
        if self.uri and urlsplit(self.uri).scheme not in {"http", "https"}:
            raise ValueError("uri is no http(s) address, so its digest cannot be checked")
        return self

    def image(self) -> FirmwareImage:
        """As the allow-list wants it."""
        return FirmwareImage(
            component=self.component,
            version=self.version,
            node_class=self.node_class,
            source=self.uri or str(self.path),
            sha256=self.sha256.lower(),
        )


class FirmwareSettings(Section):
    """The allow-list of firmware; the first image that fits a component is what it should have."""

    images: tuple[FirmwareImageSettings, ...] = ()

    def allowed(self) -> tuple[FirmwareImage, ...]:
        """The allow-list, in the order of the file."""
        return tuple(image.image() for image in self.images)
