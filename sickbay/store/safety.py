"""The safety switches behind the Safety port: modes from settings, the stop switch from the store.

A switch that cannot be read answers `stopped`.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from sickbay.contracts.steps import Action, Permission
from sickbay.store.engine import Store
from sickbay.store.records import StoreRecords

log = logging.getLogger(__name__)


class StoreSafety:
    """Answers, at the moment of acting, whether an act may happen."""

    def __init__(
        self,
        store: Store,
        *,
        modes: Mapping[str, Mapping[Action, str]],
        clock: Callable[[], datetime],
    ) -> None:
        self._records = StoreRecords(store)
        self._modes = {
            pool: {action: Permission(mode) for action, mode in actions.items()}
            for pool, actions in modes.items()
        }
        self._clock = clock

    async def permission(self, *, pool: str, action: Action) -> Permission:
        """What may be done now: observe and approve come from the mode, stopped from the switch."""
        mode = self._modes.get(pool, {}).get(action, Permission.OBSERVE)
        if mode is Permission.OBSERVE:
            return mode
        try:
            stopped = await self._records.is_stopped(pool)
        except Exception:  # whatever kept the switch from being read, it may be set
            log.warning("the stop switch cannot be read, so nothing is done", exc_info=True)
            return Permission.STOPPED
        return Permission.STOPPED if stopped else mode

    async def would_have(
        self, *, node: str, pool: str, action: Action, detail: str, why: str
    ) -> None:
        """Record an act that a switch withheld."""
        await self._records.save_would_have(
            node=node, pool=pool, action=str(action), detail=detail, why=why, at=self._clock()
        )
