"""The place an act needs in its rack and power unit, taken before it and given back after."""

from datetime import timedelta

from activities.clock import Clock
from activities.effects import retry_transient
from sickbay.contracts.steps import Effect, Outcome
from sickbay.domain.radius import Lease, Limits, Load
from sickbay.ports import Inventory
from sickbay.ports_out_of_band import Leases


class Loads:
    """Leases of shared power, under the limits of this installation."""

    def __init__(
        self, leases: Leases, *, limits: Limits, inventory: Inventory, clock: Clock
    ) -> None:
        self._leases = leases
        self._limits = limits
        self._inventory = inventory
        self._clock = clock

    async def take(self, load: Load, *, node: str, holder: str, longest_s: float) -> None:
        """Take the place for `longest_s` at most; the same holder again renews it.

        Raises:
            ApplicationError: transient, with what runs there; Temporal tries again.
        """
        known = await self._inventory.node(node)
        if known is None:
            return
        now = self._clock()
        ask = Lease(
            holder=holder,
            load=load,
            node=node,
            rack=known.rack,
            power_unit=known.power_unit,
            until=now + timedelta(seconds=longest_s),
        )
        why = await self._leases.take(ask, limits=self._limits, now=now)
        if why:
            retry_transient(Effect(Outcome.TRANSIENT, why))

    async def give_back(self, holder: str) -> None:
        """End it. Idempotent; one that is never given back runs out."""
        await self._leases.give_back(holder)
