"""Connections to management controllers, and what their failures mean.

The library repeats a request whose answer was lost, which would repeat an act; here every request
is sent once. Each connection is used by one thread at a time and dropped after a failure.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import requests
import sushy
from sushy import auth, connector
from sushy import exceptions as said
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from sickbay.errors import (
    BmcCertificate,
    BmcError,
    BmcGarbled,
    BmcPassword,
    BmcRefused,
    BmcUnknownSystem,
    BmcUnreachable,
)

T = TypeVar("T")

CHECK_URL = "check bmc.url and that the management network is reachable from here"
BUSY = frozenset({409, 423, 429, 503})
SHOWN = 200


@dataclass(frozen=True)
class Access:
    """How controllers are reached.

    Args:
        url: the controller's address; `{node}` stands for the node's id.
        system: its name for the node's system; `{node}` stands for the node's id.
        username: the account.
        password: gives the password when a connection is made, so that it can be rotated.
        verify: a file of trusted authorities, True for the machine's own, False for no check.
        timeout_s: longest wait for one answer.
        at_once: most controllers talked to at the same time.
    """

    url: str
    system: str = "{node}"
    username: str = ""
    password: Callable[[], str] = field(default=lambda: "", repr=False)
    verify: str | bool = True
    timeout_s: float = 10.0
    at_once: int = 16

    def url_of(self, node: str) -> str:
        """The address of a node's controller."""
        return self.url.replace("{node}", node).rstrip("/")

    def system_of(self, node: str) -> str:
        """The controller's name for the node."""
        return self.system.replace("{node}", node)


class _Once(connector.Connector):  # type: ignore[misc]  # not typed
    """Sends every request once: a repeat after a lost answer would be a second act."""

    def _op(self, method: str, path: str = "", **more: Any) -> Any:
        more.setdefault("server_side_retries_left", 0)
        return super()._op(method, path, **more)


@dataclass
class Talk:
    """One open connection: the library's root resource and the raw connector below it."""

    root: Any
    conn: Any
    account: Any
    system_path: str

    def get(self, path: str) -> dict[str, Any]:
        """A resource's own document, as the controller sent it."""
        body = self.conn.get(path).json()
        if not isinstance(body, dict):
            raise TypeError(f"{path} is no object")
        return body

    def system(self) -> Any:
        """The node's system, read now."""
        return self.root.get_system(self.system_path)

    def close(self) -> None:
        """End the session on the controller; one that does not answer ends it by itself."""
        with contextlib.suppress(Exception):
            self.account.close()
        self.conn.close()


class Connections:
    """Open connections by node, used from threads of their own."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._threads = ThreadPoolExecutor(access.at_once, thread_name_prefix="bmc")
        self._open: dict[str, Talk] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    async def call(self, node: str, work: Callable[[Talk], T]) -> T:
        """Run `work` on the node's connection, one at a time per node.

        Raises:
            BmcError: one of its kinds, with a sentence that names the node.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._call, node, work)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._close_all)
        self._threads.shutdown(wait=False)

    def _close_all(self) -> None:
        with self._guard:
            talks, self._open = list(self._open.values()), {}
        for talk in talks:
            talk.close()

    def _call(self, node: str, work: Callable[[Talk], T]) -> T:
        with self._guard:
            lock = self._locks.setdefault(node, threading.Lock())
        with lock:
            try:
                with _translated(node, self.access.url_of(node)):
                    return work(self._talk(node))
            except BmcError:
                self._drop(node)
                raise

    def _drop(self, node: str) -> None:
        talk = self._open.pop(node, None)
        if talk is not None:
            talk.conn.close()

    def _talk(self, node: str) -> Talk:
        known = self._open.get(node)
        if known is not None:
            return known
        access = self.access
        conn = _Once(
            access.url_of(node),
            verify=access.verify,
            server_side_retries=1,
            default_request_timeout=access.timeout_s,
        )
        account = auth.SessionOrBasicAuth(access.username, access.password())
        try:
            root = sushy.Sushy(access.url_of(node), auth=account, connector=conn)
        except BaseException:
            conn.close()
            raise
        # Else its destructor talks to the network, from whatever thread collects it.
        root._auth = None  # noqa: SLF001
        systems = root.json.get("Systems", {}).get("@odata.id", "/redfish/v1/Systems")
        path = f"{str(systems).rstrip('/')}/{access.system_of(node)}"
        talk = Talk(root, conn=conn, account=account, system_path=path)
        self._open[node] = talk
        return talk


@contextlib.contextmanager
def _translated(node: str, url: str) -> Iterator[None]:
    """Turn the library's failures into ours, one sentence each."""
    try:
        yield
    except BmcError:
        raise
    except said.ConnectionError as error:
        raise _no_answer(node, url, error) from error
    except said.AccessError as error:
        raise BmcPassword(
            f"the controller of {node} refuses our name or password (HTTP {error.status_code})",
            field="bmc.username",
            remedy="check bmc.username and the password it refers to",
        ) from error
    except said.ResourceNotFoundError as error:
        raise BmcUnknownSystem(
            f"the controller of {node} knows no such resource: {error}",
            field="bmc.system",
            remedy="check bmc.system against the members of its Systems collection",
        ) from error
    except said.HTTPError as error:
        text = f"the controller of {node} refuses (HTTP {error.status_code}): {_detail(error)}"
        status = error.status_code
        raise BmcRefused(text, busy=status in BUSY, status=status) from error
    except (said.SushyError, ValueError, TypeError, KeyError, AttributeError) as error:
        text = f"the answer of the controller of {node} makes no sense: {str(error)[:SHOWN]}"
        raise BmcGarbled(text) from error


def _no_answer(node: str, url: str, error: Exception) -> BmcError:
    cause = error.__context__
    if isinstance(cause, requests.exceptions.SSLError):
        return BmcCertificate(
            f"the certificate of the controller of {node} is not trusted ({url})",
            field="bmc.ca_file",
            remedy="name the authority that signed it in bmc.ca_file",
        )
    sent = not _never_sent(cause)
    what = "did not answer a request that was sent" if sent else "cannot be reached"
    return BmcUnreachable(f"the controller of {node} {what} ({url})", sent=sent, remedy=CHECK_URL)


def _never_sent(cause: object) -> bool:
    if isinstance(cause, requests.exceptions.ConnectTimeout):
        return True
    if isinstance(cause, requests.exceptions.ConnectionError) and cause.args:
        reason = getattr(cause.args[0], "reason", None)
        return isinstance(reason, NewConnectionError | ConnectTimeoutError)
    return isinstance(cause, requests.exceptions.InvalidURL)


def _detail(error: Any) -> str:
    return str(error.detail or "no reason given")[:SHOWN]
