"""Settings of a Temporal cluster: access, encryption of payloads, metrics.

A secret is never a value here. Settings name the file or the environment variable that holds it, so
that they can be printed, saved for child processes and kept in version control.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from sickbay.section import Section

KeyId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Port = Annotated[int, Field(ge=0, le=65535)]


class TlsSettings(Section):
    """TLS to Temporal. On when `enabled` says so, or when a file or an API key is given."""

    enabled: bool | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    @property
    def wanted(self) -> bool | None:
        """Whether these settings ask for TLS; None when they say nothing."""
        if self.enabled is not None:
            return self.enabled
        said = (self.ca_file, self.cert_file, self.key_file, self.server_name or None)
        return True if any(value is not None for value in said) else None

    @model_validator(mode="after")
    def _pair(self) -> "TlsSettings":
        if (self.cert_file is None) != (self.key_file is None):
            missing = "key_file" if self.key_file is None else "cert_file"
            raise ValueError(f"a client certificate is two files: {missing} is missing")
        return self


class TemporalSettings(Section):
    """Which Temporal server. Without an address the embedded development server is started."""

    address: str = ""
    namespace: str = ""
    port: Port = 7233
    ui_port: Port = 8233
    tls: TlsSettings = TlsSettings()
    api_key_file: Path | None = None
    api_key_env: str = ""
    environment: bool = True
    profile: str = ""
    config_file: Path | None = None


class CodecKey(Section):
    """One key of the payload codec: 32 bytes as base64 or hex, in a file or in a variable."""

    id: KeyId
    file: Path | None = None
    env: str = ""

    @model_validator(mode="after")
    def _one_place(self) -> "CodecKey":
        if (self.file is None) == (not self.env):
            raise ValueError(f"key {self.id!r} needs one of file and env")
        return self


class CodecSettings(Section):
    """Encryption of what Temporal stores. Without an active key nothing new is encrypted."""

    keys: tuple[CodecKey, ...] = ()
    active: str = ""
    server_token_file: Path | None = None
    server_token_env: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> "CodecSettings":
        ids = [key.id for key in self.keys]
        double = sorted({i for i in ids if ids.count(i) > 1})
        if double:
            raise ValueError(f"key id {double[0]!r} is given twice")
        if self.active and self.active not in ids:
            raise ValueError(f"active key {self.active!r} is not among keys ({', '.join(ids)})")
        return self


class MetricsSettings(Section):
    """Prometheus pages of the worker processes. Port 0: no page."""

    host: str = "127.0.0.1"
    control_port: Port = 0
    node_port: Port = 0

    def port_of(self, process: str) -> int:
        """The port of a kind of process, 0 for none."""
        return {"control": self.control_port, "node": self.node_port}.get(process, 0)
