"""Whether a node is truly empty: no job, and lent to nobody."""

from sickbay.contracts.steps import DrainResult, DrainState
from sickbay.domain.gate import is_borrow
from sickbay.ports import Scheduler


async def drained_and_not_lent(scheduler: Scheduler, node: str) -> tuple[DrainResult, bool]:
    """The drain's state, and whether only another repair's check keeps the node from being empty.

    Such a borrow ends by itself: there is no job to end. Until then nothing is done to the node.
    """
    state = await scheduler.drain_state(node)
    if state.state is not DrainState.DRAINED:
        return state, False
    marks = [mark for mark, _ in await scheduler.marks(node) if is_borrow(mark)]
    if not marks:
        return state, False
    return DrainResult(DrainState.DRAINING, blocking=tuple(marks)), True
