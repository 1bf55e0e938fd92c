"""An out-of-band act as its durable journal knows it.

A phase is written before the act it names, so that whoever takes over after a kill knows what may
have happened and looks before it acts.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sickbay.contracts.steps import Effect
from sickbay.domain.node import Treatment


class Phase(StrEnum):
    """How far an operation came; an *asked* phase is written before the request is sent."""

    STARTED = "started"
    FLASH_ASKED = "flash_asked"
    FLASHING = "flashing"
    FLASHED = "flashed"
    OFF_ASKED = "off_asked"
    OFF_SEEN = "off_seen"
    ON_ASKED = "on_asked"
    ON_SEEN = "on_seen"
    FINISHED = "finished"


@dataclass(frozen=True)
class Operation:
    """One operation, by its id.

    `owner` names the attempt that may advance it. `witness`: who said that the node may be acted
    on. `memo`: what a later attempt must know (task, components, last reset before).
    """

    id: str
    node: str
    treatment: Treatment
    owner: str
    started_at: datetime
    phase: Phase = Phase.STARTED
    phase_at: datetime | None = None
    witness: str = ""
    memo: dict[str, str] = field(default_factory=dict)
    effect: Effect | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True)
class OutOfBandTimes:
    """Durations of out-of-band acts, in seconds of wall clock.

    Args:
        poll_s: how often a controller is asked how things stand.
        answer_wait_s: how long a request whose answer was lost may still take effect.
        off_s: how long the power stays off, so that capacitors drain.
        back_s: how long a node may take from power on until it answers.
        flash_quiet_s: how long a flash whose task is gone may still be at work.
    """

    poll_s: float
    answer_wait_s: float
    off_s: float
    back_s: float
    flash_quiet_s: float
