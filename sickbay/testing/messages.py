"""The ways to budgets and repairs in memory: messages are kept, nobody answers them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sickbay.contracts.budget import (
    GateClosed,
    PermitAsk,
    PermitReleased,
    WithholdAsk,
    WithholdEnded,
)
from sickbay.contracts.repair import Fault

BudgetMessage = PermitAsk | GateClosed | PermitReleased | WithholdAsk | WithholdEnded


@dataclass
class MemoryPermits:
    """The Permits port. `alive` says which repair still runs; one that is missing is unreadable."""

    sent: list[tuple[str, BudgetMessage]] = field(default_factory=list)
    alive: dict[str, bool] = field(default_factory=dict)

    async def ask(self, pool: str, ask: PermitAsk) -> None:
        """Keep the ask."""
        self.sent.append((pool, ask))

    async def gate_closed(self, pool: str, message: GateClosed) -> None:
        """Keep the message."""
        self.sent.append((pool, message))

    async def release(self, pool: str, message: PermitReleased) -> None:
        """Keep the message."""
        self.sent.append((pool, message))

    async def ask_withhold(self, pool: str, ask: WithholdAsk) -> None:
        """Keep the ask."""
        self.sent.append((pool, ask))

    async def end_withhold(self, pool: str, message: WithholdEnded) -> None:
        """Keep the message."""
        self.sent.append((pool, message))

    async def running(self, repairs: Mapping[str, str]) -> Mapping[str, bool]:
        """What `alive` says of these repairs."""
        return {repair: self.alive[repair] for repair in repairs if repair in self.alive}


@dataclass
class MemoryRepairs:
    """The Repairs port."""

    reported: list[tuple[str, Fault]] = field(default_factory=list)

    async def report(self, fault: Fault, *, pool: str) -> None:
        """Keep the finding."""
        self.reported.append((pool, fault))
