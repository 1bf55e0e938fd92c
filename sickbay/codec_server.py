"""Decrypts payloads for Temporal's UI and command line, on loopback, for who has the token.

It speaks the codec endpoint those expect: `POST /decode` and `/encode` with payloads as JSON. The
keys stay in this process; what it answers is in the clear, so it listens nowhere else by itself.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, Sequence

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from sickbay.errors import SickbayError

MAX_BODY_BYTES = 32 * 1024 * 1024
# A page of another site must not reach this server by a name it made point here.
HOSTS = ("127.0.0.1", "localhost", "[::1]")

Work = Callable[[Sequence[Payload]], Awaitable[list[Payload]]]


def codec_app(codec: PayloadCodec, *, token: str | None, origins: Sequence[str]) -> Starlette:
    """The web application. Without a token anybody on this machine may decrypt."""

    def route(work: Work) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if token is not None and not _is_allowed(request, token=token):
                return _refusal(401, "the token is missing or wrong")
            return await _worked(request, work=work)

        return answer

    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["POST"],
        allow_headers=["Authorization", "Content-Type", "X-Namespace"],
        allow_credentials=True,
    )
    return Starlette(
        routes=[
            Route("/decode", route(codec.decode), methods=["POST"]),
            Route("/encode", route(codec.encode), methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS)), cors],
    )


def _is_allowed(request: Request, *, token: str) -> bool:
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return hmac.compare_digest(given.encode(), token.encode())


async def _worked(request: Request, *, work: Work) -> Response:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return _refusal(413, f"more than {MAX_BODY_BYTES} bytes")
    try:
        done = await work(_payloads(body))
    except (ParseError, ValueError, RecursionError):
        return _refusal(400, "the body is not a list of payloads as JSON")
    except SickbayError as error:
        return _refusal(400, error.message)
    return JSONResponse(MessageToDict(Payloads(payloads=done)))


def _payloads(body: bytes) -> Sequence[Payload]:
    """The payloads of a request. Raises `ValueError` or `ParseError` when it holds none."""
    data = json.loads(body)
    if not isinstance(data, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one kind of answer for every wrong body
    return ParseDict(data, Payloads()).payloads


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": "codec", "message": message}}, status_code=status)
