"""The HTTP side of the simulated fleet.

Exporter pages, journals and the scheduler, and the switches with which tests, the demo and a
technician act on the outside world.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sickbay.simulator.bmc.behaviours import (
    ACTS,
    BEHAVIOUR_SAYS,
    NEEDS,
    Behaviour,
    Misbehaviour,
)
from sickbay.simulator.engine import Engine
from sickbay.simulator.gateway import BadRange, entries
from sickbay.simulator.kernel import Journal
from sickbay.simulator.kinds import SAYS, FaultKind, Work
from sickbay.simulator.metrics import MetricsPages
from sickbay.simulator.tool_socket import physical
from sickbay.simulator.world import NotThere, WorldError

Kind = TypeVar("Kind", FaultKind, Work, Behaviour)
Handler = Callable[[Request], Awaitable[Response]]
_PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NUMBERS: tuple[tuple[str, float, float, type[int] | type[float]], ...] = (
    ("times", 0, 1000, int),
    ("status", 400, 599, int),
    ("minutes", 0, 1e6, float),
    ("hang_s", 0, 60, float),
)


class Invalid(WorldError):
    """The request cannot be understood; the sentence says what is wanted."""


class Server:
    """The ASGI application of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pages = MetricsPages()
        self.app: ASGIApp = HotPaths(self._starlette(), hot=self._hot)

    def _starlette(self) -> Starlette:
        get, post = ["GET"], ["POST"]
        routes = [
            Route("/ready", _guard(self._ready), methods=get),
            Route("/inventory", _guard(self._inventory), methods=get),
            Route("/nodes/{node}/truth", _guard(self._node_truth), methods=get),
            Route("/scheduler/nodes", _guard(self._all_nodes), methods=get),
            Route("/scheduler/nodes/{node}", _guard(self._one_node), methods=get),
            Route("/scheduler/nodes/{node}/drain", _guard(self._drain), methods=post),
            Route("/scheduler/nodes/{node}/resume", _guard(self._resume), methods=post),
            Route("/scheduler/nodes/{node}/evict", _guard(self._evict), methods=post),
            Route("/faults", _guard(self._inject), methods=post),
            Route("/faults/kinds", _guard(self._kinds), methods=get),
            Route("/bmc-faults", _guard(self._bmc_faults), methods=get),
            Route("/bmc-faults", _guard(self._misbehave), methods=post),
            Route("/bmc-faults/clear", _guard(self._behave), methods=post),
            Route("/firmware", _guard(self._images), methods=get),
            Route("/firmware/{name}", _guard(self._image), methods=get),
            Route("/technician/replace", _guard(self._replace), methods=post),
            Route("/technician/work", _guard(self._work), methods=post),
            Route("/log", _guard(self._log), methods=get),
            Route("/truth", _guard(self._truth), methods=get),
        ]
        return Starlette(routes=routes)

    def _hot(self, scope: Scope) -> Response | None:
        """The two pages that are read every second of every node, without any routing."""
        parts = scope["path"].split("/")
        if len(parts) != 4 or parts[1] != "nodes" or scope["method"] != "GET":  # noqa: PLR2004
            return None
        if parts[3] == "metrics":
            return self._metrics(parts[2])
        if parts[3] == "entries":
            return self._entries(parts[2], scope)
        return None

    def _metrics(self, name: str) -> Response:
        world = self._engine.world
        world.advance()
        node = world.nodes.get(name)
        if node is None:
            return _refusal(f"no node {name!r}", 404)
        if not node.up:
            return PlainTextResponse("the node is down\n", 503)
        page = self._pages.page(node, revision=world.revision[name], now_h=world.now_h)
        return Response(page, media_type=_PAGE_TYPE)

    def _entries(self, name: str, scope: Scope) -> Response:
        world = self._engine.world
        world.advance()
        node = world.nodes.get(name)
        if node is None:
            return _refusal(f"no node {name!r}", 404)
        if not node.up:
            return PlainTextResponse("the node is down\n", 503)
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        request = Request(scope)
        match = {k: v for k, v in request.query_params.items() if k.lstrip("_").isupper()}
        try:
            body, media = entries(
                world.journals.get(name, Journal()),
                hostname=name,
                accept=headers.get(b"accept", ""),
                wanted_range=headers.get(b"range", ""),
                match=match,
            )
        except BadRange as error:
            return _refusal(str(error), 416)
        return Response(body, media_type=media)

    async def _ready(self, _: Request) -> Response:
        return JSONResponse({"ready": True, "nodes": len(self._engine.world.nodes)})

    async def _inventory(self, _: Request) -> Response:
        return JSONResponse(self._engine.change(self._engine.inventory))

    async def _node_truth(self, request: Request) -> Response:
        world = self._engine.world
        node = self._engine.change(lambda: world.node(request.path_params["node"]))
        faults = [defect.to_dict() for defect in world.defects_of(node.name)]
        state = physical(node, now_h=world.now_h)
        return JSONResponse({"node": node.name, "up": node.up, "faults": faults, "physical": state})

    async def _all_nodes(self, _: Request) -> Response:
        engine = self._engine
        names = list(engine.world.nodes)
        return JSONResponse(engine.change(lambda: [engine.scheduler.view(n) for n in names]))

    async def _one_node(self, request: Request) -> Response:
        name = request.path_params["node"]
        return JSONResponse(self._engine.change(lambda: self._engine.scheduler.view(name)))

    async def _drain(self, request: Request) -> Response:
        name, body = request.path_params["node"], await _body(request)
        mark, reason = _text(body, "mark"), _text(body, "reason", default="")
        act = self._engine.scheduler.drain
        return JSONResponse(self._engine.change(lambda: act(name, mark=mark, reason=reason)))

    async def _resume(self, request: Request) -> Response:
        name, mark = request.path_params["node"], _text(await _body(request), "mark")
        act = self._engine.scheduler.resume
        return JSONResponse(self._engine.change(lambda: act(name, mark=mark)))

    async def _evict(self, request: Request) -> Response:
        name, body = request.path_params["node"], await _body(request)
        mark, reason = _text(body, "mark"), _text(body, "reason", default="")
        act = self._engine.scheduler.evict
        return JSONResponse(self._engine.change(lambda: act(name, mark=mark, reason=reason)))

    async def _inject(self, request: Request) -> Response:
        body = await _body(request)
        node, kind = _text(body, "node"), _choice(_text(body, "kind"), FaultKind, "fault kind")
        slot = _text(body, "slot", default="") or None
        return JSONResponse(self._engine.inject(node, kind=kind, slot=slot))

    async def _kinds(self, _: Request) -> Response:
        return JSONResponse([{"kind": kind, "says": says} for kind, says in SAYS.items()])

    async def _images(self, _: Request) -> Response:
        return JSONResponse(self._engine.images)

    async def _image(self, request: Request) -> Response:
        name = request.path_params["name"]
        for image in self._engine.images:
            if image["name"] == name:
                return FileResponse(image["file"], media_type="application/octet-stream")
        raise NotThere(f"no image {name!r}")

    async def _bmc_faults(self, _: Request) -> Response:
        listed = self._engine.change(self._engine.behaviours.listed)
        says = [{"fault": name, "says": text} for name, text in BEHAVIOUR_SAYS.items()]
        return JSONResponse({"set": listed, "kinds": says})

    async def _misbehave(self, request: Request) -> Response:
        wanted = misbehaviour(await _body(request))
        self._engine.change(lambda: self._engine.behaviours.add(wanted))
        return JSONResponse(asdict(wanted))

    async def _behave(self, request: Request) -> Response:
        body = await _body(request)
        name, text = _text(body, "node"), _text(body, "fault", default="")
        only = _choice(text, Behaviour, "fault") if text else None
        act = self._engine.behaviours.clear
        return JSONResponse({"cleared": self._engine.change(lambda: act(name, behaviour=only))})

    async def _replace(self, request: Request) -> Response:
        body = await _body(request)
        node, slot = _text(body, "node"), _text(body, "slot")
        act = self._engine.treatments.replace
        return JSONResponse(self._engine.change(lambda: act(node, slot=slot)))

    async def _work(self, request: Request) -> Response:
        body = await _body(request)
        node, slot = _text(body, "node"), _text(body, "slot")
        work = _choice(_text(body, "work"), Work, "work")
        act = self._engine.treatments.work
        return JSONResponse(self._engine.change(lambda: act(node, slot=slot, work=work)))

    async def _log(self, request: Request) -> Response:
        text = request.query_params.get("after", "0")
        if not text.isdigit():
            raise Invalid(f"after={text!r} is not a row number")
        rows = self._engine.change(lambda: self._engine.world.lines)[int(text) :]
        return Response(f"[{','.join(rows)}]", media_type="application/json")

    async def _truth(self, _: Request) -> Response:
        return JSONResponse(self._engine.change(self._engine.truth))


def misbehaviour(body: Mapping[str, Any]) -> Misbehaviour:
    """What the body of a request asks for. Raises `Invalid`."""
    extra = set(body) - {"node", "fault", "times", "act", "status", "minutes", "needs", "hang_s"}
    if extra:
        raise Invalid(f"unknown key {min(extra)!r}")
    fields: dict[str, Any] = {}
    for key, low, high, kind in _NUMBERS:
        if key in body:
            fields[key] = kind(_number(body, key, low=low, high=high))
    for key, choices in (("act", ACTS), ("needs", NEEDS)):
        if key in body:
            if body[key] not in choices:
                raise Invalid(f"{key} is one of {', '.join(c for c in choices if c)}")
            fields[key] = body[key]
    behaviour = _choice(_text(body, "fault"), Behaviour, "fault")
    return Misbehaviour(node=_text(body, "node"), behaviour=behaviour, **fields)


def _number(body: Mapping[str, Any], key: str, *, low: float, high: float) -> float:
    value = body[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Invalid(f"{key} is a number between {low:g} and {high:g}")
    return value


class HotPaths:
    """Answers what `hot` knows, and hands everything else on."""

    def __init__(self, rest: ASGIApp, *, hot: Callable[[Scope], Response | None]) -> None:
        self._rest = rest
        self._hot = hot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call."""
        answer = self._hot(scope) if scope["type"] == "http" else None
        await (answer or self._rest)(scope, receive, send)


def _guard(handler: Handler) -> Handler:
    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except WorldError as error:
            return _refusal(error.message, error.status)

    return guarded


def _refusal(says: str, status: int) -> Response:
    return JSONResponse({"error": says}, status)


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise Invalid(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise Invalid("the body must be one object")
    return body


def _text(body: Mapping[str, Any], key: str, *, default: str | None = None) -> str:
    value = body.get(key, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value and default is None):
        raise Invalid(f"{key} is missing: a text is wanted")
    return value


def _choice(value: str, kinds: type[Kind], what: str) -> Kind:
    try:
        return kinds(value)
    except ValueError as error:
        raise Invalid(f"no {what} {value!r}: there are {', '.join(kinds)}") from error
