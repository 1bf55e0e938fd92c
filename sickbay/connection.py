"""Connecting to Temporal: every client and worker of sickbay comes from here.

So that the access of the settings and the payload codec are the same everywhere.
"""

import asyncio
import logging
import time

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from sickbay.access import DEFAULT_NAMESPACE, Access, access_of
from sickbay.cluster_settings import CodecSettings
from sickbay.codec import data_converter
from sickbay.connection_probe import Cause, cause_of, refused_key
from sickbay.errors import Unreachable, UsageError
from sickbay.settings import Settings

log = logging.getLogger(__name__)

RETRY_EVERY_S = 1.0
# A server that accepts and then says nothing would be waited for without an end.
ATTEMPT_TIMEOUT_S = 10.0
SAY_EVERY_S = 10.0
SAY_AFTER_S = 2.0


async def open_client(settings: Settings, *, wait_s: float | None = None) -> Client:
    """A client of the Temporal server of these settings, with their codec.

    Keeps trying, and says why in the log, for `wait_s` seconds, or for ever when it is None. With a
    limit, what will not change by waiting (a wrong certificate or key) ends it at once.

    Raises:
        UsageError: the settings cannot work, e.g. a file is missing or no address is named.
        Unreachable: no server answered in time, or it refused us; the message says why.
    """
    access = access_of(settings.temporal)
    if access is None:
        raise UsageError(
            "no Temporal server is named",
            field="temporal.address",
            remedy="set temporal.address, or TEMPORAL_ADDRESS",
        )
    converter = data_converter(settings.codec)
    return await _dial(access, converter=converter, wait_s=wait_s)


async def connect(
    address: str, *, namespace: str = DEFAULT_NAMESPACE, wait_s: float | None = None
) -> Client:
    """A client of a server without TLS, API key and codec: the development server.

    Raises as `open_client`.
    """
    access = Access(address=address, namespace=namespace or DEFAULT_NAMESPACE)
    converter = data_converter(CodecSettings())
    return await _dial(access, converter=converter, wait_s=wait_s)


async def _dial(access: Access, *, converter: DataConverter, wait_s: float | None) -> Client:
    began = time.monotonic()
    said = began - SAY_EVERY_S + SAY_AFTER_S
    while True:
        try:
            attempt = _attempt(access, converter=converter)
            return await asyncio.wait_for(attempt, timeout=ATTEMPT_TIMEOUT_S)
        except (RuntimeError, RPCError, TimeoutError) as error:
            cause = await _cause(error, access=access)
            now = time.monotonic()
            if wait_s is not None and (cause.lasting or now - began >= wait_s):
                raise Unreachable(
                    f"Temporal at {access.address} {cause.text}",
                    field=cause.field,
                    remedy=cause.remedy,
                ) from error
            if now - said >= SAY_EVERY_S:
                said = now
                log.warning(
                    "Temporal at %s %s: trying on (remedy: %s)",
                    access.address, cause.text, cause.remedy,
                )  # fmt: skip
            await asyncio.sleep(RETRY_EVERY_S)


async def _attempt(access: Access, *, converter: DataConverter) -> Client:
    client = await Client.connect(
        access.address,
        namespace=access.namespace,
        api_key=access.api_key,
        tls=access.tls or False,
        rpc_metadata=access.metadata,
        data_converter=converter,
    )
    await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=access.namespace)
    )
    return client


async def _cause(error: Exception, *, access: Access) -> Cause:
    if not isinstance(error, RPCError):
        return await cause_of(error, access=access)
    if error.status == RPCStatusCode.NOT_FOUND:
        return Cause(
            f"has no namespace {access.namespace!r}",
            field="temporal.namespace",
            remedy=f"create it (`temporal operator namespace create {access.namespace}`) or name"
            " another",
        )
    if error.status in {RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED}:
        return refused_key(access)
    return Cause(f"does not answer: {error.message}")
