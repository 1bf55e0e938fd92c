"""Who may speak to the management controllers: one account, by password or by session.

Sessions live in memory only, as in a real controller: a restart forgets them.
"""

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sickbay.simulator.bmc.messages import ROOT, Declined, collection, invalid, link, missing
from sickbay.simulator.bmc.private import write_private

PASSWORD_FILE = "bmc_password"  # noqa: S105 - the file's name
SESSIONS = f"{ROOT}/SessionService/Sessions"
MOST_SESSIONS = 512


@dataclass
class Session:
    """One session; every use of it puts its end off."""

    id: str
    token: str
    user: str
    used_s: float


class Sessions:
    """Checks credentials and keeps the sessions.

    Args:
        directory: where the password's file is, or is written with a fresh password (mode 0600).
        user: the account's name.
        timeout_s: real seconds after which an unused session ends.
        now_s: a steady clock.
    """

    def __init__(
        self,
        directory: Path,
        *,
        user: str,
        timeout_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.user = user
        self.timeout_s = timeout_s
        self._path = directory / PASSWORD_FILE
        self._now_s = now_s
        self._sessions: dict[str, Session] = {}
        self._number = 0
        if not self._path.exists():
            write_private(self._path, f"{secrets.token_urlsafe(18)}\n".encode())

    def check(self, authorization: str, *, token: str) -> None:
        """Let the request pass. Raises `Declined` (401) when nobody vouches for it."""
        if token:
            session = next((s for s in self._live() if hmac.compare_digest(s.token, token)), None)
            if session is not None:
                session.used_s = self._now_s()
                return
        elif self._is_account(*_basic(authorization)):
            return
        raise Declined(
            "There is no valid session established with the implementation.",
            code="NoValidSession",
            status=401,
        )

    def create(self, body: dict[str, Any]) -> tuple[dict[str, Any], Session]:
        """Open a session. Raises `Declined`."""
        user, password = body.get("UserName"), body.get("Password")
        if not isinstance(user, str) or not isinstance(password, str):
            raise invalid(
                "UserName and Password are wanted.", code="CreateFailedMissingReqProperties"
            )
        if not self._is_account(user, password):
            raise Declined(
                "The account or its password is wrong.",
                code="ResourceAtUriUnauthorized",
                status=401,
            )
        if len(self._live()) >= MOST_SESSIONS:
            raise Declined(
                "The number of open sessions is at its limit.",
                code="SessionLimitExceeded",
                status=503,
            )
        self._number += 1
        session = Session(str(self._number), secrets.token_urlsafe(24), user, self._now_s())
        self._sessions[session.id] = session
        return self._shown(session), session

    def close(self, session_id: str) -> None:
        """End a session. Raises `Declined` when there is none."""
        if session_id not in {s.id for s in self._live()}:
            raise missing(f"{SESSIONS}/{session_id}")
        del self._sessions[session_id]

    def forget(self) -> None:
        """End all sessions."""
        self._sessions = {}

    def service(self) -> dict[str, Any]:
        """The resource above the sessions."""
        return {
            "@odata.id": f"{ROOT}/SessionService",
            "@odata.type": "#SessionService.v1_1_9.SessionService",
            "Id": "SessionService",
            "Name": "Session Service",
            "ServiceEnabled": True,
            "SessionTimeout": max(1, round(self.timeout_s)),
            "Status": {"State": "Enabled", "Health": "OK"},
            "Sessions": link(SESSIONS),
        }

    def shown(self, session_id: str) -> dict[str, Any]:
        """One session as a resource. Raises `Declined`."""
        for session in self._live():
            if session.id == session_id:
                return self._shown(session)
        raise missing(f"{SESSIONS}/{session_id}")

    def listed(self) -> dict[str, Any]:
        """The collection of open sessions."""
        members = [link(f"{SESSIONS}/{s.id}") for s in self._live()]
        return collection(
            SESSIONS, kind="SessionCollection", name="Session Collection", members=members
        )

    def _shown(self, session: Session) -> dict[str, Any]:
        return {
            "@odata.id": f"{SESSIONS}/{session.id}",
            "@odata.type": "#Session.v1_7_0.Session",
            "Id": session.id,
            "Name": "User Session",
            "UserName": session.user,
            "Password": None,
        }

    def _live(self) -> list[Session]:
        ends_s = self._now_s() - self.timeout_s
        self._sessions = {k: s for k, s in self._sessions.items() if s.used_s >= ends_s}
        return list(self._sessions.values())

    def _is_account(self, user: str, password: str) -> bool:
        # Read each time: who changes the password changes the file.
        try:
            wanted = self._path.read_text(encoding="utf-8").strip()
        except OSError:
            return False
        same = hmac.compare_digest(password.encode(), wanted.encode())
        return bool(wanted) and same and hmac.compare_digest(user.encode(), self.user.encode())


def _basic(authorization: str) -> tuple[str, str]:
    kind, _, text = authorization.partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password
