"""A Temporal cluster as a company has it: TLS with client certificates and an API key in front.

The development server has neither, so a gRPC front stands before it: it ends TLS, asks for a client
certificate and an API key, and passes every call on, byte for byte.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import trustme

LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Forward(grpc.GenericRpcHandler):
    """Passes any unary call on, once its API key is the right one."""

    def __init__(self, channel: grpc.aio.Channel, front: "Front") -> None:
        self._channel = channel
        self._front = front

    def service(self, details):
        method = details.method

        async def call(request, context):
            metadata = {k: v for k, v in context.invocation_metadata() if not k.startswith("grpc-")}
            self._front.seen.append(metadata.get("authorization"))
            wanted = self._front.api_key
            if wanted and metadata.get("authorization") != f"Bearer {wanted}":
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request unauthorized.")
            kept = [(k, v) for k, v in metadata.items() if k in {"client-name", "client-version"}]
            try:
                return await self._channel.unary_unary(method)(
                    request, metadata=kept, timeout=context.time_remaining()
                )
            except grpc.aio.AioRpcError as error:
                details_bin = [
                    (k, v) for k, v in error.trailing_metadata() if k == "grpc-status-details-bin"
                ]
                await context.abort(error.code(), error.details() or "", tuple(details_bin))

        return grpc.unary_unary_rpc_method_handler(call)


@dataclass
class Front:
    """The gRPC front of a cluster, and the papers it knows."""

    address: str
    authority: trustme.CA
    folder: Path
    api_key: str = ""
    seen: list[str | None] = field(default_factory=list)

    def papers(self, name: str = "client", *, authority: trustme.CA | None = None) -> str:
        """Certificate and key of a client, as `[temporal.tls]` lines without the authority."""
        issued = (authority or self.authority).issue_cert(f"{name}@example.net")
        cert, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(p.bytes() for p in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return f'cert_file = "{cert}"\nkey_file = "{key}"\n'

    def trust(self, authority: trustme.CA | None = None, *, name: str = "ca") -> str:
        """The authority's certificate as a `[temporal.tls]` line."""
        path = self.folder / f"{name}.pem"
        (authority or self.authority).cert_pem.write_to_path(str(path))
        return f'ca_file = "{path}"\n'


@contextlib.asynccontextmanager
async def opened_front(target: str, *, folder: Path, tls: bool) -> AsyncIterator[Front]:
    """A front before the Temporal server at `target`."""
    authority = trustme.CA()
    server_cert = authority.issue_cert("localhost", "temporal.example.net")
    channel = grpc.aio.insecure_channel(target, options=LIMITS)
    server = grpc.aio.server(options=LIMITS)
    if tls:
        credentials = grpc.ssl_server_credentials(
            [(
                server_cert.private_key_pem.bytes(),
                b"".join(p.bytes() for p in server_cert.cert_chain_pems),
            )],
            root_certificates=authority.cert_pem.bytes(),
            require_client_auth=True,
        )  # fmt: skip
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    front = Front(address=f"localhost:{port}", authority=authority, folder=folder)
    server.add_generic_rpc_handlers((Forward(channel, front),))
    await server.start()
    try:
        yield front
    finally:
        await server.stop(grace=0)
        await channel.close()


@pytest_asyncio.fixture
async def front(temporal_local, tmp_path) -> AsyncIterator[Front]:
    """A front with TLS and client certificates; set `api_key` to ask for one too."""
    target = temporal_local.client.service_client.config.target_host
    async with opened_front(target, folder=tmp_path, tls=True) as opened:
        yield opened


@pytest.fixture
def forget_secrets():
    """What a test remembers as a secret does not redact the next test's lines."""
    from sickbay import secret_refs

    before = set(secret_refs._known)
    yield
    secret_refs._known.clear()
    secret_refs._known.update(before)
