"""The one model of nodes, parts, defects and time, and how its changes are kept.

Everything happens on one thread: a change runs to its end and is committed before its answer leaves
the process.
"""

import heapq
import json
from collections.abc import Callable
from typing import Any

from sickbay.errors import SickbayError, UsageError
from sickbay.simulator.clock import Clock
from sickbay.simulator.config import SimulatorConfig
from sickbay.simulator.defects import Defect
from sickbay.simulator.draws import Draws
from sickbay.simulator.fleet import boot_id, build_fleet
from sickbay.simulator.hardware import Gpu, Node
from sickbay.simulator.kernel import ERROR_PRIORITY, INFO_PRIORITY, KERNEL, Journal, Record
from sickbay.simulator.persist import Change, StateFiles


class WorldError(SickbayError):
    """The outside world answers no; `status` is the HTTP status of that answer."""

    status = 422


class NotThere(WorldError):
    """No such node, slot or entry."""

    status = 404


class NotNow(WorldError):
    """It exists and cannot be done in its present state."""

    status = 409


class World:
    """All state of one simulated fleet.

    Attributes:
        handlers: what to do when a due event of a name comes; called with its key.
        revision: per node, grows when the identity of its parts changes (for cached pages).
        bmc: what the management controllers keep; `bmc_changed` says that it is to be saved.
    """

    def __init__(self, config: SimulatorConfig, *, files: StateFiles) -> None:
        self.config = config
        self.files = files
        meta = files.meta()
        _same_fleet(config, meta)
        self.resumed = bool(meta)
        self.clock = Clock(config.time_scale, start_h=meta.get("sim_h", 0.0))
        self.draws = Draws(config.seed, counts=meta.get("counts"))
        self.numbers: dict[str, int] = dict(meta.get("numbers", {}))
        self.waiting: list[dict[str, Any]] = list(meta.get("waiting", []))
        self.bmc: dict[str, Any] = dict(meta.get("bmc", {}))
        self.bmc_changed = False
        saved = [Node.from_dict(data) for data in files.nodes()]
        nodes = saved or build_fleet(config, draws=self.draws)
        self.nodes = {node.name: node for node in nodes}
        self.defects = {d.id: d for d in map(Defect.from_dict, files.defects())}
        self.journals = files.journals()
        self.lines = files.lines
        self.handlers: dict[str, Callable[[str], None]] = {}
        self.revision: dict[str, int] = dict.fromkeys(self.nodes, 0)
        self._events: list[tuple[float, int, str, str]] = []
        self._event_number = 0
        self._dirty: set[str] = set()
        self._changed_defects: dict[str, Defect | None] = {}
        self._new_records: list[tuple[str, Record]] = []
        self._new_lines: list[tuple[int, str]] = []

    @property
    def now_h(self) -> float:
        """The present simulated hour."""
        return self.clock.now_h()

    @property
    def seq(self) -> int:
        """The number of the newest log row."""
        return len(self.lines) + len(self._new_lines)

    def node(self, name: str) -> Node:
        """The node of this name. Raises `NotThere`."""
        node = self.nodes.get(name)
        if node is None:
            raise NotThere(f"no node {name!r}: the fleet has {', '.join(self._some_nodes())}")
        return node

    def gpu(self, name: str, *, slot: str) -> tuple[Node, Gpu]:
        """A node and the GPU in one of its slots. Raises `NotThere`."""
        node = self.node(name)
        gpu = node.gpu(slot)
        if gpu is None:
            slots = ", ".join(g.slot for g in node.gpus)
            raise NotThere(f"{name} has no slot {slot!r}: its slots are {slots}")
        return node, gpu

    def number(self, what: str) -> int:
        """The next number of a kind of thing."""
        self.numbers[what] = self.numbers.get(what, 0) + 1
        return self.numbers[what]

    def log(self, kind: str, *, node: str | None = None, **more: object) -> None:
        """Add one row to the simulator's own log."""
        row: dict[str, object] = {
            "seq": self.seq + 1,
            "wall": round(self.clock.wall(), 6),
            "sim_h": round(self.now_h, 6),
            "kind": kind,
        }
        if node is not None:
            row["node"] = node
        self._new_lines.append((self.seq + 1, json.dumps(row | more)))

    def say(self, node: Node, message: str, *, transport: str = KERNEL) -> None:
        """The node's journal gets a record."""
        journal = self.journals.setdefault(node.name, Journal())
        record = journal.add(
            message,
            boot_id=node.boot_id,
            wall=self.clock.wall(),
            booted_at=node.booted_at,
            transport=transport,
            priority=ERROR_PRIORITY if "NVRM" in message else INFO_PRIORITY,
        )
        self._new_records.append((node.name, record))

    def touch(self, node: Node) -> None:
        """The node changed and is to be saved."""
        self._dirty.add(node.name)

    def keep_defect(self, defect: Defect) -> None:
        """Save a defect that is new or changed."""
        self.defects[defect.id] = defect
        self._changed_defects[defect.id] = defect

    def drop_defect(self, defect: Defect) -> None:
        """Forget a defect that is cured."""
        del self.defects[defect.id]
        self._changed_defects[defect.id] = None

    def defects_of(self, node: str, *, slot: str | None = None) -> list[Defect]:
        """The active defects of a node, or of one of its slots."""
        return [
            d for d in self.defects.values() if d.node == node and (slot is None or d.slot == slot)
        ]

    def boot(self, node: Node) -> None:
        """The node's kernel starts: a new boot id and an empty job table, GPUs enumerated anew."""
        node.boots += 1
        node.boot_id = boot_id(node.name, boots=node.boots, draws=self.draws)
        node.booted_at = self.clock.wall()
        node.down_until_h = None
        node.watch_since_h = None
        node.enumerate_gpus()
        self.revision[node.name] += 1
        self.say(node, "Linux version 5.15.0-126-generic (gcc 11.4.0) #136-Ubuntu SMP")
        self.say(node, f"nvidia: loading NVIDIA UNIX Open Kernel Module for {node.node_class}")
        self.touch(node)

    def at(self, at_h: float, *, event: str, key: str = "") -> None:
        """Call the event's handler at a simulated moment."""
        self._event_number += 1
        heapq.heappush(self._events, (at_h, self._event_number, event, key))

    def advance(self) -> None:
        """Handle all that is due by now."""
        # Bounded: a handler that plans itself at the present moment must not hold the process.
        for _ in range(10_000):
            if not self._events or self._events[0][0] > self.now_h:
                return
            _, _, event, key = heapq.heappop(self._events)
            self.handlers[event](key)

    def commit(self, *, always: bool = False) -> None:
        """Save what changed; `always` saves the clock too when nothing did."""
        changed = self._dirty or self._new_lines or self._changed_defects or self.bmc_changed
        if not (always or changed):
            return
        meta = {
            "fleet": _fingerprint(self.config),
            "sim_h": self.now_h,
            "counts": self.draws.counts,
            "numbers": self.numbers,
            "waiting": self.waiting,
            "bmc": self.bmc,
        }
        change = Change(
            meta=meta,
            nodes={name: self.nodes[name].to_dict() for name in self._dirty},
            defects={
                key: value.to_dict() if value else None
                for key, value in self._changed_defects.items()
            },
            records=self._new_records,
            lines=self._new_lines,
        )
        self.files.commit(change)
        self.lines.extend(line for _, line in self._new_lines)
        self._dirty = set()
        self._changed_defects = {}
        self._new_records = []
        self._new_lines = []
        self.bmc_changed = False
        self._write_boot_ids(change.nodes)

    def write_all_boot_ids(self) -> None:
        """Bring the boot id files into line with the state, after a start."""
        self._write_boot_ids(self.nodes)

    def _write_boot_ids(self, names: Any) -> None:
        for name in names:
            node = self.nodes[name]
            path = self.config.dir / "nodes" / name / "boot_id"
            if not node.up:
                path.unlink(missing_ok=True)
                continue
            text = f"{node.boot_id}\n"
            if path.exists() and path.read_text(encoding="ascii") == text:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            fresh.write_text(text, encoding="ascii")
            fresh.replace(path)

    def _some_nodes(self) -> list[str]:
        names = list(self.nodes)
        return names if len(names) <= 3 else [names[0], names[1], f"... {names[-1]}"]  # noqa: PLR2004


def _fingerprint(config: SimulatorConfig) -> list[int | float]:
    return [
        *(config.nodes, config.gpus_per_node, config.pools, config.group_size),
        *(config.nodes_per_rack, config.seed, config.dcgm3_share),
    ]


def _same_fleet(config: SimulatorConfig, meta: dict[str, Any]) -> None:
    if meta and meta["fleet"] != _fingerprint(config):
        raise UsageError(
            f"{config.dir}: another fleet (size, seed or layout) is saved there",
            field="dir",
            remedy="give the same nodes, pools and seed, or an empty directory",
        )
