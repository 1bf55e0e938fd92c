"""Answers in the forms that Redfish gives them."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from sickbay.errors import SickbayError

ROOT = "/redfish/v1"
HEADERS = {"OData-Version": "4.0", "Cache-Control": "no-store"}
_BASE = "Base.1.18"


class Declined(SickbayError):
    """The service answers no, with a message of its registry and a status.

    Args:
        message: the sentence for people.
        code: the message's name in the base registry.
        status: the HTTP status.
        retry_after_s: when to ask again, if that can help.
    """

    def __init__(
        self, message: str, *, code: str, status: int, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s

    def response(self) -> Response:
        """As the service sends it."""
        headers = dict(HEADERS)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:  # noqa: PLR2004 - the only status with a challenge
            headers["WWW-Authenticate"] = 'Basic realm="Redfish"'
        extended = {
            "MessageId": f"{_BASE}.{self.code}",
            "Message": self.message,
            "MessageArgs": [],
            "MessageSeverity": "Critical",
            "Severity": "Critical",
            "Resolution": "See the message.",
        }
        body = {
            "error": {
                "code": f"{_BASE}.{self.code}",
                "message": self.message,
                "@Message.ExtendedInfo": [extended],
            }
        }
        return JSONResponse(body, self.status, headers=headers)


def missing(path: str) -> Declined:
    """Nothing is at that path."""
    return Declined(
        f"The resource at {path} was not found.", code="ResourceMissingAtURI", status=404
    )


def invalid(message: str, *, code: str = "ActionParameterMissing") -> Declined:
    """The request cannot be understood."""
    return Declined(message, code=code, status=400)


def busy(message: str, *, retry_after_s: int = 5) -> Declined:
    """Not now, perhaps soon."""
    return Declined(
        message, code="ServiceTemporarilyUnavailable", status=503, retry_after_s=retry_after_s
    )


def document(body: dict[str, Any], *, status: int = 200, **headers: str) -> Response:
    """One resource."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(body, status, headers=HEADERS | named)


def nothing(*, status: int = 204, **headers: str) -> Response:
    """An answer without a body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status_code=status, headers=HEADERS | named)


def link(path: str) -> dict[str, str]:
    """A reference to another resource."""
    return {"@odata.id": path}


def collection(
    path: str, *, kind: str, name: str, members: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A collection of links, or of whole members where the client asked for that."""
    return {
        "@odata.id": path,
        "@odata.type": f"#{kind}.{kind}",
        "Name": name,
        "Members@odata.count": len(members),
        "Members": list(members),
    }
