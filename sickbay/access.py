"""How to reach Temporal: settings first, then `TEMPORAL_*` variables, then a profile's file.

Each field is decided on its own. A profile's file is read only when a profile or a file is named,
so that a developer's own default profile never sends a fleet to another cluster.
"""

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.envconfig import ClientConfigProfile, ClientConfigTLS
from temporalio.service import TLSConfig

from sickbay.cluster_settings import TemporalSettings, TlsSettings
from sickbay.errors import UsageError
from sickbay.secret_refs import process_environment, read_bytes, read_secret, remember

DEFAULT_NAMESPACE = "default"
PROFILE_VARIABLES = ("TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE")


@dataclass(frozen=True)
class Access:
    """All a client needs to connect. Secrets are left out of its representation."""

    address: str
    namespace: str = DEFAULT_NAMESPACE
    tls: TLSConfig | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    cert_files: tuple[Path, Path] | None = None
    tls_because: str = ""


def access_of(
    temporal: TemporalSettings, *, environ: Mapping[str, str] | None = None
) -> Access | None:
    """The access these settings and the environment give; None when nobody names an address.

    Raises:
        UsageError: a file or variable named cannot be read, a certificate does not fit its key, a
            profile does not exist, or an API key would travel in the clear.
    """
    profile = _profile(temporal, environ=environ)
    address = temporal.address or profile.address or ""
    if not address:
        return None
    _check_address(address)
    key = read_secret(
        file=temporal.api_key_file, env=temporal.api_key_env, field="temporal.api_key",
        environ=environ,
    )  # fmt: skip
    if key is None and profile.api_key:
        key = remember(profile.api_key)
    tls, because = _tls(temporal.tls, profile=profile, key=key)
    if key is not None and tls is None and not _is_loopback(address):
        raise UsageError(
            f"the API key would travel to {address} unencrypted",
            field="temporal.tls.enabled",
            remedy="set temporal.tls.enabled = true, or remove the API key",
        )
    own = temporal.tls
    return Access(
        address=address,
        namespace=temporal.namespace or profile.namespace or DEFAULT_NAMESPACE,
        tls=tls,
        api_key=key,
        metadata=dict(profile.grpc_meta),
        cert_files=(own.cert_file, own.key_file) if own.cert_file and own.key_file else None,
        tls_because=because,
    )


def _profile(
    temporal: TemporalSettings, *, environ: Mapping[str, str] | None
) -> ClientConfigProfile:
    """What Temporal's own configuration says, where these settings let it."""
    env = process_environment() if environ is None else environ
    named = temporal.profile or temporal.config_file
    if not temporal.environment and not named:
        return ClientConfigProfile()
    if temporal.config_file is not None:
        read_bytes(temporal.config_file, field="temporal.config_file")
    use_file = bool(named) or any(env.get(name) for name in PROFILE_VARIABLES)
    try:
        return ClientConfigProfile.load(
            temporal.profile or None,
            config_source=temporal.config_file,
            disable_file=not use_file,
            disable_env=not temporal.environment,
            override_env_vars=dict(env),
        )
    except RuntimeError as error:
        raise UsageError(
            f"Temporal's own configuration cannot be used: {error}",
            field="temporal.profile",
            remedy="mend the profile or TEMPORAL_* variable, or set temporal.environment = false",
        ) from error


def _tls(
    own: TlsSettings, *, profile: ClientConfigProfile, key: str | None
) -> tuple[TLSConfig | None, str]:
    """The TLS configuration, None for a plain connection, and what switched it on."""
    theirs = profile.tls or ClientConfigTLS()
    because = ""
    if own.wanted:
        because = "temporal.tls"
    elif own.wanted is None and profile.tls is not None:
        because = "" if theirs.disabled else "TEMPORAL_TLS* or a profile"
    elif own.wanted is None and key is not None:
        because = "the API key"
    if not because:
        return None, ""
    given = theirs.to_connect_tls_config() if not theirs.disabled else None
    base = given if isinstance(given, TLSConfig) else TLSConfig()
    config = TLSConfig(
        server_root_ca_cert=_own(own.ca_file, "ca_file") or base.server_root_ca_cert,
        domain=own.server_name or base.domain,
        client_cert=_own(own.cert_file, "cert_file") or base.client_cert,
        client_private_key=_own(own.key_file, "key_file") or base.client_private_key,
    )
    _check_certificates(own)
    return config, because


def _own(file: Path | None, name: str) -> bytes | None:
    return None if file is None else read_bytes(file, field=f"temporal.tls.{name}")


def _check_certificates(own: TlsSettings) -> None:
    """Refuse files that are no certificates, or a key that is not the certificate's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if own.ca_file is not None:
        try:
            context.load_verify_locations(own.ca_file)
        except ssl.SSLError as error:
            raise UsageError(
                f"temporal.tls.ca_file: {own.ca_file} holds no certificate",
                field="temporal.tls.ca_file",
                remedy="name the PEM file of the authority that signed Temporal's certificate",
            ) from error
    if own.cert_file is not None and own.key_file is not None:
        try:
            # An encrypted key would otherwise be asked for on the terminal.
            context.load_cert_chain(own.cert_file, own.key_file, password=lambda: b"")
        except ssl.SSLError as error:
            reason = (error.reason or "not PEM").replace("_", " ").lower()
            raise UsageError(
                f"temporal.tls: {own.cert_file} and {own.key_file} are no certificate and its"
                f" unencrypted private key ({reason})",
                field="temporal.tls.key_file",
                remedy="name the PEM file of the certificate and the key it was made with",
            ) from error


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:  # noqa: PLR2004 - TCP's range
        raise UsageError(
            f"{address!r} is no address of Temporal",
            field="temporal.address",
            remedy="write HOST:PORT, e.g. temporal.example.net:7233",
        )
