"""Paths of the service, and what its handlers share."""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sickbay.simulator.bmc.messages import ROOT, invalid

Handler = Callable[[Request, dict[str, str]], Awaitable[Response]]


class Silence(Exception):
    """Nobody answers; `after_s` is how long the client waits before the connection is gone."""

    def __init__(self, after_s: float = 0.0) -> None:
        super().__init__("no answer")
        self.after_s = after_s


@dataclass(frozen=True)
class Path:
    """One kind of path: what serves its methods, and whether it is open to anybody."""

    pattern: re.Pattern[str]
    methods: dict[str, Handler]
    public: frozenset[str] = frozenset()


async def body_of(request: Request) -> dict[str, Any]:
    """The request's JSON object. Raises `Declined`."""
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise invalid("The body is no JSON.", code="MalformedJSON") from error
    if not isinstance(body, dict):
        raise invalid("The body must be one object.", code="MalformedJSON")
    return body


def path_of(
    text: str, methods: dict[str, Handler], *, public: frozenset[str] = frozenset()
) -> Path:
    """A path below the root; `{name}` stands for one segment, `{name:a|b}` for one of those."""

    def group(match: re.Match[str]) -> str:
        name, _, choices = match[1].partition(":")
        return f"(?P<{name}>{choices or '[^/]+'})"

    pieces = re.split(r"(\{[^}]+\})", text)
    pattern = "".join(
        re.sub(r"\{([^}]+)\}", group, piece) if piece.startswith("{") else re.escape(piece)
        for piece in pieces
    )
    return Path(re.compile(re.escape(ROOT) + pattern), methods, public)
