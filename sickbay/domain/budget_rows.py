"""A budget's state as compact rows: what is carried over continue-as-new, and how large it is.

Every string stands once in a table and rows hold numbers, so that five thousand asks stay far
below the payload limit. `Weight` is an upper bound that can be kept up to date row by row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sickbay.domain.budget_state import Ask, BudgetState, Permit, Spent, Withheld
from sickbay.domain.node import Severity

Row = tuple[int, ...]

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
ABSENT = -1
_SEVERITIES = list(Severity)
_MICROSECOND = timedelta(microseconds=1)

# Upper bounds of one encoded row in bytes: numbers of at most 7 digits for words, 17 for times.
ASK_BYTES = 104
PERMIT_BYTES = 72
SPENT_BYTES = 64
WITHHELD_BYTES = 88
TIME_BYTES = 19
STAMP_BYTES = 40
REST_BYTES = 4096
WORD_BYTES = 3
FACTOR_SET_BYTES = 2
FACTOR_BYTES = 16


@dataclass(frozen=True)
class BudgetRows:
    """A `BudgetState` as rows of numbers over one table of words; `rest` is what is no list."""

    rest: BudgetState
    words: tuple[str, ...] = ()
    factor_sets: tuple[Row, ...] = ()
    queue: tuple[Row, ...] = ()
    permits: tuple[Row, ...] = ()
    spent: tuple[Row, ...] = ()
    withheld: tuple[Row, ...] = ()
    asked_at: Row = ()


def to_rows(state: BudgetState) -> BudgetRows:
    """The state as compact rows."""
    table = _Table()
    queue = tuple(table.ask(a) for a in state.queue)
    permits = tuple(table.permit(p) for p in state.permits)
    spent = tuple(table.spent(s) for s in state.spent)
    withheld = tuple(table.withheld(w) for w in state.withheld)
    rest = replace(state, queue=(), permits=(), spent=(), withheld=(), asked_at=())
    return BudgetRows(
        rest=rest,
        words=tuple(table.words),
        factor_sets=tuple(table.sets),
        queue=queue,
        permits=permits,
        spent=spent,
        withheld=withheld,
        asked_at=tuple(_deltas(state.asked_at)),
    )


def from_rows(rows: BudgetRows) -> BudgetState:
    """The state these rows were made of."""
    reader = _Reader(rows)
    return replace(
        rows.rest,
        queue=tuple(reader.ask(r) for r in rows.queue),
        permits=tuple(reader.permit(r) for r in rows.permits),
        spent=tuple(reader.spent(r) for r in rows.spent),
        withheld=tuple(reader.withheld(r) for r in rows.withheld),
        asked_at=tuple(_times(rows.asked_at)),
    )


class Weight:
    """An upper bound of the bytes of a state's rows as JSON, kept up to date row by row.

    A row taken away gives its own bytes back and leaves its words counted: still an upper bound.
    """

    def __init__(self, state: BudgetState) -> None:
        rest = (state.pool, state.frozen_by or "", state.frozen_reason, *state.orders)
        self.total = REST_BYTES + sum(_quoted(word) for word in rest)
        self.total += sum(_quoted(node) + STAMP_BYTES for node in state.not_before)
        self._words: set[str] = set()
        self._sets: set[tuple[tuple[str, str], ...]] = set()
        for ask in state.queue:
            self.add_ask(ask)
        for row in state.withheld:
            self.add_withheld(row)
        for permit in state.permits:
            head, tail = _split(permit.repair_id)
            words = (head or "", tail, permit.workflow_id, permit.node, permit.group)
            self.total += PERMIT_BYTES + self._new(words)
        for spent in state.spent:
            head, tail = _split(spent.repair_id)
            self.total += SPENT_BYTES + self._new((head or "", tail))
        self.total += TIME_BYTES * len(state.asked_at)

    def add_ask(self, ask: Ask) -> None:
        """Count one more ask, and the moment it came."""
        head, tail = _split(ask.repair_id)
        words = (head or "", tail, _prefix(ask), ask.node, ask.group, ask.reason)
        self.total += ASK_BYTES + TIME_BYTES + self._new(words)
        self.total += self._factors(ask.factors, group=ask.group, reason=ask.reason)

    def drop_ask(self) -> None:
        """Count one ask less."""
        self.total -= ASK_BYTES

    def add_withheld(self, row: Withheld) -> None:
        """Count one more withheld node."""
        head, tail = _split(row.repair_id or "")
        words = (head or "", tail, row.node, row.group, row.reason)
        self.total += WITHHELD_BYTES + self._new(words)
        self.total += self._factors(row.factors, group=row.group, reason=row.reason)

    def drop_withheld(self) -> None:
        """Count one withheld node less."""
        self.total -= WITHHELD_BYTES

    def _new(self, words: Iterable[str]) -> int:
        cost = 0
        for word in words:
            if word not in self._words:
                self._words.add(word)
                cost += _quoted(word)
        return cost

    def _factors(self, factors: Mapping[str, str], *, group: str, reason: str) -> int:
        own = _own_factors(factors, group=group, reason=reason)
        if own in self._sets:
            return 0
        self._sets.add(own)
        return (
            FACTOR_SET_BYTES
            + FACTOR_BYTES * len(own)
            + self._new(word for pair in own for word in pair)
        )


class _Table:
    """Gives every word and every set of factors its number."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.sets: dict[Row, int] = {}

    def word(self, word: str) -> int:
        return self.words.setdefault(word, len(self.words))

    def name(self, repair_id: str | None) -> tuple[int, int]:
        """A repair's id as two words: before and after its last dot."""
        if repair_id is None:
            return ABSENT, ABSENT
        head, tail = _split(repair_id)
        return (ABSENT if head is None else self.word(head)), self.word(tail)

    def factors(self, factors: Mapping[str, str], *, group: str, reason: str) -> tuple[int, int]:
        own = _own_factors(factors, group=group, reason=reason)
        row = tuple(self.word(word) for pair in own for word in pair)
        implied = (factors.get("group") == group) + 2 * (factors.get("reason") == reason)
        return self.sets.setdefault(row, len(self.sets)), implied

    def ask(self, ask: Ask) -> Row:
        factors, implied = self.factors(ask.factors, group=ask.group, reason=ask.reason)
        flags = implied + 4 * ask.hard + 8 * ask.stale + 16 * _ends_with_node(ask)
        return (
            *self.name(ask.repair_id), self.word(_prefix(ask)), self.word(ask.node),
            self.word(ask.group), _SEVERITIES.index(ask.severity), self.word(ask.reason),
            _us(ask.asked_at), factors, flags,
        )  # fmt: skip

    def permit(self, permit: Permit) -> Row:
        return (
            *self.name(permit.repair_id), self.word(permit.workflow_id), self.word(permit.node),
            self.word(permit.group), _us(permit.granted_at), int(permit.extra),
        )  # fmt: skip

    def spent(self, spent: Spent) -> Row:
        return (*self.name(spent.repair_id), _us(spent.granted_at), _us(spent.closed_at))

    def withheld(self, row: Withheld) -> Row:
        factors, implied = self.factors(row.factors, group=row.group, reason=row.reason)
        return (
            self.word(row.node), self.word(row.reason), _us(row.since), self.word(row.group),
            *self.name(row.repair_id), factors, implied + 4 * row.hard + 8 * row.placed,
        )  # fmt: skip


class _Reader:
    """Reads rows back."""

    def __init__(self, rows: BudgetRows) -> None:
        self.words = rows.words
        self.sets = rows.factor_sets

    def name(self, head: int, tail: int) -> str:
        return self.words[tail] if head == ABSENT else f"{self.words[head]}.{self.words[tail]}"

    def factors(self, number: int, flags: int, *, group: str, reason: str) -> dict[str, str]:
        row = self.sets[number]
        found = {self.words[row[i]]: self.words[row[i + 1]] for i in range(0, len(row), 2)}
        implied = {"group": group} if flags & 1 else {}
        return {**found, **implied, **({"reason": reason} if flags & 2 else {})}

    def ask(self, row: Row) -> Ask:
        head, tail, prefix, node, group, severity, reason, at, factors, flags = row
        w = self.words
        return Ask(
            repair_id=self.name(head, tail),
            workflow_id=w[prefix] + (w[node] if flags & 16 else ""),
            node=w[node],
            group=w[group],
            severity=_SEVERITIES[severity],
            hard=bool(flags & 4),
            reason=w[reason],
            asked_at=_at(at),
            factors=self.factors(factors, flags, group=w[group], reason=w[reason]),
            stale=bool(flags & 8),
        )

    def permit(self, row: Row) -> Permit:
        head, tail, workflow_id, node, group, at, extra = row
        w = self.words
        return Permit(
            self.name(head, tail), w[workflow_id], w[node], w[group], _at(at), extra=bool(extra)
        )

    def spent(self, row: Row) -> Spent:
        head, tail, granted, closed = row
        closed_at = None if closed == ABSENT else _at(closed)
        return Spent(self.name(head, tail), granted_at=_at(granted), closed_at=closed_at)

    def withheld(self, row: Row) -> Withheld:
        node, reason, since, group, head, tail, factors, flags = row
        w = self.words
        return Withheld(
            node=w[node],
            reason=w[reason],
            hard=bool(flags & 4),
            since=_at(since),
            group=w[group],
            repair_id=None if tail == ABSENT else self.name(head, tail),
            placed=bool(flags & 8),
            factors=self.factors(factors, flags, group=w[group], reason=w[reason]),
        )


def _split(repair_id: str) -> tuple[str | None, str]:
    head, dot, tail = repair_id.rpartition(".")
    return (head if dot else None), tail


def _ends_with_node(ask: Ask) -> bool:
    return bool(ask.node) and ask.workflow_id.endswith(ask.node)


def _prefix(ask: Ask) -> str:
    return ask.workflow_id[: -len(ask.node)] if _ends_with_node(ask) else ask.workflow_id


def _own_factors(
    factors: Mapping[str, str], *, group: str, reason: str
) -> tuple[tuple[str, str], ...]:
    implied = {("group", group), ("reason", reason)}
    return tuple(pair for pair in sorted(factors.items()) if pair not in implied)


def _us(at: datetime | None) -> int:
    return ABSENT if at is None else (at - EPOCH) // _MICROSECOND


def _at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def _deltas(times: Iterable[datetime]) -> Iterable[int]:
    before = 0
    for at in map(_us, times):
        yield at - before
        before = at


def _times(deltas: Iterable[int]) -> Iterable[datetime]:
    us = 0
    for delta in deltas:
        us += delta
        yield _at(us)


def _quoted(word: str) -> int:
    plain = word.isascii() and word.isprintable() and not ({'"', "\\"} & set(word))
    return WORD_BYTES + (len(word) if plain else 6 * len(word))
