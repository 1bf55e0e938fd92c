"""Power of a node by IPMI: the Bmc port over `ipmitool chassis power`.

The password reaches the tool by its environment, never by an argument. IPMI tells no time of the
last reset and has no common way to write firmware, and this adapter says so.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from sickbay.contracts.firmware import FlashStart, FlashTask, TaskState
from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.firmware import FirmwareImage
from sickbay.domain.power import PowerState
from sickbay.errors import (
    BmcError,
    BmcGarbled,
    BmcPassword,
    BmcRefused,
    BmcUnknownSystem,
    BmcUnreachable,
)
from sickbay.tool_process import run_tool

SCHEME = "ipmi"
PORT = 623
"""RMCP's port (IPMI 2.0, section 13.1.2)."""
INTERFACES = ("lanplus", "lan")
_STATUS = re.compile(r"^Chassis Power is (on|off)\s*$", re.MULTILINE)
_DONE = re.compile(r"^Chassis Power Control: (?:Up/On|Down/Off)\s*$", re.MULTILINE)
_REFUSED = re.compile(r"Set Chassis Power Control to \S+ failed: *(.*)|command failed: *(.*)")
# Said only when ipmitool talks (`-v`): without it a wrong password reads like a silent controller.
_PASSWORD = re.compile(
    r"RAKP 2 HMAC is invalid|RAKP 2 message indicates an error|Invalid user name"
    r"|Activate Session (?:error|command failed)|Unable to set Session Privilege"
    r"|[Ii]nsufficient privilege"
)
_NO_SESSION = re.compile(r"Unable to establish|Could not open socket|No route")
_BUSY = re.compile(r"busy|timeout|present state", re.IGNORECASE)
_NO_RESPONSE = re.compile(r"No response|Unable to (?:send|get)|timed? ?out", re.IGNORECASE)
_TRIES = ("-N", "2", "-R", "2")


@dataclass(frozen=True)
class IpmiAccess:
    """How the controllers are reached.

    `url` is `ipmi://host[:port]` with `{node}` for the node's id. `password` reads it each time it
    is called. `interface` is ipmitool's: `lanplus` is IPMI 2.0, `lan` the older one without
    encryption.
    """

    url: str
    username: str
    password: Callable[[], str]
    interface: str = "lanplus"
    timeout_s: float = 10.0
    at_once: int = 16


class IpmiPower:
    """The Bmc port.

    Args:
        access: where the controllers are and who we are there.
        env: the environment ipmitool runs in, without the password.
    """

    def __init__(self, access: IpmiAccess, *, env: Mapping[str, str] | None = None) -> None:
        self._access = access
        self._env = dict(env or {})
        self._gate = asyncio.Semaphore(access.at_once)

    async def power_state(self, node: str) -> PowerState:
        """On or off as the controller says. Raises `BmcError`."""
        text = await self._ask(node, "status")
        found = _STATUS.search(text)
        return PowerState(found[1]) if found else PowerState.UNKNOWN

    async def last_reset(self, node: str) -> datetime | None:
        """IPMI does not tell it."""
        del node
        return None

    async def switch(self, node: str, *, on: bool) -> Effect:
        """One attempt; what is so already is a success, a lost answer is ambiguous."""
        wanted = PowerState.ON if on else PowerState.OFF
        try:
            present = await self.power_state(node)
        except BmcError as error:
            passing = isinstance(error, BmcUnreachable) or getattr(error, "busy", False)
            return Effect(Outcome.TRANSIENT if passing else Outcome.PERMANENT, error.message)
        if present is wanted:
            return Effect(Outcome.SUCCEEDED, f"{node} was {wanted} already")
        try:
            await self._ask(node, str(wanted))
        except BmcError as error:
            return Effect(_asked(error), error.message)
        return Effect(Outcome.SUCCEEDED, f"power {wanted} was accepted for {node}")

    async def _ask(self, node: str, verb: str) -> str:
        """What `chassis power VERB` printed. Raises `BmcError`."""
        argv = await self._argv(node)
        env = {**self._env, "IPMI_PASSWORD": self._access.password()}
        async with self._gate:
            run = await run_tool(
                [*argv, "chassis", "power", verb], env=env, deadline_s=self._access.timeout_s
            )
        if run.missing:
            raise BmcUnreachable(f"{run.why} (it comes with ipmitool)", sent=False)
        if run.exit_code is None:
            raise BmcUnreachable(f"{node}'s controller: {run.why}", sent=verb != "status")
        if run.exit_code != 0:
            raise _no(node, run.text, verb=verb)
        if not (_STATUS if verb == "status" else _DONE).search(run.text):
            raise BmcGarbled(f"{node}'s controller: {_line(run.text)}")
        return run.text

    async def _argv(self, node: str) -> Sequence[str]:
        """The command line up to its verb. Raises `BmcUnknownSystem`, `BmcUnreachable`."""
        parts = urlsplit(self._access.url.replace("{node}", node))
        host, port = parts.hostname or "", parts.port or PORT
        try:
            await asyncio.get_running_loop().getaddrinfo(host, port)
        except socket.gaierror as error:
            if error.errno == socket.EAI_NONAME:
                raise BmcUnknownSystem(f"no controller is named {host}") from error
            why = f"{host} cannot be looked up now ({error.strerror})"
            raise BmcUnreachable(why, sent=False) from error
        where = ["-H", host, "-p", str(port), "-U", self._access.username]
        return ["ipmitool", "-v", "-I", self._access.interface, *where, "-E", *_TRIES]


class NoFirmware:
    """The Firmware port where controllers cannot write firmware."""

    async def versions(self, node: str) -> Mapping[str, str]:
        """Nothing is told."""
        del node
        return {}

    async def flash(
        self, node: str, *, image: FirmwareImage, components: Sequence[str]
    ) -> FlashStart:
        """Nothing is sent."""
        del image, components
        why = f"{node}'s controller speaks IPMI, which has no common firmware update"
        return FlashStart(Effect(Outcome.PERMANENT, why), sent=False)

    async def task(self, node: str, *, task: str) -> FlashTask:
        """No task was ever begun here."""
        return FlashTask(TaskState.GONE, detail=f"{node} has no task {task}")


def _asked(error: BmcError) -> Outcome:
    """How an attempt to switch ended that raised this."""
    if isinstance(error, BmcUnreachable):
        return Outcome.AMBIGUOUS if error.sent else Outcome.TRANSIENT
    if isinstance(error, BmcGarbled):
        return Outcome.AMBIGUOUS
    busy = isinstance(error, BmcRefused) and error.busy
    return Outcome.TRANSIENT if busy else Outcome.PERMANENT


def _no(node: str, text: str, *, verb: str) -> BmcError:
    """What ipmitool's words after a failure mean."""
    who = f"{node}'s controller"
    refused = _REFUSED.search(text)
    if refused and not _NO_RESPONSE.search(text) and not _PASSWORD.search(text):
        why = (refused[1] or refused[2] or "").strip()
        return BmcRefused(f"{who} refuses: {why}", busy=bool(_BUSY.search(why)))
    if _PASSWORD.search(text):
        return BmcPassword(f"{who} refuses our name or password", field="bmc.username")
    sent = verb != "status" and not _NO_SESSION.search(text)
    return BmcUnreachable(f"{who} does not answer: {_line(text)}", sent=sent)


def _line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no output")[:200]
