"""What acts out of band need beside the controllers themselves.

A second pair of eyes, and a durable record of what was begun, what runs where, and which firmware
is on its way.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from sickbay.contracts.operations import Operation, Phase
from sickbay.contracts.steps import Effect
from sickbay.domain.firmware import Reservation, Rollout, RolloutKey
from sickbay.domain.power import Pulse
from sickbay.domain.radius import Lease, Limits


class Witness(Protocol):
    """A source outside a node that sees whether it is alive."""

    async def pulse(self, node: str) -> Pulse:
        """Whether the node answers there now; a source that cannot tell is unknown."""


class Operations(Protocol):
    """The durable journal of out-of-band acts, shared by all control workers."""

    async def lookup(self, operation_id: str) -> Operation | None:
        """The operation, None when it never began."""

    async def take(self, operation: Operation) -> Operation:
        """Begin this operation, or take over the one on record under the new owner.

        What is returned is what is on record; a finished one stays as it is.
        """

    async def advance(
        self,
        operation: Operation,
        *,
        phase: Phase,
        at: datetime,
        memo: Mapping[str, str] | None = None,
    ) -> Operation:
        """Write the next phase; `memo` is added. Raises `Superseded` when another owns it now."""

    async def finish(self, operation: Operation, *, effect: Effect, at: datetime) -> Operation:
        """Record the outcome. Raises `Superseded` when another owns it now."""


class Leases(Protocol):
    """How many loads run in each rack and on each power unit; a lease not given back runs out."""

    async def take(self, ask: Lease, *, limits: Limits, now: datetime) -> str:
        """Take or renew a lease; why it must wait, empty when it was taken."""

    async def give_back(self, holder: str) -> None:
        """End the holder's lease. Idempotent."""


class Rollouts(Protocol):
    """Firmware versions on their way through a node class: a canary first."""

    async def reserve(self, key: RolloutKey, *, node: str, at: datetime) -> Reservation:
        """Ask for the node's turn; the same node again is the same turn."""

    async def settle(self, node: str, *, proven: bool | None, why: str, at: datetime) -> None:
        """A node in flight returned proven (True), failed (False), or tells nothing (None)."""

    async def all(self) -> tuple[Rollout, ...]:
        """Every rollout on record."""

    async def unfreeze(self, key: RolloutKey, *, by: str, reason: str, at: datetime) -> Rollout:
        """Let a frozen version go on, canary first. Raises `UsageError`, `Refused`."""
