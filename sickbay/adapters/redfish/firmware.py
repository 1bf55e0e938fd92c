"""Firmware of a node by its management controller's update service.

The image's bytes are read and compared with the allow-list before anything is sent. A flash is
asked for once; an answer that got lost is ambiguous, and only the versions tell what happened.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import requests
from sushy import exceptions as said

from sickbay.adapters.redfish.connection import Connections, Talk
from sickbay.contracts.firmware import FlashStart, FlashTask, TaskState
from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.firmware import FirmwareImage
from sickbay.errors import (
    BmcCertificate,
    BmcError,
    BmcPassword,
    BmcRefused,
    BmcUnknownSystem,
    BmcUnreachable,
)
from sickbay.readers.redfish_task import component_versions, flash_task, of_system, task_link

CHUNK_BYTES = 1 << 20
MOST_PAGES = 100
SIMPLE_UPDATE = "#UpdateService.SimpleUpdate"
ACCEPTED = 202
SERVER_ERROR = 500


class _NotSent(BmcRefused):
    """Found wrong before anything was sent."""


class RedfishFirmware:
    """The Firmware port.

    Args:
        connections: the way to the controllers.
        upload_timeout_s: longest wait for the answer to an image that was sent.
    """

    def __init__(self, connections: Connections, *, upload_timeout_s: float = 300.0) -> None:
        self._connections = connections
        self._upload_timeout_s = upload_timeout_s

    async def versions(self, node: str) -> Mapping[str, str]:
        """Active version per component, empty where the controller tells none.

        Raises:
            BmcError: the controller gives no whole answer.
        """
        alone = self._alone()

        def read(talk: Talk) -> dict[str, str]:
            found = list(_inventory(talk))
            return component_versions(found, system=talk.system_path, alone=alone)

        return await self._connections.call(node, read)

    async def flash(
        self, node: str, *, image: FirmwareImage, components: Sequence[str]
    ) -> FlashStart:
        """Check the digest, send the image for these components; one attempt."""
        alone = self._alone()

        def prepare(talk: Talk) -> _Ready:
            return _prepare(talk, image, components, alone=alone)

        def send(talk: Talk) -> str:
            return self._send(talk, ready, image=image)

        try:
            ready = await self._connections.call(node, prepare)
        except BmcError as error:
            # Only questions were asked so far.
            return FlashStart(Effect(_unasked(error), error.message), sent=False)
        try:
            task = await self._connections.call(node, send)
        except BmcError as error:
            return _not_accepted(error)
        return FlashStart(Effect(Outcome.SUCCEEDED, "the image was accepted"), task=task)

    async def task(self, node: str, *, task: str) -> FlashTask:
        """How a flash stands. Gone when the controller does not know the task (any more)."""
        try:
            return await self._connections.call(node, lambda talk: _task(talk, task))
        except BmcUnknownSystem as error:
            return FlashTask(TaskState.GONE, detail=error.message)
        except BmcError as error:
            return FlashTask(TaskState.UNKNOWN, detail=error.message)

    def _alone(self) -> bool:
        """One controller per node serves that node only, whatever its systems are called."""
        return "{node}" in self._connections.access.url

    def _send(self, talk: Talk, ready: "_Ready", *, image: FirmwareImage) -> str:
        act = self._pull if _is_remote(image) else self._push
        answer = act(talk, ready, image=image)
        try:
            body = answer.json() if answer.content else {}
        except ValueError:
            body = {}
        return task_link(answer.headers, body if isinstance(body, dict) else {})

    def _pull(self, talk: Talk, ready: "_Ready", *, image: FirmwareImage) -> Any:
        body = {
            "ImageURI": image.source,
            "TransferProtocol": image.source.partition("://")[0].upper(),
            "Targets": ready.targets,
        }
        return talk.conn.post(ready.where, data=body, timeout=self._upload_timeout_s)

    def _push(self, talk: Talk, ready: "_Ready", *, image: FirmwareImage) -> Any:
        with _opened(image) as content:
            # Once more, of the very bytes that are sent: the file may have changed meanwhile.
            _check(_chunks(content), image)
            content.seek(0)
            parameters = json.dumps({"Targets": ready.targets})
            parts = {
                "UpdateParameters": (None, parameters, "application/json"),
                "UpdateFile": (Path(image.source).name, content, "application/octet-stream"),
            }
            return talk.conn.post(ready.where, files=parts, timeout=self._upload_timeout_s)


@dataclass(frozen=True)
class _Ready:
    """Where the image goes, and which members of the inventory it is for."""

    where: str
    targets: list[str]


def _prepare(talk: Talk, image: FirmwareImage, components: Sequence[str], *, alone: bool) -> _Ready:
    """All that must be so before an image is sent. Raises `BmcRefused`."""
    members = of_system(_inventory(talk), system=talk.system_path, alone=alone)
    missing = [c for c in components if c not in members]
    if missing:
        raise _NotSent(f"the controller has no component {', '.join(missing)}")
    service = _service(talk)
    if _is_remote(image):
        where = ((service.get("Actions") or {}).get(SIMPLE_UPDATE) or {}).get("target")
        without = "offers no SimpleUpdate: give the image as a path, to be pushed"
    else:
        where = service.get("MultipartHttpPushUri")
        without = "takes no pushed image (no MultipartHttpPushUri)"
    if not where:
        raise _NotSent(f"the controller {without}")
    if _is_remote(image):
        _check(_download(image.source), image)
    else:
        with _opened(image) as content:
            _check(_chunks(content), image)
    return _Ready(str(where), targets=[str(members[c].get("@odata.id")) for c in components])


def _is_remote(image: FirmwareImage) -> bool:
    return "://" in image.source


def _unasked(error: BmcError) -> Outcome:
    refused = isinstance(error, BmcRefused) and (error.busy or error.status >= SERVER_ERROR)
    passing = isinstance(error, BmcUnreachable) or refused
    return Outcome.TRANSIENT if passing else Outcome.PERMANENT


def _not_accepted(error: BmcError) -> FlashStart:
    """What a failure of the one request that carries the image means."""
    if isinstance(error, BmcUnreachable) and not error.sent:
        return FlashStart(Effect(Outcome.TRANSIENT, error.message), sent=False)
    if isinstance(error, BmcRefused):
        if error.busy:
            return FlashStart(Effect(Outcome.TRANSIENT, error.message), sent=False)
        if error.status < SERVER_ERROR:
            sent = not isinstance(error, _NotSent)
            return FlashStart(Effect(Outcome.PERMANENT, error.message), sent=sent)
    if isinstance(error, BmcCertificate | BmcPassword | BmcUnknownSystem):
        return FlashStart(Effect(Outcome.PERMANENT, error.message), sent=False)
    # Lost, garbled, or failed inside the controller: perhaps after the flash began.
    return FlashStart(Effect(Outcome.AMBIGUOUS, error.message))


# --- what the controller has ----------------------------------------------------------------------


def _service(talk: Talk) -> dict[str, Any]:
    link = talk.root.json.get("UpdateService", {}).get("@odata.id")
    if not link:
        raise _NotSent("the controller has no update service")
    return talk.get(link)


def _inventory(talk: Talk) -> Iterator[dict[str, Any]]:
    """Every member of the firmware inventory, page by page."""
    page = (_service(talk).get("FirmwareInventory") or {}).get("@odata.id")
    if not page:
        raise _NotSent("the controller has no firmware inventory")
    features = talk.root.json.get("ProtocolFeaturesSupported") or {}
    if (features.get("ExpandQuery") or {}).get("NoLinks"):
        page = f"{page}?$expand=.($levels=1)"
    for _ in range(MOST_PAGES):
        body = talk.get(page)
        for member in body.get("Members") or []:
            yield member if "Id" in member else talk.get(member["@odata.id"])
        page = body.get("Members@odata.nextLink")
        if not page:
            return
    raise BmcRefused(f"the firmware inventory has more than {MOST_PAGES} pages")


def _task(talk: Talk, link: str) -> FlashTask:
    try:
        answer = talk.conn.get(link)
    except said.ResourceNotFoundError as error:
        raise BmcUnknownSystem(f"no task {link}") from error
    body = answer.json() if answer.content else {}
    if isinstance(body, dict) and "TaskState" in body:
        return flash_task(body)
    # A task monitor: 202 while it runs, then the answer of the request itself.
    if answer.status_code == ACCEPTED:
        return FlashTask(TaskState.RUNNING, detail="accepted")
    return FlashTask(TaskState.SUCCEEDED, detail=f"HTTP {answer.status_code}")


# --- the image ------------------------------------------------------------------------------------


def _opened(image: FirmwareImage) -> IO[bytes]:
    try:
        return Path(image.source).open("rb")
    except OSError as error:
        why = f"the firmware image {image.source} cannot be read ({error.strerror})"
        raise _NotSent(why) from error


def _chunks(content: IO[bytes]) -> Iterator[bytes]:
    while chunk := content.read(CHUNK_BYTES):
        yield chunk


def _download(source: str) -> Iterator[bytes]:
    try:
        with requests.get(source, stream=True, timeout=30) as answer:
            answer.raise_for_status()
            yield from answer.iter_content(CHUNK_BYTES)
    except requests.RequestException as error:
        raise _NotSent(
            f"the firmware image {source} cannot be read ({type(error).__name__})"
        ) from error


def _check(content: Iterator[bytes], image: FirmwareImage) -> None:
    """Compare the bytes with the allow-list.

    Raises:
        BmcRefused: they differ; both digests are named.
    """
    digest = hashlib.sha256()
    for chunk in content:
        digest.update(chunk)
    found = digest.hexdigest()
    if found != image.sha256.lower():
        raise _NotSent(
            f"the firmware image {image.source} has SHA-256 {found}, "
            f"but the allow-list wants {image.sha256.lower()}: nothing was sent"
        )
