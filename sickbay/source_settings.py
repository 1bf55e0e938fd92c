"""Settings of where signals come from: Prometheus, and what is pushed here.

A secret is never a value here. Settings name the file or the environment variable that holds it.
"""

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from sickbay.section import Section

METRIC = re.compile(r"^[A-Za-z_:][A-Za-z0-9_:]*$")
_USER_IN_URL = re.compile(r"://[^/?#]*@")
Label = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class PrometheusSettings(Section):
    """Metrics pages out of Prometheus. Without a url each node's own page is read."""

    url: str = ""
    token_file: Path | None = None
    token_env: str = ""
    user: str = ""
    password_file: Path | None = None
    password_env: str = ""
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    timeout_s: float = Field(default=10.0, gt=0)
    at_once: int = Field(default=4, ge=1, le=64)
    stale_after_s: float = Field(default=60.0, gt=0)
    matcher: str = Field(default="", pattern=r"^[^{}]*$")
    metrics: dict[str, str] = Field(default_factory=dict)
    node_labels: tuple[Label, ...] = ("Hostname", "hostname", "node", "instance")
    node_pattern: str = r"^(.+?)(?::\d+)?$"
    uuid_labels: tuple[Label, ...] = ("UUID", "uuid")
    index_labels: tuple[Label, ...] = ("gpu",)
    bus_id_labels: tuple[Label, ...] = ("pci_bus_id",)

    @field_validator("url")
    @classmethod
    def _no_secret(cls, url: str) -> str:
        if _USER_IN_URL.search(url):
            raise ValueError("a user in the url would be shown: use user and password_file")
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("the url begins with http:// or https://")
        return url

    @field_validator("metrics")
    @classmethod
    def _names(cls, metrics: dict[str, str]) -> dict[str, str]:
        wrong = [n for pair in metrics.items() for n in pair if not METRIC.match(n)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no metric name")
        return metrics

    @field_validator("node_pattern")
    @classmethod
    def _one_group(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        if groups < 1:
            raise ValueError("its first group is the node's id: it has no group")
        return pattern

    @model_validator(mode="after")
    def _pairs(self) -> "PrometheusSettings":
        if (self.cert_file is None) != (self.key_file is None):
            missing = "key_file" if self.key_file is None else "cert_file"
            raise ValueError(f"a client certificate is two files: {missing} is missing")
        token = self.token_file is not None or bool(self.token_env)
        if token and self.user:
            raise ValueError("a token and a user are both given: keep one")
        return self


class PushSettings(Section):
    """The address where signals and events are pushed to. Port 0: nothing listens."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    token_file: Path | None = None
    token_env: str = ""
    cert_file: Path | None = None
    key_file: Path | None = None
    longest_bytes: int = Field(default=1_000_000, ge=1_000)
    most_items: int = Field(default=1_000, ge=1)
    fresh_s: float = Field(default=120.0, gt=0)
    keep_s: float = Field(default=86_400.0, ge=3_600)

    @model_validator(mode="after")
    def _pair(self) -> "PushSettings":
        if (self.cert_file is None) != (self.key_file is None):
            missing = "key_file" if self.key_file is None else "cert_file"
            raise ValueError(f"a server's certificate is two files: {missing} is missing")
        return self
