"""The durable side of acts out of band in memory: what was begun, what runs where, which firmware.

The rules are those of the store: they are the domain's, and a phase is written by its owner alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from sickbay.contracts.operations import Operation, Phase
from sickbay.contracts.steps import Effect
from sickbay.domain import firmware
from sickbay.domain.firmware import Reservation, Rollout, RolloutKey, RolloutStage
from sickbay.domain.radius import Lease, Limits, refusal
from sickbay.errors import Refused, Superseded, UsageError


class MemoryOperations:
    """The Operations port; `rows` holds every operation as it is on record, in order."""

    def __init__(self) -> None:
        self.rows: dict[str, Operation] = {}

    async def lookup(self, operation_id: str) -> Operation | None:
        """The operation, None when it never began."""
        return self.rows.get(operation_id)

    async def take(self, operation: Operation) -> Operation:
        """Begin it, or take over the one on record; a finished one stays as it is."""
        known = self.rows.get(operation.id)
        if known is None:
            self.rows[operation.id] = operation
        elif known.effect is None:
            self.rows[operation.id] = replace(known, owner=operation.owner)
        return self.rows[operation.id]

    async def advance(
        self,
        operation: Operation,
        *,
        phase: Phase,
        at: datetime,
        memo: Mapping[str, str] | None = None,
    ) -> Operation:
        """Write the next phase. Raises `Superseded` when another attempt owns it now."""
        added = {**operation.memo, **(memo or {})}
        return self._write(replace(operation, phase=phase, phase_at=at, memo=added), operation)

    async def finish(self, operation: Operation, *, effect: Effect, at: datetime) -> Operation:
        """Record the outcome. Raises `Superseded` when another attempt owns it now."""
        done = replace(operation, phase=Phase.FINISHED, effect=effect, finished_at=at)
        return self._write(done, operation)

    def _write(self, new: Operation, old: Operation) -> Operation:
        known = self.rows[old.id]
        if (known.owner, known.phase) != (old.owner, old.phase):
            raise Superseded(f"another attempt of {old.id} acts now")
        self.rows[old.id] = new
        return new


class MemoryLeases:
    """The Leases port; `held` are the leases that were not given back, by their holder."""

    def __init__(self) -> None:
        self.held: dict[str, Lease] = {}
        self.taken: list[Lease] = []

    async def take(self, ask: Lease, *, limits: Limits, now: datetime) -> str:
        """Take or renew a lease; why it must wait, empty when it was taken."""
        why = refusal(ask, held=tuple(self.held.values()), limits=limits, now=now)
        if not why:
            self.held[ask.holder] = ask
            self.taken.append(ask)
        return why

    async def give_back(self, holder: str) -> None:
        """End the holder's lease. Idempotent."""
        self.held.pop(holder, None)


class MemoryRollouts:
    """The Rollouts port."""

    def __init__(self) -> None:
        self._rows: dict[RolloutKey, Rollout] = {}

    async def reserve(self, key: RolloutKey, *, node: str, at: datetime) -> Reservation:  # noqa: ARG002 - the port's
        """Ask for the node's turn; the same node again is the same turn."""
        new, answer = firmware.reserve(self._rows.get(key, Rollout(key)), node=node)
        if answer.granted:
            self._rows[key] = new
        return answer

    async def settle(self, node: str, *, proven: bool | None, why: str, at: datetime) -> None:  # noqa: ARG002 - the port's
        """A node in flight returned proven (True), failed (False), or tells nothing (None)."""
        self._each(lambda rollout: _settled(rollout, node, proven=proven, why=why))

    async def all(self) -> tuple[Rollout, ...]:
        """Every rollout on record."""
        return tuple(self._rows.values())

    async def unfreeze(self, key: RolloutKey, *, by: str, reason: str, at: datetime) -> Rollout:  # noqa: ARG002 - the port's
        """Let a frozen version go on, canary first.

        Raises:
            UsageError: no such rollout, or nobody is named. Refused: it is not frozen.
        """
        if not by or not reason:
            raise UsageError(
                "say who unfreezes it and why", field="by", remedy="--by NAME --reason TEXT"
            )
        old = self._rows.get(key)
        if old is None:
            raise UsageError(
                f"no firmware {key.component} {key.version} was ever flashed",
                field="firmware",
                remedy="`sickbay firmware` lists them",
            )
        if old.stage is not RolloutStage.FROZEN:
            raise Refused(f"{key.component} {key.version} is {old.stage}, not frozen")
        self._rows[key] = firmware.unfrozen(old)
        return self._rows[key]

    def _each(self, change: Callable[[Rollout], Rollout]) -> None:
        self._rows = {key: change(rollout) for key, rollout in self._rows.items()}


def _settled(rollout: Rollout, node: str, *, proven: bool | None, why: str) -> Rollout:
    if proven is None:
        return firmware.withdrawn(rollout, node=node)
    if proven:
        return firmware.proven(rollout, node=node)
    return firmware.failed(rollout, node=node, why=why)
