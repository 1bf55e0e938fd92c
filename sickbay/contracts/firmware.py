"""What a management controller answers about a flash."""

from dataclasses import dataclass
from enum import StrEnum

from sickbay.contracts.steps import Effect


class TaskState(StrEnum):
    """How a flash task stands. Gone: the controller does not know it (any more)."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class FlashStart:
    """How the request to flash ended.

    `task` finds the flash again. `sent` is False when it certainly never reached the controller.
    """

    effect: Effect
    task: str = ""
    sent: bool = True


@dataclass(frozen=True)
class FlashTask:
    """How a flash stands: `percent` is what the controller says, None when it says nothing."""

    state: TaskState
    percent: int | None = None
    detail: str = ""
