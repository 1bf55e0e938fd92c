"""The Redfish service over HTTP: who asks, what for, and what comes back.

A controller that does not answer closes the connection without a word; everything else gets an
answer in Redfish's own form.
"""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sickbay.simulator.bmc import resources
from sickbay.simulator.bmc.behaviours import Behaviour, Misbehaviour
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
from sickbay.simulator.bmc.odata import METADATA, metadata_document, service_document
from sickbay.simulator.bmc.paths import Path, Silence, body_of, path_of
from sickbay.simulator.bmc.sessions import SESSIONS, Sessions
from sickbay.simulator.bmc.updates import Updates
from sickbay.simulator.engine import Engine
from sickbay.simulator.firmware import version_of
from sickbay.simulator.power import ResetType
from sickbay.simulator.world import NotNow, NotThere

# A controller that restarts itself was seen to need one and a half to two minutes.
RESTART_MIN = 1.75
MOST_EVENTS = 1000
SERVER_ERROR = 500
_ANYBODY = frozenset(("GET",))
_OPENS = frozenset(("POST",))


class RedfishService:
    """The ASGI application of all management controllers of one engine."""

    def __init__(self, engine: Engine, *, sessions: Sessions) -> None:
        self._engine = engine
        self._sessions = sessions
        self._updates = Updates(engine, refuse=self._refuse, reach=self._reach)
        self._paths = [*self._routes(), *self._updates.paths()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Declined as no:
            response = no.response()
        except NotThere:
            response = missing(request.url.path).response()
        except Silence as silence:
            await asyncio.sleep(silence.after_s)
            await _hang_up(receive)
            return
        await response(scope, receive, send)

    def _routes(self) -> list[Path]:
        return [
            path_of("", {"GET": self._root}, public=_ANYBODY),
            path_of("/odata", {"GET": self._odata}, public=_ANYBODY),
            path_of("/$metadata", {"GET": self._metadata}, public=_ANYBODY),
            path_of("/SessionService", {"GET": self._session_service}),
            path_of("/SessionService/Sessions/Members", {"POST": self._open}, public=_OPENS),
            path_of(
                "/SessionService/Sessions",
                {"GET": self._all_sessions, "POST": self._open},
                public=_OPENS,
            ),
            path_of(
                "/SessionService/Sessions/{id}",
                {"GET": self._one_session, "DELETE": self._close},
            ),
            path_of("/{kind:Systems|Managers|Chassis}", {"GET": self._nodes}),
            path_of("/Systems/{node}", {"GET": self._system}),
            path_of("/Systems/{node}/Actions/ComputerSystem.Reset", {"POST": self._reset}),
            path_of("/Managers/{node}", {"GET": self._manager}),
            path_of("/Managers/{node}/Actions/Manager.Reset", {"POST": self._restart}),
            path_of("/Chassis/{node}", {"GET": self._chassis}),
        ]

    async def _answer(self, request: Request) -> Response:
        path = request.url.path.rstrip("/")
        if path == "/redfish":
            return document({"v1": f"{ROOT}/"})
        for known in self._paths:
            match = known.pattern.fullmatch(path)
            if match is None:
                continue
            allow = ", ".join([*known.methods, *(["HEAD"] if "GET" in known.methods else [])])
            method = "GET" if request.method == "HEAD" else request.method
            handler = known.methods.get(method)
            if handler is None:
                no = Declined(f"{path} knows {allow}.", code="OperationNotAllowed", status=405)
                response = no.response()
            else:
                _check_form(request)
                if method not in known.public:
                    self._admit(request)
                named = match.groupdict()
                if "node" in named:
                    self._reach(named["node"])
                response = await handler(request, named)
            response.headers["Allow"] = allow
            response.headers["Link"] = f"<{METADATA}>; rel=describedby"
            return response
        self._admit(request)
        raise missing(path)

    def _admit(self, request: Request) -> None:
        headers = request.headers
        self._sessions.check(
            headers.get("authorization", ""), token=headers.get("x-auth-token", "")
        )

    def _reach(self, node: str) -> None:
        self._engine.world.advance()
        if not self._engine.behaviours.reachable(node):
            raise Silence

    async def _root(self, _: Request, __: dict[str, str]) -> Response:
        return document(resources.root())

    async def _odata(self, _: Request, __: dict[str, str]) -> Response:
        return document(service_document())

    async def _metadata(self, _: Request, __: dict[str, str]) -> Response:
        return metadata_document()

    async def _session_service(self, _: Request, __: dict[str, str]) -> Response:
        return document(self._sessions.service())

    async def _all_sessions(self, _: Request, __: dict[str, str]) -> Response:
        return document(self._sessions.listed())

    async def _one_session(self, _: Request, named: dict[str, str]) -> Response:
        return document(self._sessions.shown(named["id"]))

    async def _open(self, request: Request, _: dict[str, str]) -> Response:
        shown, session = self._sessions.create(await body_of(request))
        return document(
            shown, status=201, Location=f"{SESSIONS}/{session.id}", X_Auth_Token=session.token
        )

    async def _close(self, _: Request, named: dict[str, str]) -> Response:
        self._sessions.close(named["id"])
        return nothing()

    async def _nodes(self, _: Request, named: dict[str, str]) -> Response:
        kind = named["kind"]
        type_name = {"Systems": "ComputerSystem", "Managers": "Manager"}.get(kind, kind)
        members = [link(f"{ROOT}/{kind}/{name}") for name in self._engine.world.nodes]
        return document(
            collection(
                f"{ROOT}/{kind}",
                kind=f"{type_name}Collection",
                name=f"{type_name} Collection",
                members=members,
            )
        )

    async def _system(self, _: Request, named: dict[str, str]) -> Response:
        return document(resources.system(self._engine.world.node(named["node"])))

    async def _manager(self, _: Request, named: dict[str, str]) -> Response:
        world = self._engine.world
        node = world.node(named["node"])
        return document(
            resources.manager(
                node, version=version_of(node, component="HostBMC_0") or "", now=world.clock.wall()
            )
        )

    async def _chassis(self, _: Request, named: dict[str, str]) -> Response:
        return document(resources.chassis(self._engine.world.node(named["node"])))

    async def _reset(self, request: Request, named: dict[str, str]) -> Response:
        node, kind = named["node"], _reset_type(await body_of(request))
        spoiled = self._engine.change(lambda: self._switch(node, kind))
        if spoiled is not None:
            raise Silence(spoiled.hang_s)
        return nothing()

    def _switch(self, node: str, kind: ResetType) -> Misbehaviour | None:
        """Switch the power; the misbehaviour that swallows the answer, if one does."""
        self._refuse(node, act="power")
        behaviours = self._engine.behaviours
        try:
            changed = self._engine.power.act(node, kind=kind)
        except NotNow as no:
            if no.field == "busy":
                raise busy(f"The power of {node} is being switched.") from no
            raise Declined(
                "The resource is in standby.", code="ResourceInStandby", status=409
            ) from no
        slow = behaviours.take(node, behaviour=Behaviour.SLOW_BMC) if changed else None
        if slow is not None:
            behaviours.silence(node, minutes=slow.minutes)
        return behaviours.take(node, behaviour=Behaviour.LOST_ANSWER, act="power")

    def _refuse(self, node: str, *, act: str) -> None:
        spoiled = self._engine.behaviours.take(node, behaviour=Behaviour.REFUSED, act=act)
        if spoiled is None:
            return
        self._engine.world.log("bmc_refused", node=node, act=act, status=spoiled.status)
        if spoiled.status >= SERVER_ERROR:
            raise Declined(
                "The service is busy.",
                code="ServiceTemporarilyUnavailable",
                status=spoiled.status,
                retry_after_s=5,
            )
        raise Declined("The request failed.", code="GeneralError", status=spoiled.status)

    async def _restart(self, request: Request, named: dict[str, str]) -> Response:
        body = await body_of(request)
        if body.get("ResetType", "ForceRestart") not in resources.MANAGER_RESETS:
            raise invalid(
                f"ResetType is one of {', '.join(resources.MANAGER_RESETS)}.",
                code="ActionParameterValueNotInList",
            )
        self._engine.change(lambda: self._restart_controller(named["node"]))
        return nothing()

    def _restart_controller(self, node: str) -> None:
        behaviours = self._engine.behaviours
        slow = behaviours.take(node, behaviour=Behaviour.SLOW_BMC)
        behaviours.silence(node, minutes=slow.minutes if slow else RESTART_MIN)
        self._engine.world.log("bmc_restart", node=node)


def _check_form(request: Request) -> None:
    """Refuse what this service does not speak. Raises `Declined`."""
    if request.headers.get("odata-version", "4.0") != "4.0":
        raise Declined("OData-Version 4.0 is spoken.", code="PreconditionFailed", status=412)
    for name in request.query_params:
        if name.startswith("$") and name != "$expand":
            raise Declined(f"{name} is not supported.", code="QueryNotSupported", status=501)


def _reset_type(body: dict[str, Any]) -> ResetType:
    text = body.get("ResetType")
    if text is None:
        raise invalid("ResetType is missing.")
    try:
        return ResetType(text)
    except ValueError as error:
        raise invalid(
            f"ResetType is one of {', '.join(ResetType)}.", code="ActionParameterValueNotInList"
        ) from error


async def _hang_up(receive: Receive) -> None:
    """Close the connection with nothing said."""
    # The server's own request object is the only thing that knows the connection.
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
    for _ in range(MOST_EVENTS):
        if (await receive())["type"] == "http.disconnect":
            return
