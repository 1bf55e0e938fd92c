"""The rule sets on record, who changed them and why, and what does not count on a node.

A change is a new row; nothing is ever altered, so the book says what counted at any moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sickbay.contracts.rules import (
    PresentRules,
    RuleChange,
    RuleException,
    RuleRole,
    ShadowDifference,
)
from sickbay.scoring.ruleset import RuleSet
from sickbay.store import source_tables as t
from sickbay.store.writing import StoreSide, insert_once

TURN = "rules"


class StoreRuleBook(StoreSide):
    """The book of rules on an open store."""

    async def present(self, *, now: datetime) -> PresentRules:
        """What counts at this moment."""
        async with self.store.read() as db:
            active = await _content_of(db, RuleRole.ACTIVE)
            shadow = await _content_of(db, RuleRole.SHADOW)
        excepted: dict[str, frozenset[str]] = {}
        for one in await self.exceptions(now=now):
            excepted[one.node] = excepted.get(one.node, frozenset()) | {one.signal}
        return PresentRules(active, shadow, excepted)

    async def change(
        self, change: RuleChange, *, rules: RuleSet, content: Mapping[str, Any]
    ) -> None:
        """Keep a rule set and have it count in its role from now on."""
        row = {
            "digest": rules.digest,
            "version": rules.version,
            "content": dict(content),
            "added_at": change.at,
            "added_by": change.by,
        }
        async with self.store.write(turn=TURN) as db:
            await insert_once(db, table=t.rule_sets, row=row, key=("digest",))
            await _book(db, change)

    async def end_shadow(self, change: RuleChange) -> None:
        """Have no shadow rule set from now on."""
        async with self.store.write(turn=TURN) as db:
            await _book(db, change)

    async def content(self, digest: str) -> Mapping[str, Any] | None:
        """The rule set of a digest, None when it is not on record."""
        query = select(t.rule_sets.c.content).where(t.rule_sets.c.digest == digest)
        async with self.store.read() as db:
            found = (await db.execute(query)).scalar()
        return None if found is None else dict(found)

    async def changes(self) -> list[RuleChange]:
        """All changes, the newest first."""
        query = (
            select(t.rule_changes, t.rule_sets.c.version)
            .outerjoin(t.rule_sets, t.rule_sets.c.digest == t.rule_changes.c.digest)
            .order_by(t.rule_changes.c.id.desc())
        )
        async with self.store.read() as db:
            return [
                RuleChange(
                    RuleRole(r.role), r.digest, r.version or "", r.at, r.by, r.approved_by,
                    r.reason, r.replayed,
                )
                for r in (await db.execute(query)).all()
            ]  # fmt: skip

    async def add_exception(self, given: RuleException) -> None:
        """Have a signal not count on a node until its moment. It ends an older one of the pair."""
        one = t.rule_exceptions.c
        same = and_(one.node == given.node, one.signal == given.signal, one.until_at > given.at)
        async with self.store.write(turn=TURN) as db:
            await db.execute(update(t.rule_exceptions).where(same).values(until_at=given.at))
            await db.execute(insert(t.rule_exceptions).values(**asdict(given)))

    async def exceptions(self, *, now: datetime) -> list[RuleException]:
        """The exceptions that hold at this moment."""
        one = t.rule_exceptions.c
        query = select(t.rule_exceptions).where(one.until_at > now).order_by(one.node, one.signal)
        async with self.store.read() as db:
            return [
                RuleException(r.node, r.signal, r.at, r.until_at, r.by, r.reason)
                for r in (await db.execute(query)).all()
            ]

    async def differs(self, found: Sequence[ShadowDifference]) -> None:
        """Keep where nodes stand otherwise under the shadow rule set."""
        table = t.shadow_differences
        async with self.store.write(turn=TURN) as db:
            for one in found:
                here = and_(table.c.digest == one.digest, table.c.node == one.node)
                await db.execute(delete(table).where(here))
                await db.execute(insert(table).values(**asdict(one)))

    async def differences(self, digest: str) -> list[ShadowDifference]:
        """Where nodes last stood otherwise under a rule set."""
        table = t.shadow_differences
        query = select(table).where(table.c.digest == digest).order_by(table.c.node)
        async with self.store.read() as db:
            return [
                ShadowDifference(r.node, r.digest, r.active, r.shadow, r.reason, r.at)
                for r in (await db.execute(query)).all()
            ]


async def _content_of(db: AsyncConnection, role: RuleRole) -> Mapping[str, Any] | None:
    change = t.rule_changes.c
    newest = select(change.digest).where(change.role == str(role)).order_by(change.id.desc())
    digest = (await db.execute(newest.limit(1))).scalar()
    if not digest:
        return None
    query = select(t.rule_sets.c.content).where(t.rule_sets.c.digest == digest)
    found = (await db.execute(query)).scalar()
    return None if found is None else dict(found)


async def _book(db: AsyncConnection, change: RuleChange) -> None:
    row = asdict(change)
    row.pop("version")
    row["role"] = str(change.role)
    row["replayed"] = dict(change.replayed)
    await db.execute(insert(t.rule_changes).values(**row))
