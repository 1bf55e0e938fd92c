"""What truly happened to a simulated fleet, judged by its own log and by what the nodes were asked.

The log is the simulator's: nothing here believes a table that the code under test wrote, except the
journals of operations, and those only as what was *asked*. Every function names what is wrong, one
sentence each; an empty list is a kept promise.
"""

import contextlib
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sickbay.domain.gate import MARK_PREFIX, is_borrow, is_ours, mark_of

Row = Mapping[str, Any]
Log = Sequence[Row]

# Which test of a diagnosis sees what the scheduler was told was the reason.
CAUGHT_BY: Mapping[str, frozenset[str]] = {
    "xid_48": frozenset({"memory"}),
    "xid_64": frozenset({"memory"}),
    "ecc_uncorrectable": frozenset({"memory"}),
    "row_remap_pending": frozenset({"software", "memory"}),
    "row_remap_failure": frozenset({"software", "memory"}),
    "min:memory": frozenset({"memory"}),
    "xid_79": frozenset({"software", "pcie"}),
    "gpu_lost": frozenset({"software", "pcie"}),
    "xid_119": frozenset({"software", "diagnostic"}),
    "recovery_action": frozenset({"software"}),
    "xid_154": frozenset({"software"}),
    "xid_74": frozenset({"pcie"}),
    "min:interconnect": frozenset({"pcie"}),
    "min:performance": frozenset({"diagnostic", "targeted_stress"}),
    "min:thermal": frozenset({"targeted_power", "diagnostic", "targeted_stress"}),
}
# After these a proof begins anew. A reboot is none: the second pass of a proof may follow one.
TREATED = frozenset({"gpu_reset", "part_replaced", "work_done", "power_off", "flash_started"})
# What an act of ours looks like in the log, by the treatments that may cause it.
ACTS: Mapping[str, tuple[str, ...]] = {
    "gpu_reset": ("reset",),
    "reboot": ("reboot",),
    "power_off": ("power_cycle", "reflash"),
    "flash_started": ("reflash",),
}
JOB_GONE = frozenset({"job_ended", "job_evicted", "job_killed"})
OWED = 2


@dataclass(frozen=True)
class Returns:
    """Opened gates of repairs: proven ones counted, unproven ones named, people's set apart."""

    proven: int = 0
    by_person: int = 0
    unproven: tuple[str, ...] = ()


@dataclass
class _Node:
    """What the log has said of one node so far."""

    marks: set[str] = field(default_factory=set)
    job: str = ""
    runs: list[tuple[bool, frozenset[str]]] = field(default_factory=list)
    reason: str = ""


def read_log(directory: Path) -> list[dict[str, Any]]:
    """The log of the simulated fleet in `directory`; a line that is being written is left out."""
    rows = []
    for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def is_quarantine(mark: str) -> bool:
    """Whether a mark is a repair's: neither a withheld node's nor a borrowed neighbour's."""
    withheld = mark.startswith(f"{MARK_PREFIX}withheld")
    return is_ours(mark) and not withheld and not is_borrow(mark)


def moves(log: Log) -> Iterator[Row]:
    """The gates that repairs closed and opened."""
    for row in log:
        if row["kind"] in {"gate_closed", "gate_opened"} and is_quarantine(row["mark"]):
            yield row


def over_budget(
    log: Log, inventory: Collection[Row], *, allowance: int, window_s: float, out_at_once: int
) -> list[str]:
    """Windows with too many closures, too many nodes out, and two nodes of one group out.

    `window_s` is in seconds of the wall clock, as the log's `wall` is.
    """
    of = {n["node"]: n for n in inventory}
    wrong: list[str] = []
    closed_at: dict[str, list[float]] = defaultdict(list)
    out: dict[str, set[str]] = defaultdict(set)
    for row in moves(log):
        node, pool = row["node"], of[row["node"]]["pool"]
        if row["kind"] == "gate_opened":
            out[pool].discard(node)
            continue
        closed_at[pool].append(row["wall"])
        inside = sum(at > row["wall"] - window_s for at in closed_at[pool])
        if inside > allowance:
            wrong.append(f"{pool}: {inside} closures in the window that ends with {node}'s")
        group = of[node]["group"]
        wrong += [f"{node} was taken out beside {mate} of {group}"
                  for mate in out[pool] - {node} if of[mate]["group"] == group]  # fmt: skip
        out[pool].add(node)
        if len(out[pool]) > out_at_once:
            wrong.append(f"{pool}: {len(out[pool])} nodes out at once")
    return wrong


def judge_returns(log: Log, *, by_person: Collection[str] = ()) -> Returns:
    """Every opened gate follows two passing diagnoses in a row that could see its trigger.

    `by_person` are the ids of repairs that a named person released: those are no returns.
    """
    theirs = {mark_of(repair_id) for repair_id in by_person}
    nodes: dict[str, _Node] = defaultdict(_Node)
    proven, released, wrong = 0, 0, list[str]()
    for row in log:
        here = nodes[str(row.get("node"))]
        if row["kind"] in TREATED:
            here.runs.clear()
        elif row["kind"] == "tool_run" and row["tool"] == "dcgmi" and "diag" in row["argv"]:
            here.runs.append((row["exit"] == 0, tests_run(row["argv"])))
        elif row["kind"] == "gate_closed" and is_quarantine(row["mark"]):
            here.reason = row["reason"].removeprefix("hard_fail:")
        elif row["kind"] == "gate_opened" and row["mark"] in theirs:
            released += 1
        elif row["kind"] == "gate_opened" and is_quarantine(row["mark"]):
            why = _unproven(here)
            proven += not why
            wrong += [f"{row['node']} ({here.reason}) returned {why}"] if why else []
    return Returns(proven, released, tuple(wrong))


def _unproven(node: _Node) -> str:
    last = node.runs[-OWED:]
    if len(last) < OWED:
        return f"after {len(last)} runs"
    if not all(passed for passed, _ in last):
        return "after a failing run"
    wanted = CAUGHT_BY.get(node.reason, frozenset())
    if not all(tests & wanted for _, tests in last):
        return f"by runs of {', '.join(sorted(last[-1][1]))} that could not see its trigger"
    return ""


def tests_run(argv: Sequence[str]) -> frozenset[str]:
    """The tests of one `dcgmi diag` call, by name or by level."""
    names = argv[argv.index("-r") + 1]
    if not re.fullmatch(r"\d", names):
        return frozenset(names.split(","))
    by_level = (("software",), ("memory", "pcie"),
                ("diagnostic", "targeted_stress", "targeted_power"))  # fmt: skip
    return frozenset(t for tests in by_level[: int(names)] for t in tests)


def undrained(log: Log) -> list[str]:
    """Destructive acts on a node without a mark of a repair, or with a job still on it."""
    nodes: dict[str, _Node] = defaultdict(_Node)
    wrong = []
    for row in log:
        kind, here = row["kind"], nodes[str(row.get("node"))]
        if kind == "gate_closed":
            here.marks.add(row["mark"])
        elif kind == "gate_opened":
            here.marks.discard(row["mark"])
        elif kind == "job_started":
            here.job = row["job"]
        elif kind in JOB_GONE:
            here.job = ""
        elif kind in ACTS:
            if not any(is_quarantine(mark) for mark in here.marks):
                wrong.append(f"{kind} of {row['node']} at {row['wall']} without a mark of a repair")
            if here.job:
                wrong.append(f"{kind} of {row['node']} at {row['wall']} under job {here.job}")
    return wrong


def foreign_touched(log: Log) -> list[str]:
    """Marks of others that were taken away."""
    return [f"{row['node']}: {row['mark']} was taken away"
            for row in log
            if row["kind"] == "gate_opened" and not is_ours(row["mark"])]  # fmt: skip


def doubled(log: Log, asked: Mapping[tuple[str, str], int]) -> list[str]:
    """Acts the machines saw beyond what was asked of them, per node and kind."""
    seen = Counter((str(row["node"]), row["kind"]) for row in log if row["kind"] in ACTS)
    wrong = []
    for (node, kind), count in sorted(seen.items()):
        most = sum(asked.get((node, treatment), 0) for treatment in ACTS[kind])
        if count > most:
            wrong.append(f"{node}: {count} times {kind}, asked for {most} times")
    return wrong


def asked_of(state_dir: Path) -> Counter[tuple[str, str]]:
    """How many operations each node was asked for, by treatment: refused ones left out.

    Read from the nodes' own journals and from the store's journal of acts out of band (SQLite).
    """
    asked: Counter[tuple[str, str]] = Counter()
    for journal in sorted((state_dir / "nodes").glob("*/journal.db")):
        for name, outcome in _rows(journal, "select operation_id, outcome from operations"):
            if outcome != "permanent":
                asked[journal.parent.name, name.rpartition("-")[2]] += 1
    for node, treatment in _rows(
        state_dir / "sickbay.db", "select node, treatment from operations"
    ):
        asked[node, treatment] += 1
    return asked


def _rows(database: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(database, timeout=10)) as db:
        return db.execute(query).fetchall()
