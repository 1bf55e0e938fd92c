"""What every part of the store writes with: an open store, and rows that are written once."""

from collections.abc import Mapping

from sqlalchemy import Table, and_, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sickbay.store.engine import Store


class StoreSide:
    """One side of the records, on an open store; each call is one short transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store


async def insert_once(
    db: AsyncConnection, *, table: Table, row: Mapping[str, object], key: tuple[str, ...]
) -> bool:
    """Insert a row unless one with this unique key is there; whether it was inserted.

    Where a database lets two writers look at once, its unique constraint decides between them.

    Raises:
        IntegrityError: the row breaks another rule, e.g. it is about an unknown node.
    """
    there = select(table).where(and_(*(table.c[name] == row[name] for name in key)))
    if (await db.execute(there)).first() is not None:
        return False
    try:
        async with db.begin_nested():
            await db.execute(insert(table).values(**row))
    except IntegrityError:
        if (await db.execute(there)).first() is None:
            raise
        return False
    return True
