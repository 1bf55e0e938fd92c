"""The FastAPI application: `POST /v1/signals`, `/v1/events`, `/v1/batch`, and `GET /metrics`.

Nobody gets past the token, where there is one; a body is measured while it comes, and never kept
beyond its limit. An item counts once by its id, so a sender that saw no answer sends again.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from fastapi import FastAPI, Request
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response

from sickbay.contracts.pushes import PushedEvent, PushedSignal
from sickbay.dashboard.items import Gatekeeper, ItemError
from sickbay.domain.node import Node
from sickbay.scoring.ruleset import RuleSet

# A page of another site must not reach this server by a name it made point here.
HOSTS = ("127.0.0.1", "localhost", "[::1]")
LISTS = ("signals", "events")


class Inbox(Protocol):
    """Where pushes are kept."""

    async def add_events(self, events: Sequence[PushedEvent], *, at: datetime) -> list[bool]:
        """Keep events; for each, whether it was new."""

    async def add_signals(self, signals: Sequence[PushedSignal], *, at: datetime) -> list[bool]:
        """Keep readings; for each, whether it was new."""


@dataclass(frozen=True)
class Limits:
    """What one push may hold."""

    longest_bytes: int = 1_000_000
    most_items: int = 1_000


@dataclass(frozen=True)
class Parts:
    """What the application stands on.

    `token` None lets everybody in who reaches the address, which must then be the loopback.
    """

    inbox: Inbox
    nodes: Callable[[], Awaitable[tuple[Node, ...]]]
    rules: Callable[[], Awaitable[RuleSet]]
    page: Callable[[], Awaitable[str]]
    clock: Callable[[], datetime]
    token: str | None = None
    limits: Limits = Limits()


class _Refusal(Exception):
    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": "push", "message": message, "remedy": remedy}}


def dashboard_app(parts: Parts) -> FastAPI:
    """The web application."""
    app = FastAPI(title="sickbay", docs_url=None, redoc_url=None, openapi_url=None)
    if parts.token is None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))

    @app.exception_handler(_Refusal)
    async def refuse(_request: Request, refusal: Exception) -> Response:
        known = refusal if isinstance(refusal, _Refusal) else _Refusal(500, "failed")
        return JSONResponse(known.body, status_code=known.status)

    def route(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            _let_in(request, token=parts.token)
            return await _keep(await _lists(request, name=name, limits=parts.limits), parts=parts)

        return answer

    for name in (*LISTS, "batch"):
        app.add_api_route(f"/v1/{name}", route(name), methods=["POST"], response_model=None)

    @app.get("/metrics", response_model=None)
    async def metrics(request: Request) -> Response:
        _let_in(request, token=parts.token)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse(await parts.page(), media_type=kind)

    return app


def _let_in(request: Request, *, token: str | None) -> None:
    if token is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not right:
        raise _Refusal(401, "the token is missing or wrong", "send Authorization: Bearer TOKEN")


async def _lists(request: Request, *, name: str, limits: Limits) -> dict[str, list[Any]]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A form of another site can send text, never this.
        raise _Refusal(415, "the body is not JSON", "send Content-Type: application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limits.longest_bytes:
            raise _Refusal(413, f"more than {limits.longest_bytes} bytes", "send less at once")
    try:
        data = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise _Refusal(400, "the body is not JSON") from None
    lists = _named(data, name=name)
    count = sum(len(items) for items in lists.values())
    if count > limits.most_items:
        raise _Refusal(413, f"{count} items, {limits.most_items} at most", "send fewer at once")
    return lists


def _named(data: Any, *, name: str) -> dict[str, list[Any]]:
    if name != "batch":
        return {name: data if isinstance(data, list) else [data]}
    if not isinstance(data, dict) or not all(
        key in LISTS and isinstance(value, list) for key, value in data.items()
    ):
        raise _Refusal(400, "a batch is an object with the lists `signals` and `events`")
    return data


async def _keep(lists: dict[str, list[Any]], *, parts: Parts) -> Response:
    now = parts.clock()
    nodes = {node.id: node for node in await parts.nodes()}
    keeper = Gatekeeper(nodes, rules=await parts.rules(), now=now)
    events = [keeper.event(item, index=i) for i, item in enumerate(lists.get("events", ()))]
    signals = [keeper.signal(item, index=i) for i, item in enumerate(lists.get("signals", ()))]
    # Events first: what closes gates must not wait behind readings.
    new = await parts.inbox.add_events([e for e in events if isinstance(e, PushedEvent)], at=now)
    new += await parts.inbox.add_signals(
        [s for s in signals if isinstance(s, PushedSignal)], at=now
    )
    errors = [asdict(wrong) for wrong in (*events, *signals) if isinstance(wrong, ItemError)]
    status = 422 if errors and not new else 200
    told = {"accepted": sum(new), "repeated": len(new) - sum(new), "errors": errors}
    return JSONResponse(told, status_code=status)
