"""A small pool of nodes with pages one can bend, scored by the shipped rule set."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any

import pytest

from sickbay.contracts.scoring import scaled_times
from sickbay.domain.node import Node, Part, PartKind
from sickbay.domain.signal import KernelRecord, NodeReadings, PartPage
from sickbay.scoring.pool import Change, PoolScorer
from sickbay.scoring.ruleset import RuleSet, load_ruleset

T0 = datetime(2026, 12, 1, tzinfo=UTC)
GOOD = {
    "DCGM_FI_DEV_POWER_USAGE": 400.0,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1000.0,
    "DCGM_FI_DEV_GPU_UTIL": 95.0,
    "DCGM_FI_DEV_SM_CLOCK": 1980.0,
    "DCGM_FI_DEV_GPU_TEMP": 60.0,
    "DCGM_FI_DEV_MEMORY_TEMP": 70.0,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0.0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 0.0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": 0.0,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0.0,
    "DCGM_FI_DEV_GPU_RECOVERY_ACTION": 0.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": 16.0,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0.0,
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 0.0,
}


def bus(slot: int) -> str:
    return f"0000:{0x10 + slot:02x}:00"


def make_node(at: int) -> Node:
    parts = tuple(
        Part(f"gpu{g}", PartKind.GPU, f"GPU-{at}-{g}", f"{at}{g:03}", bus(g)) for g in range(8)
    )
    return Node(f"n{at:03}", "pool-a", f"g{at // 4}", "r1", "h200x8", parts)


@dataclass
class World:
    """Nodes whose pages a test bends, and the scorer that reads them."""

    scorer: PoolScorer
    nodes: list[Node]
    now: datetime = T0
    step_s: float = 15.0
    silent: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    gone: set[tuple[str, str]] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    records: dict[str, list[KernelRecord]] = field(default_factory=dict)
    uuids: dict[tuple[str, str], str] = field(default_factory=dict)
    bent: dict[tuple[str, str], dict[str, float | None]] = field(default_factory=dict)
    energy: float = 1000.0

    def bend(self, node: str, slot: str, **values: float | None) -> None:
        named = {f"DCGM_FI_DEV_{k}": v for k, v in values.items()}
        self.bent.setdefault((node, slot), {}).update(named)

    def log(self, node: str, message: str, *, boot: str = "boot-1", at: datetime | None = None):
        at = at or self.now
        stamp = int((at - T0).total_seconds() * 1e6)
        self.records.setdefault(node, []).append(KernelRecord(boot, stamp, message, at))

    def page(self, node: Node) -> tuple[PartPage, ...]:
        pages = []
        for at, part in enumerate(node.parts):
            if (node.id, part.slot) in self.gone:
                continue
            values: dict[str, float | None] = {**GOOD}
            if node.id not in self.frozen:
                values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] = self.energy
            values.update(self.bent.get((node.id, part.slot), {}))
            uuid = self.uuids.get((node.id, part.slot), part.uuid)
            numbers = {k: v for k, v in values.items() if v is not None}
            pages.append(PartPage(uuid, str(at), part.bus_id, numbers))
        return tuple(pages)

    def tick(self, count: int = 1) -> dict[str, Change]:
        """Advance, read, score; the last change of each node that has one."""
        out: dict[str, Change] = {}
        for _ in range(count):
            self.now += timedelta(seconds=self.step_s)
            self.energy += 5.0
            readings = [
                NodeReadings(
                    n.id,
                    self.now,
                    None if n.id in self.silent else self.page(n),
                    error="no answer" if n.id in self.silent else "",
                    records=tuple(self.records.pop(n.id, ())),
                )
                for n in self.nodes
            ]
            self.scorer.absorb(readings, now=self.now)
            for change in self.scorer.evaluate(now=self.now, held=self.held):
                before = out.get(change.node)
                found = (*before.findings, *change.findings) if before else change.findings
                out[change.node] = replace(change, findings=found)
        return out

    def until(self, seconds: float) -> dict[str, Change]:
        return self.tick(int(seconds / self.step_s))


@pytest.fixture
def make_fast_world(rules: RuleSet) -> Callable[..., World]:
    def make(time_scale: float) -> World:
        nodes = [make_node(0), make_node(1)]
        times = scaled_times(rules, time_scale=time_scale)
        scorer = PoolScorer(rules, times=times, time_scale=time_scale)
        scorer.set_nodes(nodes)
        world = World(scorer, nodes, step_s=times.tick_s)
        world.tick(10)
        return world

    return make


@pytest.fixture(scope="session")
def rule_content() -> Mapping[str, Any]:
    text = files("sickbay.scoring").joinpath("default_rules.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@pytest.fixture(scope="session")
def rules(rule_content: Mapping[str, Any]) -> RuleSet:
    return load_ruleset(rule_content)


@pytest.fixture
def make_world(rules: RuleSet) -> Callable[..., World]:
    def make(count: int = 2, nodes: Sequence[Node] | None = None) -> World:
        nodes = list(nodes) if nodes is not None else [make_node(i) for i in range(count)]
        scorer = PoolScorer(rules, times=rules.times)
        scorer.set_nodes(nodes)
        world = World(scorer, nodes)
        world.tick(30)
        return world

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(2)
