"""Reads new kernel records of each node from systemd-journal-gatewayd.

Only the kernel's own records count (`_TRANSPORT=kernel`): a program that prints an Xid into the log
is not the kernel. The first call for a node looks back over the newest records, later calls go on
from the cursor of the last one.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from sickbay.ports import KernelEntry

_RANGE_REFUSED = (httpx.codes.BAD_REQUEST, httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE)


@dataclass(frozen=True)
class NewEntries:
    """New kernel records of one node, or why they could not be had."""

    node: str
    entries: tuple[KernelEntry, ...] = ()
    error: str = ""


@dataclass
class JournalGateway:
    """Kernel records by node.

    Args:
        url_of: URL of the gateway's `/entries` by node id.
        client: an HTTP client; its owner closes it.
        at_once: most requests in flight.
        timeout_s: longest wait for one answer.
        batch: most records of one answer; the rest comes with the next call.
        look_back: records looked at on the first call for a node.
    """

    url_of: Mapping[str, str]
    client: httpx.AsyncClient
    at_once: int = 32
    timeout_s: float = 10.0
    batch: int = 1000
    look_back: int = 1000
    _cursors: dict[str, str] = field(default_factory=dict)
    _from_head: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.at_once)

    async def read(self, nodes: Sequence[str]) -> list[NewEntries]:
        """The records newer than the last call, per node asked, in the same order."""
        return list(await asyncio.gather(*(self._read_one(node) for node in nodes)))

    async def _read_one(self, node: str) -> NewEntries:
        url = self.url_of.get(node)
        if url is None:
            return NewEntries(node)
        async with self._free:
            try:
                answer = await self.client.get(
                    url,
                    params={"_TRANSPORT": "kernel"},
                    headers={"Accept": "application/json", "Range": self._range(node)},
                    timeout=self.timeout_s,
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return NewEntries(node, error=f"{type(error).__name__}: {error}")
        if answer.status_code in _RANGE_REFUSED:
            # Either the journal was rotated away beneath the cursor, or this gateway cannot count
            # back from the end: look anew; identity removes what was seen before.
            if self._cursors.pop(node, None) is None:
                self._from_head.add(node)
            return NewEntries(node, error=f"range refused: HTTP {answer.status_code}")
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            return NewEntries(node, error=f"HTTP {answer.status_code}")
        return NewEntries(node, self._entries(node, answer.text))

    def _range(self, node: str) -> str:
        """From behind the cursor; without one, the newest records back from the end."""
        cursor = self._cursors.get(node)
        if cursor is None and node in self._from_head:
            return f"entries=:0:{self.batch}"
        if cursor is None:
            return f"entries=:-{self.look_back}:{self.look_back}"
        return f"entries={cursor}:1:{self.batch}"

    def _entries(self, node: str, text: str) -> tuple[KernelEntry, ...]:
        found = []
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if not isinstance(row, dict):
                continue
            cursor = row.get("__CURSOR")
            if isinstance(cursor, str):
                self._cursors[node] = cursor
            entry = _entry(row)
            if entry is not None:
                found.append(entry)
        return tuple(found)


def _entry(row: Mapping[str, Any]) -> KernelEntry | None:
    if row.get("_TRANSPORT") != "kernel":
        return None
    try:
        at_us = int(row["__REALTIME_TIMESTAMP"])
        monotonic_us = int(row["__MONOTONIC_TIMESTAMP"])
        at = datetime.fromtimestamp(at_us / 1e6, tz=UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
    message = row.get("MESSAGE")
    # Records that are not plain text come as arrays of bytes.
    if isinstance(message, list):
        try:
            message = bytes(message).decode("utf-8", "replace")
        except (TypeError, ValueError):
            return None
    if not isinstance(message, str):
        return None
    return KernelEntry(str(row.get("_BOOT_ID", "")), monotonic_us, message, at)
