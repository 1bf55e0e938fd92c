"""Pages kept in the store: visible by `sickbay pages`, delivered to nobody's phone."""

from collections.abc import Callable
from datetime import datetime

from sickbay.contracts.steps import Effect, Outcome, PageDraft
from sickbay.ports import Records


class LocalPager:
    """Implements the Pager port on the Records port."""

    def __init__(self, records: Records, *, clock: Callable[[], datetime]) -> None:
        self._records = records
        self._clock = clock

    async def page(self, draft: PageDraft) -> Effect:
        """Book the page, once per key."""
        new = await self._records.save_page(draft, at=self._clock())
        return Effect(Outcome.SUCCEEDED, "" if new else "already paged")
