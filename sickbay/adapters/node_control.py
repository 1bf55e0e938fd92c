"""Acts on this node, detached, and reads the outcome off the machine: the NodeControl port.

The act runs under a tiny supervisor in a session of its own, so that killing the worker neither
kills nor forgets it. Its exit status is written atomically beside its output; a supervisor that is
gone without one leaves the outcome to be read off the machine.
"""

import asyncio
import hashlib
import math
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sickbay.contracts.steps import Effect, NodeFacts, Outcome
from sickbay.domain.node import Part, Treatment
from sickbay.errors import NodeUnreadable
from sickbay.ports import Inventory
from sickbay.readers import nvidia_smi
from sickbay.readers.parts import bus_id
from sickbay.tool_process import ToolRun, run_tool

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
FACTS_DEADLINE_S = 30.0
MOST_GPUS = 32
"""More than any node holds: a list that goes on is not believed."""
STARTING_S = 5.0
_GONE = "the act's supervisor is gone without an exit status"
# $1 is the stem of the state files, the rest is the act. The status appears whole or not at all.
_BEGIN = 'stem="$1"; shift; echo $$ >"$stem.pid"; '
_FINISH = 'echo $rc >"$stem.rc.new"; mv "$stem.rc.new" "$stem.rc"'
_PLAIN = _BEGIN + '"$@" >"$stem.out" 2>&1; rc=$?; ' + _FINISH
CLIENTS = (
    "dcgm-exporter.service",
    "nvidia-dcgm.service",
    "nvsm.service",
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
)
"""Services that may hold a GPU and so refuse its reset, in the order they are stopped."""
# Persistence mode is a client of the GPU and blocks the reset. It is allowed to fail, and is
# switched on again only where it was on. Only a reset that was refused because the GPU is in use
# (so it did nothing) stops services; those that ran are started again, in the opposite order.
_RESET = (
    _BEGIN
    + 'smi="$1"; gpu="$2"; shift 2; released=""; '
    + 'try() { "$smi" --gpu-reset -i "$gpu" >"$stem.out" 2>&1; }; '
    + '"$smi" -pm 0 -i "$gpu" >"$stem.pm" 2>&1; off=$?; '
    + "try; rc=$?; "
    + 'if [ $rc -ne 0 ] && grep -qiE "(currently )?in use by another" "$stem.out"; then '
    + 'for unit in "$@"; do '
    + 'systemctl is-active --quiet "$unit" >/dev/null 2>&1 || continue; '
    + 'released="$unit $released"; echo "$unit" >>"$stem.released"; '
    + 'timeout 120 systemctl stop "$unit" >>"$stem.pm" 2>&1; done; '
    + '[ -z "$released" ] || { try; rc=$?; }; '
    + "for unit in $released; do "
    + 'timeout 120 systemctl start "$unit" >>"$stem.pm" 2>&1 || echo "$unit" >>"$stem.stopped"; '
    + "done; fi; "
    + 'if [ $off -eq 0 ] && ! grep -qi already "$stem.pm"; then '
    + '"$smi" -pm 1 -i "$gpu" >>"$stem.pm" 2>&1; fi; '
    + _FINISH
)


class NvidiaNodeControl:
    """Resets and reboots with the node's own tools."""

    def __init__(
        self,
        *,
        node_id: str,
        inventory: Inventory,
        state_dir: Path,
        env: Mapping[str, str] | None = None,
        boot_id_file: Path = BOOT_ID_FILE,
    ) -> None:
        self._node_id = node_id
        self._inventory = inventory
        self._acts = state_dir / "acts"
        self._acts.mkdir(parents=True, exist_ok=True)
        self._env = dict(env) if env is not None else None
        self._boot_id_file = boot_id_file

    async def boot_id(self) -> str:
        """The present boot id. Raises `NodeUnreadable` while the node is down."""
        try:
            return self._boot_id_file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise NodeUnreadable(f"no boot id: the node is down ({error.strerror})") from error

    async def facts(self) -> NodeFacts:
        """Boot id and the parts the node sees, in the slots the inventory knows them by."""
        node = await self._inventory.node(self._node_id)
        known = node.parts if node else ()
        run = await self._query()
        seen = nvidia_smi.read_parts(run.text) or await self._survivors(run.text)
        if not seen:
            first = run.text.strip().splitlines()[:1] or [run.why]
            raise NodeUnreadable(f"the node shows no parts: {first[0]}")
        parts = tuple(replace(part, slot=_slot(part, known)) for part in seen)
        return NodeFacts(boot_id=await self.boot_id(), parts=parts)

    async def _survivors(self, said: str) -> tuple[Part, ...]:
        """The GPUs that still answer when a lost one ended the query of all: asked one by one."""
        if not nvidia_smi.lost_gpus(said):
            return ()
        listed = await run_tool(["nvidia-smi", "-L"], env=self._env, deadline_s=FACTS_DEADLINE_S)
        found: list[Part] = []
        for uuid in nvidia_smi.read_listed(listed.text)[:MOST_GPUS]:
            run = await self._query("-i", uuid)
            found += [part for part in nvidia_smi.read_parts(run.text) if part.uuid == uuid]
        return tuple(found)

    async def _query(self, *which: str) -> ToolRun:
        argv = ["nvidia-smi", "-q", "-x", *which]
        return await run_tool(argv, env=self._env, deadline_s=FACTS_DEADLINE_S)

    async def start(self, treatment: Treatment, *, part: Part | None, operation_id: str) -> None:
        """Start the act once per operation id; an act that was started is never started again."""
        stem = self._stem(operation_id)
        if not _available(treatment, part) or stem.with_suffix(".started").exists():
            return
        if treatment is Treatment.RESET and part is not None:
            script, argv = _RESET, ["nvidia-smi", await self._target(part), *CLIENTS]
        else:
            script, argv = _PLAIN, ["systemctl", "reboot"]
        if _mark_started(stem, operation_id):
            await asyncio.to_thread(self._supervise, script, stem, argv)

    async def _target(self, part: Part) -> str:
        """How the driver knows this part now: bus ids drift over boots, the UUID does not.

        When another part answers in its place, the UUID is given and the driver refuses it.
        """
        run = await self._query()
        seen = nvidia_smi.read_parts(run.text)
        same = next((p for p in seen if p.uuid == part.uuid and p.bus_id), None)
        if same is not None:
            return same.bus_id
        taken = any(p.bus_id == bus_id(part.bus_id) for p in seen)
        return part.uuid if taken or not part.bus_id else part.bus_id

    def _supervise(self, script: str, stem: Path, argv: list[str]) -> None:
        subprocess.Popen(
            ["/bin/sh", "-c", script, "sickbay-act", str(stem), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._env,
            start_new_session=True,
        )

    async def progress(
        self, treatment: Treatment, *, part: Part | None, operation_id: str, boot_id_before: str
    ) -> Effect | None:
        """None while the act runs, else its outcome as the machine shows it."""
        if not _available(treatment, part):
            return Effect(Outcome.PERMANENT, f"{treatment} is not available on this node")
        stem = self._stem(operation_id)
        if treatment is Treatment.REBOOT:
            return await self._reboot_progress(stem, boot_id_before)
        # Asked in this order: a status written in between is then seen.
        running = self._supervised(stem)
        code = _exit_code(stem)
        if code is not None:
            text = stem.with_suffix(".out").read_text(encoding="utf-8", errors="replace")
            return _with_services(nvidia_smi.read_reset(text, exit_code=code), stem)
        return None if running else Effect(Outcome.AMBIGUOUS, _GONE)

    async def _reboot_progress(self, stem: Path, boot_id_before: str) -> Effect | None:
        """Rebooted once the boot id is another one and the node's tools answer again."""
        if await self.boot_id() != boot_id_before:
            await self.facts_or_tools()
            return Effect(Outcome.SUCCEEDED, "rebooted")
        running = self._supervised(stem)
        code = _exit_code(stem)
        if code not in {None, 0}:
            return Effect(Outcome.PERMANENT, f"refused: the reboot command ended with {code}")
        return Effect(Outcome.AMBIGUOUS, _GONE) if code is None and not running else None

    async def facts_or_tools(self) -> None:
        """Raises `NodeUnreadable` while the driver does not answer at all."""
        run = await run_tool(["nvidia-smi", "-L"], env=self._env, deadline_s=FACTS_DEADLINE_S)
        if run.exit_code is None or "GPU" not in run.text:
            raise NodeUnreadable("the driver does not answer yet")

    def _stem(self, operation_id: str) -> Path:
        return self._acts / hashlib.sha256(operation_id.encode()).hexdigest()[:32]

    def _supervised(self, stem: Path) -> bool:
        """Whether the supervisor runs, or was started just now and has not said so yet."""
        try:
            pid = int(stem.with_suffix(".pid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return _age_s(stem.with_suffix(".started")) < STARTING_S
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return str(stem).encode() in words


def _available(treatment: Treatment, part: Part | None) -> bool:
    """A reset without a part would reset every GPU of the node: it is not to be had."""
    return treatment is Treatment.REBOOT or (treatment is Treatment.RESET and part is not None)


def _mark_started(stem: Path, operation_id: str) -> bool:
    """Whether this call is the one that starts the act; durable before it starts."""
    try:
        with stem.with_suffix(".started").open("x", encoding="utf-8") as marker:
            marker.write(operation_id)
            marker.flush()
            os.fsync(marker.fileno())
    except FileExistsError:
        return False
    folder = os.open(stem.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def _age_s(path: Path) -> float:
    """Seconds since a file was written, infinite when it is not there."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return math.inf


def _with_services(effect: Effect, stem: Path) -> Effect:
    """The effect, with the services that were stopped for it and those that did not come back."""
    released, stopped = _listed(stem, ".released"), _listed(stem, ".stopped")
    detail = effect.detail
    if released:
        detail += (
            f"; stopped for it and started again: {', '.join(sorted(released - stopped)) or 'none'}"
        )
    if stopped:
        detail += f"; NOT started again: {', '.join(sorted(stopped))}"
    return replace(effect, detail=detail)


def _listed(stem: Path, suffix: str) -> set[str]:
    try:
        return set(stem.with_suffix(suffix).read_text(encoding="utf-8").split())
    except OSError:
        return set()


def _exit_code(stem: Path) -> int | None:
    try:
        return int(stem.with_suffix(".rc").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _slot(part: Part, known: tuple[Part, ...]) -> str:
    same = next((p for p in known if p.uuid == part.uuid), None)
    if same is not None:
        return same.slot
    return next((p.slot for p in known if bus_id(p.bus_id) == part.bus_id), "")
