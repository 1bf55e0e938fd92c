"""Power of a node by its management controller."""

from datetime import UTC, datetime

from sushy import ResetType
from sushy import exceptions as said

from sickbay.adapters.redfish.connection import Connections, Talk
from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.power import PowerState
from sickbay.errors import BmcError, BmcGarbled, BmcRefused, BmcUnreachable

# Off without asking the host: a node that hangs does not shut down when asked.
OFF = (ResetType.FORCE_OFF,)
ON = (ResetType.ON, ResetType.FORCE_ON)
SERVER_ERROR = 500
NOT_IMPLEMENTED = 501


class RedfishPower:
    """The Bmc port."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def power_state(self, node: str) -> PowerState:
        """On or off as the controller says; anything between is unknown. Raises `BmcError`."""
        return await self._connections.call(node, _power)

    async def last_reset(self, node: str) -> datetime | None:
        """`LastResetTime` of the system. Raises `BmcError`."""
        return await self._connections.call(node, _last_reset)

    async def switch(self, node: str, *, on: bool) -> Effect:
        """One attempt; what is so already is a success, a lost answer is ambiguous."""
        wanted = PowerState.ON if on else PowerState.OFF
        try:
            present = await self.power_state(node)
        except BmcError as error:
            return Effect(_unasked(error), error.message)
        if present is wanted:
            return Effect(Outcome.SUCCEEDED, f"{node} was {wanted} already")
        try:
            how = await self._connections.call(node, lambda talk: _ask(talk, on=on))
        except BmcError as error:
            return Effect(_asked(error), error.message)
        return Effect(Outcome.SUCCEEDED, f"{how} was accepted for {node}")


def _unasked(error: BmcError) -> Outcome:
    """Only a question failed, so nothing happened: it may be asked again, or never will be told."""
    refused = isinstance(error, BmcRefused) and (error.busy or error.status >= SERVER_ERROR)
    passing = isinstance(error, BmcUnreachable) or refused
    return Outcome.TRANSIENT if passing else Outcome.PERMANENT


def _asked(error: BmcError) -> Outcome:
    """The act itself was asked for: an error inside the controller may come after it acted."""
    if isinstance(error, BmcUnreachable):
        return Outcome.AMBIGUOUS if error.sent else Outcome.TRANSIENT
    if isinstance(error, BmcGarbled):
        return Outcome.AMBIGUOUS
    if isinstance(error, BmcRefused):
        if error.busy:
            return Outcome.TRANSIENT
        if error.status >= SERVER_ERROR and error.status != NOT_IMPLEMENTED:
            return Outcome.AMBIGUOUS
    return Outcome.PERMANENT


def _power(talk: Talk) -> PowerState:
    state = talk.get(talk.system_path).get("PowerState")
    return {"On": PowerState.ON, "Off": PowerState.OFF}.get(str(state), PowerState.UNKNOWN)


def _last_reset(talk: Talk) -> datetime | None:
    text = talk.get(talk.system_path).get("LastResetTime")
    if not isinstance(text, str) or not text:
        return None
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        return None
    return told.replace(tzinfo=UTC) if told.tzinfo is None else told.astimezone(UTC)


def _ask(talk: Talk, *, on: bool) -> str:
    system = talk.system()
    try:
        allowed = system.get_allowed_reset_system_values()
    except said.MissingActionError as error:
        raise BmcRefused("the controller offers no reset of this system") from error
    wanted = ON if on else OFF
    chosen = next((kind for kind in wanted if kind in allowed), None)
    if chosen is None:
        offered = ", ".join(sorted(kind.value for kind in allowed))
        raise BmcRefused(f"the controller offers no {wanted[0].value} (it offers {offered})")
    system.reset_system(chosen)
    return str(chosen.value)
