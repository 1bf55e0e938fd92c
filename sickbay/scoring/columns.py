"""The fleet's readings as numpy columns: one row per part, one column per signal of the rule set.

Rows are keyed by (node, slot). A slot that shows another UUID holds another part: its counters and
last codes start anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sickbay.domain.node import Node, PartKind
from sickbay.domain.signal import Absence, PartPage, SignalKind
from sickbay.scoring.rates import Counters
from sickbay.scoring.ruleset import RuleSet
from sickbay.scoring.shapes import Bools, Floats, Ints


@dataclass
class Row:
    """Which part a row speaks of now."""

    node: str
    slot: str
    uuid: str
    bus_id: str


@dataclass
class Columns:
    """All numbers of a pool, and how fresh they are.

    `fresh_at` is when the liveness of a node's source last changed, `up_since` when its page began
    to answer, both in epoch seconds.
    """

    rules: RuleSet
    nodes: tuple[Node, ...]
    window_s: float
    rows: list[Row] = field(init=False)
    node_of: Ints = field(init=False)
    group_of: Ints = field(init=False)
    values: Floats = field(init=False)
    unsupported: Bools = field(init=False)
    counters: Counters = field(init=False)
    growth: Floats = field(init=False)
    last_code: Floats = field(init=False)
    absent: Ints = field(init=False)
    fresh_at: Floats = field(init=False)
    up_since: Floats = field(init=False)
    _print: Floats = field(init=False)
    _rows_of: list[list[int]] = field(init=False)
    _sources: list[tuple[int, tuple[str, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        parts = [(n, p) for n in self.nodes for p in n.parts if p.kind is PartKind.GPU]
        at = {node.id: i for i, node in enumerate(self.nodes)}
        classes = sorted({node.node_class for node in self.nodes})
        self.rows = [Row(n.id, p.slot, p.uuid, p.bus_id) for n, p in parts]
        self.node_of = np.array([at[n.id] for n, _ in parts], dtype=np.intp)
        self.group_of = np.array([classes.index(n.node_class) for n, _ in parts], dtype=np.intp)
        self._rows_of = [[] for _ in self.nodes]
        for row, (node, _) in enumerate(parts):
            self._rows_of[at[node.id]].append(row)
        self._allocate(len(parts), len(self.nodes))

    def _allocate(self, rows: int, nodes: int) -> None:
        signals = self.rules.signals
        self._sources = [(i, rule.metrics) for i, rule in enumerate(signals)]
        self.counter_at = [i for i, r in enumerate(signals) if r.kind is SignalKind.COUNTER]
        self.event_at = [i for i, r in enumerate(signals) if r.kind is SignalKind.EVENT]
        self._live_at = [i for i, r in enumerate(signals) if r.liveness]
        self._low = np.array([r.valid[0] for r in signals])
        self._high = np.array([r.valid[1] for r in signals])
        self.values = np.full((rows, len(signals)), np.nan)
        self.unsupported = np.zeros((rows, len(signals)), dtype=np.bool_)
        self.counters = Counters(rows, len(self.counter_at), self.window_s)
        self.growth = np.full((rows, len(self.counter_at)), np.nan)
        self.last_code = np.full((rows, len(self.event_at)), np.nan)
        self.absent = np.zeros(rows, dtype=np.intp)
        self.fresh_at = np.full(nodes, -np.inf)
        self.up_since = np.full(nodes, np.nan)
        self._print = np.full(nodes, np.nan)

    def rows_of(self, node: int) -> Sequence[int]:
        """Row numbers of one node's parts."""
        return self._rows_of[node]

    def row_at(self, node: int, bus_id: str) -> int | None:
        """The row whose part sits at this bus address now."""
        return next((r for r in self._rows_of[node] if self.rows[r].bus_id == bus_id), None)

    def silent(self, node: int) -> None:
        """The node's page did not answer: its last numbers hold until its freshness ends."""
        self.up_since[node] = np.nan
        self.absent[self._rows_of[node]] = 0

    def take(self, node: int, parts: Sequence[PartPage], *, at_s: float) -> list[int]:
        """Write one page into the columns; the rows whose part changed identity."""
        mine = self._rows_of[node]
        self.values[mine] = np.nan
        self.unsupported[mine] = False
        swapped: list[int] = []
        found: set[int] = set()
        for part in parts:
            row = self._match(mine, part, parts=parts)
            if row is None:
                continue
            found.add(row)
            if self.rows[row].uuid != part.uuid:
                swapped.append(row)
                self.rows[row].uuid = part.uuid
            self.rows[row].bus_id = part.bus_id or self.rows[row].bus_id
            self._write(row, part)
        for row in mine:
            self.absent[row] = 0 if row in found else self.absent[row] + 1
        if np.isnan(self.up_since[node]):
            self.up_since[node] = at_s
        if swapped:
            self.forget(swapped)
        return swapped

    def settle(self, nodes: Sequence[int], *, at_s: float) -> None:
        """After all pages of this moment: drop impossible values, take counters, judge liveness."""
        read = np.isin(self.node_of, np.asarray(nodes, dtype=np.intp))
        outside = (self.values < self._low) | (self.values > self._high)
        self.values[outside] = np.nan
        growth = self.counters.take(self.values[:, self.counter_at], rows=read, at_s=at_s)
        self.growth = np.where(read[:, None], growth, np.nan)
        live = np.zeros(len(self.nodes))
        known = self.values[:, self._live_at]
        weights = 1.0 + np.arange(len(self._live_at))
        np.add.at(live, self.node_of, np.nan_to_num(known) @ weights)
        any_live = np.zeros(len(self.nodes), dtype=np.bool_)
        np.logical_or.at(any_live, self.node_of, np.isfinite(known).any(axis=1))
        mine = np.zeros(len(self.nodes), dtype=np.bool_)
        mine[list(nodes)] = True
        moved = mine & any_live & (live != self._print)
        self._print = np.where(mine & any_live, live, self._print)
        self.fresh_at = np.where(moved, at_s, self.fresh_at)

    def new_codes(self, nodes: Sequence[int]) -> list[tuple[int, int]]:
        """(row, code) of every last-code gauge that changed; the first one seen is no event."""
        columns = self.values[:, self.event_at]
        read = np.isin(self.node_of, np.asarray(nodes, dtype=np.intp))[:, None]
        known = np.isfinite(columns) & read
        changed = known & np.isfinite(self.last_code) & (columns != self.last_code) & (columns > 0)
        self.last_code = np.where(known, columns, self.last_code)
        return [(int(r), int(columns[r, c])) for r, c in zip(*np.nonzero(changed), strict=True)]

    def forget(self, rows: Sequence[int]) -> None:
        """Start these rows anew: old counts and codes do not count again."""
        mask = np.zeros(len(self.rows), dtype=np.bool_)
        mask[list(rows)] = True
        self.counters.forget(mask)
        self.last_code[mask] = np.nan
        self.growth[mask] = np.nan

    def carry_from(self, old: "Columns") -> None:
        """Take over the past of every part and node that is still here."""
        before = {(r.node, r.slot): i for i, r in enumerate(old.rows)}
        for row, now in enumerate(self.rows):
            at = before.get((now.node, now.slot))
            if at is None or old.rows[at].uuid != now.uuid:
                continue
            self.values[row] = old.values[at]
            self.unsupported[row] = old.unsupported[at]
            self.counters.copy_row(row, old.counters, source=at)
            self.last_code[row] = old.last_code[at]
            self.absent[row] = old.absent[at]
            now.bus_id = old.rows[at].bus_id or now.bus_id
        seats = {node.id: i for i, node in enumerate(old.nodes)}
        for i, node in enumerate(self.nodes):
            if node.id in seats:
                self.fresh_at[i] = old.fresh_at[seats[node.id]]
                self.up_since[i] = old.up_since[seats[node.id]]
                self._print[i] = old._print[seats[node.id]]  # noqa: SLF001 - its own class

    def _match(self, mine: list[int], part: PartPage, *, parts: Sequence[PartPage]) -> int | None:
        """The row of a part: by UUID, else the slot at its address whose own part is gone."""
        for row in mine:
            if self.rows[row].uuid == part.uuid:
                return row
        here = {p.uuid for p in parts}
        free = [r for r in mine if self.rows[r].uuid not in here]
        return next((r for r in free if part.bus_id and self.rows[r].bus_id == part.bus_id), None)

    def _write(self, row: int, part: PartPage) -> None:
        values, absent = part.values, part.absent
        numbers = self.values[row]
        for at, names in self._sources:
            for name in names:
                if name in values:
                    numbers[at] = values[name]
                    break
                if absent and absent.get(name) is Absence.UNSUPPORTED:
                    self.unsupported[row, at] = True
