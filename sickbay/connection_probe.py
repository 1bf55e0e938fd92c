"""Why a connection to Temporal fails, in one sentence a person can act on.

The SDK's own error names a layer of its transport. This looks again with the standard library, only
after a failure: name, port, certificate, and whether both sides agree on TLS.
"""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass

from sickbay.access import Access

TIMEOUT_S = 3.0
# The opening bytes of HTTP/2 and an empty SETTINGS frame: what every gRPC client says first.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
TLS_ALERT = 0x15
# What OpenSSL says of an answer that is no TLS.
NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}
UNAUTHENTICATED = ("Unauthenticated", "UNAUTHENTICATED", "PermissionDenied", "PERMISSION_DENIED")


@dataclass(frozen=True)
class Cause:
    """Why it failed and what to do. `lasting`: trying again without a change is of no use."""

    text: str
    field: str = "temporal.address"
    remedy: str = "start it (`sickbay up`) or name another with --temporal HOST:PORT"
    lasting: bool = False


SILENT = Cause("does not answer")


async def cause_of(error: BaseException, *, access: Access) -> Cause:
    """The cause of a failed connect."""
    if any(word in str(error) for word in UNAUTHENTICATED):
        return refused_key(access)
    try:
        return await asyncio.wait_for(_look(access), timeout=2 * TIMEOUT_S)
    except TimeoutError:
        return SILENT


def refused_key(access: Access) -> Cause:
    """The server knows nobody by this API key or certificate."""
    what = "the API key" if access.api_key else "a client without API key"
    return Cause(
        f"refuses {what} in namespace {access.namespace!r}",
        field="temporal.api_key_file",
        remedy="set temporal.api_key_file or _env to a valid key for this namespace",
        lasting=True,
    )


async def _look(access: Access) -> Cause:
    host, _, port = access.address.rpartition(":")
    try:
        return await _speak(access, host=host.strip("[]"), port=int(port))
    except socket.gaierror:
        return Cause(f"does not answer: the name {host} is not known")
    except ConnectionRefusedError:
        return Cause("does not answer: nothing listens there")
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        return SILENT


async def _speak(access: Access, *, host: str, port: int) -> Cause:
    if access.tls is None:
        return await _in_the_clear(host, port=port)
    try:
        context = _context(access)
        name = access.tls.domain or host
        answer = await _greet(host, port=port, context=context, name=name)
    except ssl.SSLCertVerificationError as error:
        return Cause(
            f"shows a certificate that is not accepted: {error.verify_message.rstrip('.')}",
            field="temporal.tls.ca_file",
            remedy="set temporal.tls.ca_file to its authority, or temporal.tls.server_name to the"
            " name in the certificate",
            lasting=True,
        )
    except ssl.SSLError as error:
        return _tls_error(error, access=access)
    except ConnectionResetError:
        return _no_greeting(access)
    return SILENT if answer else _no_greeting(access)


def _tls_error(error: ssl.SSLError, *, access: Access) -> Cause:
    reason = error.reason or ""
    if reason in NO_TLS:
        return Cause(
            f"does not speak TLS, which {access.tls_because or 'the settings'} asked for",
            field="temporal.tls.enabled",
            remedy="set temporal.tls.enabled = false, or temporal.environment = false to ignore"
            " TEMPORAL_* variables",
            lasting=True,
        )
    return _no_greeting(access, reason=reason)


def _no_greeting(access: Access, *, reason: str = "") -> Cause:
    """A server that wants a client certificate says so only after the handshake, if at all."""
    shown = access.tls is not None and access.tls.client_cert is not None
    said = "ALERT" in reason
    if said:
        what = "refuses our client certificate" if shown else "wants a client certificate"
        text = f"{what} ({reason.replace('_', ' ').lower()})"
    else:
        what = "refuse our client certificate" if shown else "want a client certificate"
        text = f"closes the connection after the TLS handshake: it may {what}"
    return Cause(
        text,
        field="temporal.tls.cert_file",
        remedy="set temporal.tls.cert_file and key_file to a certificate its authority signed",
        lasting=said,
    )


async def _in_the_clear(host: str, *, port: int) -> Cause:
    try:
        answer = await _greet(host, port=port, context=None, name=None)
    except ConnectionResetError:
        answer = b""
    if answer[:1] == bytes([TLS_ALERT]) or (
        answer[:6] in {b"", b"HTTP/1"} and await _shakes_hands(host, port=port)
    ):
        return Cause(
            "speaks TLS, and the settings do not ask for it",
            field="temporal.tls.enabled",
            remedy="set temporal.tls.enabled = true, and temporal.tls.ca_file to its authority",
            lasting=True,
        )
    return SILENT


async def _shakes_hands(host: str, *, port: int) -> bool:
    """Whether the other side speaks TLS; nothing is sent over it, so trust does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, ssl=context, server_hostname=host),
            timeout=TIMEOUT_S,
        )
    except ssl.SSLError as error:
        # Only an alert is TLS; a connection that just ends is any server that is starting.
        return "ALERT" in (error.reason or "")
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _greet(
    host: str, *, port: int, context: ssl.SSLContext | None, name: str | None
) -> bytes:
    """Say hello as a gRPC client does; the first bytes of the answer, empty for none."""
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection(host, port, ssl=context, server_hostname=name), timeout=TIMEOUT_S
    )
    try:
        writer.write(GREETING)
        await writer.drain()
        return await asyncio.wait_for(reader.read(8), timeout=TIMEOUT_S)
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), timeout=TIMEOUT_S)


def _context(access: Access) -> ssl.SSLContext:
    """The same trust as the client's, for the standard library."""
    authority = access.tls.server_root_ca_cert if access.tls else None
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    context.set_alpn_protocols(["h2"])
    if access.cert_files is not None:
        cert, key = access.cert_files
        context.load_cert_chain(cert, key)
    return context
