"""A full disk is one page: the act fails, is retried, and nothing of it counts meanwhile.

Whatever could not be written (evidence, the store, a node's journal) raises out of its activity, so
the activity has no result and its repair waits. This only sees to it that a person hears of it.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.checks import DISK_FULL
from sickbay.contracts.steps import PageDraft
from sickbay.ports import Pager

log = logging.getLogger(__name__)

# PostgreSQL's codes of a full disk and of insufficient resources in general.
_SQL_STATES = frozenset({"53100", "53000"})
AGAIN_AFTER = timedelta(hours=1)


class DiskFullPages(Interceptor):
    """Pages once per place and day while activities fail for want of space.

    Args:
        pager: how people are called.
        where: the machine or queue whose disk it is.
        clock: the present moment, UTC-aware.
    """

    def __init__(self, pager: Pager, *, where: str, clock: Callable[[], datetime]) -> None:
        self._pager = pager
        self._where = where
        self._clock = clock
        self._told_at: datetime | None = None

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - Temporal's own name
        """Watch every activity of the worker."""
        return _Watch(next, self)

    async def tell(self, error: BaseException) -> None:
        """Page, once an hour at most; the day's key makes it one page wherever it is kept.

        A pager that needs the same full disk fails too: then the log has it, and it is tried again.
        """
        now = self._clock()
        if self._told_at is not None and now - self._told_at < AGAIN_AFTER:
            return
        draft = PageDraft(
            key=f"disk_full/{self._where}/{now.date().isoformat()}",
            pool="",
            summary=f"no space left on a disk of {self._where}: repairs wait",
            detail=f"{error}; make room, nothing else is needed: what failed is tried again",
        )
        try:
            await self._pager.page(draft)
        except Exception:
            log.exception("no space left on a disk of %s, and nobody could be paged", self._where)
        else:
            self._told_at = now


class _Watch(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, pages: DiskFullPages) -> None:
        super().__init__(following)
        self._pages = pages

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's own name
        try:
            return await super().execute_activity(input)
        except Exception as error:
            if is_disk_full(error):
                await self._pages.tell(error)
            raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one behind it, says that no space is left."""
    return any(_says_full(one) for one in _chain(error))


def _says_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return True
    if getattr(error, "sqlstate", None) in _SQL_STATES:
        return True
    return isinstance(error, sqlite3.OperationalError) and "is full" in str(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        if isinstance(error, DBAPIError) and error.orig is not None:
            yield error.orig
        error = error.__cause__ or error.__context__
