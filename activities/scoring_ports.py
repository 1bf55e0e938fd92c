"""What the scoring activity asks of the store and of sources beyond the ports all share."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from sickbay.domain.health import Health, Standing
from sickbay.ports import NodeSample, Records


class ScoringRecords(Records, Protocol):
    """What the scorer asks of the store beyond the Records port."""

    async def next_epoch(self, pool: str) -> int:
        """Take a new fencing epoch: larger than any before."""

    async def epoch_is_current(self, pool: str, epoch: int) -> bool:
        """Whether no newer epoch was taken."""

    async def standings(self, pool: str) -> dict[str, tuple[Health, Standing, datetime]]:
        """The last saved health and standing of each node, and since when it stands so."""

    async def last_returns(self, pool: str) -> dict[str, datetime]:
        """When each node of the pool last came back by proof; nodes that never did are left out."""


@runtime_checkable
class EventSource(Protocol):
    """A source that can also be asked for kernel events alone, between two ticks."""

    async def read_events(self, nodes: Sequence[str]) -> list[NodeSample]:
        """One sample per node with `text` None and only new events."""


@runtime_checkable
class WindowSource(Protocol):
    """A source that remembers: it fills the windows of a scorer that begins."""

    async def read_window(
        self, nodes: Sequence[str], *, window_s: float, step_s: float
    ) -> list[list[NodeSample]]:
        """The samples of the last `window_s` seconds, oldest moment first."""
