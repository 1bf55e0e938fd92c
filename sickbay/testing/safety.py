"""The safety switches in memory: a mode per pool and action, and a stop."""

from dataclasses import dataclass

from sickbay.contracts.steps import Action, Permission


@dataclass(frozen=True)
class WouldHave:
    """One act that a switch withheld."""

    node: str
    pool: str
    action: Action
    detail: str
    why: str


class MemorySafety:
    """The Safety port. `mode` is what every action of every pool has until `set` says otherwise."""

    def __init__(self, *, mode: Permission = Permission.OBSERVE) -> None:
        self._mode = mode
        self._modes: dict[Action, Permission] = {}
        self._stopped: set[str | None] = set()
        self.withheld: list[WouldHave] = []
        self.asked: list[Action] = []

    def set(self, action: Action, mode: Permission) -> None:
        """The mode of one action from now on."""
        self._modes[action] = mode

    def stop(self, pool: str | None = None) -> None:
        """Stop a pool, or the fleet."""
        self._stopped.add(pool)

    def go(self, pool: str | None = None) -> None:
        """Lift the stop of a pool, or of the fleet."""
        self._stopped.discard(pool)

    async def permission(self, *, pool: str, action: Action) -> Permission:
        """What may be done now."""
        self.asked.append(action)
        if self._stopped & {None, pool}:
            return Permission.STOPPED
        return self._modes.get(action, self._mode)

    async def would_have(
        self, *, node: str, pool: str, action: Action, detail: str, why: str
    ) -> None:
        """Record a withheld act."""
        self.withheld.append(WouldHave(node, pool, action, detail, why))
