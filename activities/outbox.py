"""What has to be told to others, kept until it was told."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from temporalio import activity

from sickbay.errors import Superseded


@dataclass
class Outbox:
    """What has to be told, by key; a message that failed stays for the next tick."""

    waiting: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)

    async def send(self) -> None:
        """Tell what waits; what fails waits on. Raises `Superseded`."""
        for key, call in list(self.waiting.items()):
            try:
                await call()
            except Superseded:
                raise
            except Exception as error:  # noqa: BLE001 - one node's trouble is not the pool's
                activity.logger.warning("not told yet: %s: %s", key, error)
            else:
                self.waiting.pop(key, None)
