"""Whether a node's power may be cut: drained, or down by the word of two witnesses.

A silent node worker is one witness. It never suffices alone: a broken network looks the same, and
a job may still run behind it.
"""

from dataclasses import dataclass
from enum import StrEnum


class PowerState(StrEnum):
    """What a management controller says of a node's power."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


class Pulse(StrEnum):
    """Whether a source outside the node sees it alive; a source that cannot tell is unknown."""

    ANSWERS = "answers"
    SILENT = "silent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Sight:
    """What was seen of a node just before its power would be cut.

    `drained`: the scheduler says that nothing runs and our mark stands. `jobs`: what it says still
    runs. `marked`: our mark certainly stands, so that nothing new can be placed. `page`: whether
    the node's metrics page answers. `power`: what the management controller says.
    """

    drained: bool
    jobs: tuple[str, ...] = ()
    marked: bool = False
    page: Pulse = Pulse.UNKNOWN
    power: PowerState = PowerState.UNKNOWN


@dataclass(frozen=True)
class Leave:
    """Whether the power may be cut: by whose word, or why not."""

    given: bool
    witness: str = ""
    why: str = ""


def may_power_off(sight: Sight, *, silent: bool) -> Leave:
    """Decide on what was seen; `silent`: the node's own worker does not answer.

    A drained node needs no witness. One that is not drained may be cut only when its worker is
    silent, nothing new can be placed there, and a second source agrees that it is down: the
    controller sees no power, or the metrics page is silent too and the scheduler names no job.
    """
    if sight.drained:
        return Leave(True, witness="drained")
    jobs = ", ".join(sight.jobs)
    if not silent:
        return Leave(False, why=f"it is not drained ({jobs or 'unclear'}) and its worker answers")
    if not sight.marked:
        return Leave(False, why="it is silent, but no mark of ours is known to stand on it")
    if sight.page is Pulse.ANSWERS:
        return Leave(False, why=f"its metrics page answers ({jobs or 'no job named'})")
    if sight.power is PowerState.OFF:
        return Leave(True, witness="worker silent, power off")
    if sight.jobs:
        return Leave(False, why=f"the scheduler says that it runs {jobs}")
    if sight.page is Pulse.SILENT:
        return Leave(True, witness="worker silent, metrics page silent")
    return Leave(False, why="its worker is silent and no second source says that it is down")
