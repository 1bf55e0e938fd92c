"""The socket through which the fake tools reach the hardware of their node.

One JSON line in, one out. What goes out is physical state and measurements; names of faults, suites
or verdicts never do. Only this hides behind the tools, so whoever holds a node holds one node.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sickbay.simulator.engine import Engine
from sickbay.simulator.hardware import DRIVER, LINKS, MEMORY_MHZ, MODEL, Gpu, Node
from sickbay.simulator.physics import LINK_GBPS, sensors
from sickbay.simulator.world import NotThere, WorldError

NAME = "tools.sock"
UNITS = ("memory", "compute", "pcie", "nvlink", "fabric")
LONGEST_LINE = 65_536
LONGEST_EXERCISE_MIN = 24 * 60.0
S_PER_MIN = 60.0


class ToolSocket:
    """Serves the tools of all nodes on one unix socket."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._server: asyncio.Server | None = None
        self._ops: Mapping[str, Callable[[Node, Mapping[str, Any]], dict[str, Any]]] = {
            "read": self._read,
            "gpu_reset": self._gpu_reset,
            "reboot": self._reboot,
            "exercise": self._exercise,
            "watch": self._watch,
            "tool_run": self._tool_run,
        }

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listening(self._engine.config.dir), limit=LONGEST_LINE
        )

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                (self._engine.config.dir / NAME).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            # A tool asks a handful of things and ends; the bound is against a babbling client.
            for _ in range(1000):
                line = await reader.readline()
                if not line:
                    break
                writer.write(json.dumps(self._answer(line)).encode() + b"\n")
                await writer.drain()
        writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            act = self._ops[asked["op"]]
            name = str(asked["node"])
        except (ValueError, KeyError, TypeError):
            return _no("bad_request", f"one of {', '.join(self._ops)} with a node is wanted")
        try:
            return self._engine.change(lambda: self._on(name, act, asked))
        except NotThere as error:
            return _no("not_found", error.message)
        except WorldError as error:
            return _no(error.field or "refused", error.message)
        except (KeyError, TypeError, ValueError) as error:
            return _no("bad_request", f"{asked['op']}: {error}")

    def _on(
        self,
        name: str,
        act: Callable[[Node, Mapping[str, Any]], dict[str, Any]],
        asked: Mapping[str, Any],
    ) -> dict[str, Any]:
        node = self._engine.world.node(name)
        if not node.up:
            return _no("down", f"{name} does not answer")
        if asked.get("boot_id", node.boot_id) != node.boot_id:
            return _no("gone", "the machine was started again meanwhile")
        return {"ok": True, **act(node, asked)}

    def _read(self, node: Node, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"node": physical(node, now_h=self._engine.world.now_h), "scale": self._scale()}

    def _gpu_reset(self, node: Node, asked: Mapping[str, Any]) -> dict[str, Any]:
        minutes = self._engine.treatments.reset(node.name, bus_id=str(asked["bus_id"]))
        return {"sleep_s": self._sleep_s(minutes)}

    def _reboot(self, node: Node, _: Mapping[str, Any]) -> dict[str, Any]:
        self._engine.treatments.reboot(node.name)
        return {}

    def _exercise(self, node: Node, asked: Mapping[str, Any]) -> dict[str, Any]:
        what, minutes = asked["what"], float(asked["minutes"])
        if what not in UNITS or not 0 < minutes <= LONGEST_EXERCISE_MIN:
            raise ValueError(f"what is one of {', '.join(UNITS)}, minutes is above 0")
        indices = [int(index) for index in asked["indices"]]
        gpus = self._engine.treatments.exercise(
            node.name, what=what, minutes=minutes, indices=indices
        )
        return {"gpus": gpus, "sleep_s": self._sleep_s(minutes)}

    def _watch(self, node: Node, _: Mapping[str, Any]) -> dict[str, Any]:
        if node.watch_since_h is None:
            node.watch_since_h = self._engine.world.now_h
            self._engine.world.touch(node)
        return {}

    def _tool_run(self, node: Node, asked: Mapping[str, Any]) -> dict[str, Any]:
        argv = [str(word) for word in asked["argv"]][:64]
        self._engine.world.log(
            "tool_run", node=node.name, tool=str(asked["tool"]), argv=argv, exit=int(asked["exit"])
        )
        return {}

    def _sleep_s(self, minutes: float) -> float:
        return minutes * S_PER_MIN / self._scale()

    def _scale(self) -> float:
        return self._engine.config.time_scale


def physical(node: Node, *, now_h: float) -> dict[str, Any]:
    """The state of a node's hardware as its own sensors and registers give it."""
    return {
        "name": node.name,
        "boot_id": node.boot_id,
        "dcgm_version": node.dcgm_version,
        "driver": DRIVER,
        "model": MODEL,
        "watched": node.watch_since_h is not None,
        "gpus": [_gpu(node, gpu, now_h=now_h) for gpu in node.gpus if gpu.index is not None],
    }


def _gpu(node: Node, gpu: Gpu, *, now_h: float) -> dict[str, Any]:
    state = sensors(gpu, now_h=now_h, loaded=gpu.busy)
    watched_h = now_h if node.watch_since_h is None else node.watch_since_h
    return {
        "index": gpu.index,
        "bus_id": gpu.bus_id,
        "uuid": gpu.uuid,
        "serial": gpu.serial,
        "vbios": gpu.vbios,
        "answers": gpu.answers,
        "hung": gpu.hung_since_h is not None,
        "pid": node.job.pid if node.job is not None and node.held(gpu) else None,
        "dbe": gpu.dbe,
        "dbe_lifetime": gpu.dbe_lifetime,
        "sbe": int(gpu.sbe.at(now_h)),
        "remap_correctable": gpu.remap_correctable,
        "remap_uncorrectable": gpu.remap_uncorrectable,
        "remap_pending": gpu.remap_pending,
        "remap_failure": gpu.remap_failure,
        "recovery": gpu.recovery,
        "lanes": gpu.lanes,
        "replays": int(gpu.replays.at(now_h)),
        "links": LINKS,
        "link_gbps": LINK_GBPS,
        "links_down": gpu.links_down,
        "link_crc": int(gpu.link_crc.at(now_h)),
        "temp_c": state.temp_c,
        "memory_temp_c": state.memory_temp_c,
        "sm_clock_mhz": state.sm_clock_mhz,
        "memory_clock_mhz": MEMORY_MHZ,
        "power_w": round(state.power_w, 2),
        "util_pct": state.util_pct,
        "reasons": state.reasons,
        # (code, simulated minutes ago) since the diagnostics service watches.
        "xids": [
            (code, round((now_h - at_h) * 60.0, 2)) for code, at_h in gpu.xids if at_h >= watched_h
        ],
    }


def listening(directory: Path) -> socket.socket:
    """The listening socket in a directory whose path may be longer than a socket's may."""
    (directory / NAME).unlink(missing_ok=True)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(f"/proc/self/fd/{handle}/{NAME}")
        sock.listen(128)
    finally:
        os.close(handle)
    sock.setblocking(False)
    return sock


def _no(error: str, says: str) -> dict[str, Any]:
    return {"ok": False, "error": error, "says": says}
