"""What a repair asks of the neighbours of its node, and what it is answered."""

from dataclasses import dataclass
from datetime import datetime

from sickbay.contracts.repair import Fault
from sickbay.contracts.steps import Permission, StepRequest
from sickbay.domain.neighbour import Borrowed
from sickbay.domain.node import Node


@dataclass(frozen=True)
class BorrowRequest:
    """Borrow one idle neighbour of `node`, none of `avoid`, for `lend_s` seconds.

    Until `deadline` it is waited for; a deadline in the past is one look.
    """

    step: StepRequest
    node: Node
    avoid: tuple[str, ...]
    lend_s: float
    deadline: datetime
    poll_s: float


@dataclass(frozen=True)
class BorrowAnswer:
    """The borrowed neighbour, or why there is none. `withheld` names the switch that said no."""

    neighbour: Borrowed | None
    why: str = ""
    withheld: Permission | None = None


@dataclass(frozen=True)
class NeighbourFound:
    """A neighbour that a run across two nodes blames: it starts a repair of its own."""

    pool: str
    fault: Fault
