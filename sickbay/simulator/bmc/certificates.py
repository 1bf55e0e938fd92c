"""The certificate of the management controllers, signed by an authority of this fleet alone."""

from dataclasses import dataclass
from pathlib import Path

from sickbay.errors import UsageError
from sickbay.simulator.bmc.private import write_private

CA = "bmc_ca.pem"
CERTIFICATE = "bmc_certificate.pem"
KEY = "bmc_key.pem"
NAMES = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Certificates:
    """Where the authority's certificate, the service's own and its key lie."""

    ca: Path
    certificate: Path
    key: Path


def certificates(directory: Path) -> Certificates:
    """The files of this fleet, made once: who trusted them before a restart still does.

    Raises:
        UsageError: the library that makes certificates is not installed.
    """
    found = Certificates(directory / CA, directory / CERTIFICATE, directory / KEY)
    # The key is written last, so with it the others are there.
    if not found.key.exists():
        _make(found)
    return found


def _make(files: Certificates) -> None:
    try:
        import trustme  # noqa: PLC0415 - a fleet that has its certificates, or needs none, does without
    except ImportError as error:
        raise UsageError(
            "the management controllers cannot speak TLS: trustme is not installed",
            field="bmc_tls",
            remedy="install sickbay[demo], or set simulator.bmc_tls to false",
        ) from error
    authority = trustme.CA(organization_name="sickbay simulated fleet")
    issued = authority.issue_cert(*NAMES)
    files.ca.write_bytes(authority.cert_pem.bytes())
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    write_private(files.key, issued.private_key_pem.bytes())
