"""The place an act needs in its rack and power unit, taken before it and given back after."""

from datetime import timedelta

from activities.clock import Clock
from activities.effects import wait_for_place
from sickbay.contracts.steps import StepRequest, StepResult
from sickbay.domain.radius import Lease, Limits, Load
from sickbay.ports import Inventory
from sickbay.ports_out_of_band import Leases


class Loads:
    """Leases of shared power, under the limits of this installation.

    A load without any limit takes no lease: nobody waits for it.
    """

    def __init__(
        self, leases: Leases, *, limits: Limits, inventory: Inventory, clock: Clock
    ) -> None:
        self._leases = leases
        self._limits = limits
        self._inventory = inventory
        self._clock = clock

    async def take(
        self, load: Load, *, step: StepRequest, lasts_s: float, longest_s: float
    ) -> StepResult | None:
        """Take the place for `lasts_s` at most; None when it was taken, again or now.

        The same operation again renews it. After a wait of `longest_s` the wait is the answer.

        Raises:
            ApplicationError: transient, with what runs there; Temporal tries again.
        """
        if not self._limits.bound(load):
            return None
        known = await self._inventory.node(step.node)
        if known is None:
            return None
        now = self._clock()
        ask = Lease(
            holder=step.operation_id,
            load=load,
            node=step.node,
            rack=known.rack,
            power_unit=known.power_unit,
            until=now + timedelta(seconds=lasts_s),
        )
        why = await self._leases.take(ask, limits=self._limits, now=now)
        return wait_for_place(why, now=now, longest_s=longest_s) if why else None

    async def give_back(self, holder: str) -> None:
        """End it. Idempotent; one that is never given back runs out."""
        await self._leases.give_back(holder)
