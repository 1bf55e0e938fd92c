"""Firmware through Redfish: the inventory, the two ways to start a flash, and its task."""

import ipaddress
import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
from starlette.requests import Request
from starlette.responses import Response

from sickbay.simulator.bmc.behaviours import Behaviour
from sickbay.simulator.bmc.messages import (
    ROOT,
    Declined,
    busy,
    collection,
    document,
    invalid,
    link,
    missing,
    nothing,
)
from sickbay.simulator.bmc.paths import Path, Silence, body_of, path_of
from sickbay.simulator.bmc.tasks import task_resource, task_service
from sickbay.simulator.engine import Engine
from sickbay.simulator.firmware import (
    BadImage,
    Image,
    components,
    family_of,
    read_image,
    version_of,
)
from sickbay.simulator.flashing import Flash
from sickbay.simulator.hardware import Node
from sickbay.simulator.world import NotNow, NotThere

SERVICE = f"{ROOT}/UpdateService"
INVENTORY = f"{SERVICE}/FirmwareInventory"
PUSH = f"{SERVICE}/update-multipart"
TASKS = f"{ROOT}/TaskService/Tasks"
MONITORS = f"{ROOT}/TaskService/TaskMonitors"
LARGEST_IMAGE = 64 * 1024 * 1024
FETCH_TIMEOUT_S = 10.0
ACCEPTED = 202
_TARGET = re.compile(re.escape(INVENTORY) + r"/([^/_]+)_([^/]+)")
_SYSTEM = re.compile(re.escape(ROOT) + r"/Systems/([^/]+)")
_APPLY = {"Immediate": "", "OnReset": "boot"}

Content = Image | BadImage | OSError


class Updates:
    """The update and task services of all nodes."""

    def __init__(
        self,
        engine: Engine,
        *,
        refuse: Callable[..., None],
        reach: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._refuse = refuse
        self._reach = reach

    def paths(self) -> list[Path]:
        """What this part serves."""
        inventory = "/UpdateService/FirmwareInventory"
        return [
            path_of("/UpdateService", {"GET": self._service}),
            path_of(inventory, {"GET": self._inventory}),
            path_of(inventory + "/{node:[^/_]+}_{component}", {"GET": self._component}),
            path_of(
                "/UpdateService/Actions/UpdateService.SimpleUpdate", {"POST": self._simple_update}
            ),
            path_of("/UpdateService/update-multipart", {"POST": self._push}),
            path_of("/TaskService", {"GET": self._task_service}),
            path_of("/TaskService/Tasks", {"GET": self._tasks}),
            path_of("/TaskService/Tasks/{id}", {"GET": self._task}),
            path_of("/TaskService/TaskMonitors/{id}", {"GET": self._monitor}),
        ]

    async def _service(self, _: Request, __: dict[str, str]) -> Response:
        return document(
            {
                "@odata.id": SERVICE,
                "@odata.type": "#UpdateService.v1_14_0.UpdateService",
                "Id": "UpdateService",
                "Name": "Update Service",
                "ServiceEnabled": True,
                "Status": {"State": "Enabled", "Health": "OK"},
                "MaxImageSizeBytes": LARGEST_IMAGE,
                "MultipartHttpPushUri": PUSH,
                "FirmwareInventory": link(INVENTORY),
                "Actions": {
                    "#UpdateService.SimpleUpdate": {
                        "target": f"{SERVICE}/Actions/UpdateService.SimpleUpdate",
                        "TransferProtocol@Redfish.AllowableValues": ["HTTP", "HTTPS"],
                        "@Redfish.OperationApplyTimeSupport": {"SupportedValues": [*_APPLY]},
                    }
                },
            }
        )

    async def _inventory(self, request: Request, _: dict[str, str]) -> Response:
        world = self._engine.world
        world.advance()
        # A controller that cannot be reached has nothing in the collection.
        nodes = [n for n in world.nodes.values() if self._engine.behaviours.reachable(n.name)]
        whole = request.query_params.get("$expand", "")
        members = [
            _member(node, component) if whole else link(_member_path(node, component))
            for node in nodes
            for component in components(node)
        ]
        return document(
            collection(
                INVENTORY,
                kind="SoftwareInventoryCollection",
                name="Firmware Inventory Collection",
                members=members,
            )
        )

    async def _component(self, _: Request, named: dict[str, str]) -> Response:
        node = self._engine.world.node(named["node"])
        if named["component"] not in components(node):
            raise missing(f"{INVENTORY}/{named['node']}_{named['component']}")
        return document(_member(node, named["component"]))

    async def _simple_update(self, request: Request, _: dict[str, str]) -> Response:
        body = await body_of(request)
        uri = body.get("ImageURI")
        if not isinstance(uri, str) or not uri:
            raise invalid("ImageURI is missing.")
        protocol = body.get("TransferProtocol", "HTTP")
        if protocol not in ("HTTP", "HTTPS"):
            raise invalid(
                "TransferProtocol is HTTP or HTTPS.", code="ActionParameterValueNotInList"
            )
        node, targets = self._targets(body)
        needs = _apply_time(body)
        return self._begin(node, targets, await _fetched(uri), needs)

    async def _push(self, request: Request, _: dict[str, str]) -> Response:
        data = await request.body()
        if len(data) > LARGEST_IMAGE:
            raise Declined("The image is too large.", code="PayloadTooLarge", status=413)
        parts = multipart(data, content_type=request.headers.get("content-type", ""))
        if "UpdateParameters" not in parts or "UpdateFile" not in parts:
            raise invalid("The parts UpdateParameters and UpdateFile are wanted.")
        try:
            parameters = json.loads(parts["UpdateParameters"])
        except ValueError as error:
            raise invalid("UpdateParameters is no JSON.", code="MalformedJSON") from error
        if not isinstance(parameters, dict):
            raise invalid("UpdateParameters is no object.", code="MalformedJSON")
        node, targets = self._targets(parameters)
        return self._begin(node, targets, _read(parts["UpdateFile"]), _apply_time(parameters))

    def _targets(self, body: dict[str, Any]) -> tuple[Node, list[str]]:
        """The one node and its components; a whole system stands for what the image fits."""
        wanted = body.get("Targets")
        if (
            not isinstance(wanted, list)
            or not wanted
            or not all(isinstance(t, str) for t in wanted)
        ):
            # Without a target a service of many nodes would flash them all.
            raise invalid("Targets is missing: name firmware of one node, or its system.")
        names: dict[str, None] = {}
        targets: list[str] = []
        for path in wanted:
            match = _TARGET.fullmatch(path) or _SYSTEM.fullmatch(path)
            if match is None:
                raise _no_target(path)
            names[match[1]] = None
            targets += match.groups()[1:]
        if len(names) > 1:
            raise invalid("Targets name more than one node.", code="PropertyValueConflict")
        name = next(iter(names))
        try:
            node = self._engine.world.node(name)
        except NotThere as error:
            raise _no_target(name) from error
        unknown = set(targets) - set(components(node))
        if unknown:
            raise _no_target(min(unknown))
        self._reach(name)
        return node, list(dict.fromkeys(targets))

    def _begin(self, node: Node, targets: list[str], image: Content, needs: str) -> Response:
        if not targets and isinstance(image, Image):
            targets = [c for c in components(node) if family_of(c) == image.family]
        flash, hang_s = self._engine.change(lambda: self._start(node, targets, image, needs))
        if hang_s is not None:
            raise Silence(hang_s)
        # No Retry-After: sushy's own wait (5.14) fails on one given in seconds.
        return nothing(status=ACCEPTED, Location=f"{MONITORS}/{flash.id}")

    def _start(
        self, node: Node, targets: Sequence[str], image: Content, needs: str
    ) -> tuple[Flash, float | None]:
        """The flash that began, and how long its client waits in vain if its answer is lost."""
        self._refuse(node.name, act="flash")
        behaviours = self._engine.behaviours
        try:
            flash = self._engine.flasher.begin(
                node.name,
                targets=targets,
                image=image,
                needs=needs,
                spoiled=behaviours.next_flash(node.name),
            )
        except NotNow as no:
            if no.field == "busy":
                raise busy("An update is in progress.", retry_after_s=30) from no
            raise Declined(
                "The resource is in standby.", code="ResourceInStandby", status=409
            ) from no
        behaviours.take_flash(node.name)
        lost = behaviours.take(node.name, behaviour=Behaviour.LOST_ANSWER, act="flash")
        return flash, None if lost is None else lost.hang_s

    async def _task_service(self, _: Request, __: dict[str, str]) -> Response:
        return document(task_service(TASKS, now=self._engine.world.clock.wall()))

    async def _tasks(self, _: Request, __: dict[str, str]) -> Response:
        world = self._engine.world
        world.advance()
        members = [
            link(f"{TASKS}/{flash.id}")
            for flash in self._engine.flasher.flashes.values()
            if not flash.gone(now_h=world.now_h) and self._engine.behaviours.reachable(flash.node)
        ]
        return document(
            collection(TASKS, kind="TaskCollection", name="Task Collection", members=members)
        )

    async def _task(self, _: Request, named: dict[str, str]) -> Response:
        return document(self._found(named["id"], path=f"{TASKS}/{named['id']}"))

    async def _monitor(self, _: Request, named: dict[str, str]) -> Response:
        body = self._found(named["id"], path=f"{MONITORS}/{named['id']}")
        if body["TaskState"] == "Running":
            where = f"{MONITORS}/{named['id']}"
            return document(body, status=ACCEPTED, Location=where)
        return document(body)

    def _found(self, task_id: str, *, path: str) -> dict[str, Any]:
        """The task as a resource. Raises `Declined`, `Silence`."""
        engine = self._engine
        engine.world.advance()
        flash = engine.flasher.flashes.get(task_id)
        if flash is None:
            raise missing(path)
        self._reach(flash.node)
        engine.change(lambda: engine.flasher.check(flash.node))
        if flash.gone(now_h=engine.world.now_h):
            raise missing(path)
        paths = [f"{INVENTORY}/{flash.node}_{c}" for c in flash.components]
        return task_resource(
            flash,
            path=f"{TASKS}/{flash.id}",
            monitor=f"{MONITORS}/{flash.id}",
            targets=paths,
            now_h=engine.world.now_h,
        )


def multipart(data: bytes, *, content_type: str) -> dict[str, bytes]:
    """The parts of a form by name. Raises `Declined`."""
    found = re.search(r'multipart/form-data.*boundary="?([^";]+)"?', content_type, re.IGNORECASE)
    if found is None:
        raise invalid("multipart/form-data with a boundary is wanted.", code="HeaderInvalid")
    parts: dict[str, bytes] = {}
    for piece in (b"\r\n" + data).split(b"\r\n--" + found[1].encode())[1:]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        name = re.search(rb'[; ]name="?([^";\r]+)"?', head)
        if blank and name is not None:
            parts[name[1].decode(errors="replace")] = content
    return parts


def _member_path(node: Node, component: str) -> str:
    return f"{INVENTORY}/{node.name}_{component}"


def _member(node: Node, component: str) -> dict[str, Any]:
    version = version_of(node, component=component)
    answers = version is not None
    return {
        "@odata.id": _member_path(node, component),
        "@odata.type": "#SoftwareInventory.v1_10_0.SoftwareInventory",
        "Id": component,
        "Name": f"{component} of {node.name}",
        "SoftwareId": family_of(component),
        "Updateable": True,
        "Version": version,
        "Status": {
            "State": "Enabled" if answers else "UnavailableOffline",
            "Health": "OK" if answers else "Critical",
        },
        "RelatedItem": [link(f"{ROOT}/Systems/{node.name}")],
    }


def _apply_time(body: dict[str, Any]) -> str:
    """What the new version waits for: nothing, or a boot. Raises `Declined`."""
    wanted = body.get("@Redfish.OperationApplyTime", "Immediate")
    if wanted not in _APPLY:
        raise invalid(
            f"@Redfish.OperationApplyTime is one of {', '.join(_APPLY)}.",
            code="ActionParameterValueNotInList",
        )
    return _APPLY[wanted]


def _no_target(path: str) -> Declined:
    return invalid(f"{path} is no target of this service.", code="ResourceMissingAtURI")


def _read(data: bytes) -> Content:
    try:
        return read_image(data)
    except BadImage as error:
        return error


async def _fetched(uri: str) -> Content:
    """Fetch an image as a controller does, from this machine only."""
    parts = urlsplit(uri)
    try:
        local = (
            parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
        )
    except ValueError:
        local = False
    if parts.scheme not in ("http", "https") or not local:
        return OSError(f"the image server of {uri} cannot be reached")
    try:
        async with httpx.AsyncClient(timeout=FETCH_TIMEOUT_S) as http:
            answer = await http.get(uri)
    except httpx.HTTPError as error:
        return OSError(f"{type(error).__name__} while fetching {uri}")
    if answer.is_error:
        return OSError(f"HTTP {answer.status_code} for {uri}")
    return _read(answer.content)
