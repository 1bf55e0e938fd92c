"""An embedded installation: what `sickbay up` starts, in which order, and how it becomes ready."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx

from sickbay.access import DEFAULT_NAMESPACE, access_of
from sickbay.cli.output import console
from sickbay.cli.processes import (
    LOOPBACK,
    Processes,
    free_port,
    module,
    temporal_cli,
    temporal_server,
)
from sickbay.cli.session import RUN_FILE
from sickbay.cluster_settings import TemporalSettings
from sickbay.connection import connect, open_client
from sickbay.errors import Refused, UsageError
from sickbay.rules import read_rules
from sickbay.settings import Settings, save_resolved
from sickbay.simulator.config import FaultPlan, SimulatorConfig

READY_TIMEOUT_S = 30.0
POLL_S = 0.05


class Installation:
    """All processes of one embedded installation, by one state directory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.processes = Processes()
        self.run_file = settings.state_dir / RUN_FILE
        self._logs = settings.state_dir / "logs"

    async def start(self) -> None:
        """Start everything; returns when Temporal and the simulated fleet answer.

        Raises:
            UsageError: a port is in use, or Temporal's program is not installed.
            Unreachable: the named Temporal cluster does not answer.
            Refused: something started did not become ready; its last lines are in the message.
        """
        read_rules(self.settings.rules)
        resolved = await self._start_temporal()
        if resolved.simulator.enabled:
            await self._start_simulator(resolved)
        self.settings = resolved
        save_resolved(resolved, self.run_file)
        config = ["--config", str(self.run_file)]
        self._start("workers.control", *config)
        if resolved.push.port:
            self._start("workers.dashboard", *config)
        shares = resolved.simulator.node_processes
        for share in range(shares):
            label = "workers.node" if shares == 1 else f"workers.node-{share + 1}"
            self._start("workers.node", *config, "--share", f"{share + 1}/{shares}", label=label)
        if resolved.simulator.enabled and resolved.simulator.technician:
            self._start("workers.technician", *config)

    async def stop(self) -> None:
        """Stop all that was started, last first."""
        await self.processes.stop()

    def _start(self, name: str, *args: str, label: str | None = None) -> None:
        log = self._logs / f"{label or name}.log"
        self.processes.start(module(name, *args, log=log, label=label))

    async def _start_temporal(self) -> Settings:
        settings = self.settings
        temporal = settings.temporal
        access = access_of(temporal)
        if access is not None:
            if not temporal.address:
                console.print(
                    f"Temporal at {access.address}, by TEMPORAL_* variables or a profile"
                    " (temporal.environment = false leaves them out)"
                )
            await open_client(settings, wait_s=READY_TIMEOUT_S)
            found = {"address": access.address, "namespace": access.namespace}
            return settings.model_copy(update={"temporal": temporal.model_copy(update=found)})
        namespace = temporal.namespace or DEFAULT_NAMESPACE
        cli = temporal_cli()
        port = free_port(temporal.port, what="Temporal", field="temporal.port")
        ui_port = free_port(temporal.ui_port, what="Temporal's UI", field="temporal.ui_port")
        child = temporal_server(
            cli=cli,
            port=port,
            ui_port=ui_port,
            namespace=namespace,
            database=settings.state_dir / "temporal.db",
            log=self._logs / "temporal.log",
        )
        self.processes.start(child)
        address = f"{LOOPBACK}:{port}"
        await connect(address, namespace=namespace, wait_s=READY_TIMEOUT_S)
        # The server is ours and plain: what the environment says of another one is not for it.
        resolved = TemporalSettings(
            address=address, namespace=namespace, port=port, ui_port=ui_port, environment=False
        )
        return settings.model_copy(update={"temporal": resolved})

    async def _start_simulator(self, settings: Settings) -> None:
        directory = settings.simulator_dir.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        config_file = directory / "config.json"
        simulator_config(settings, directory).save(config_file)
        ready_file = directory / "simulator.json"
        ready_file.unlink(missing_ok=True)
        child = module(
            "sickbay.simulator", "--config", str(config_file), log=self._logs / "simulator.log"
        )
        self.processes.start(child)
        ends_at = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < ends_at:
            if _is_ready(ready_file):
                await _check_pools(settings, ready_file)
                return
            if not child.running:
                break
            await asyncio.sleep(POLL_S)
        raise Refused(f"the simulated fleet did not start:\n{child.last_lines()}")


def simulator_config(settings: Settings, directory: Path) -> SimulatorConfig:
    """The simulator's own configuration."""
    s = settings.simulator
    fields: dict[str, Any] = {
        "dir": directory,
        "port": s.port,
        "nodes": s.nodes,
        "gpus_per_node": s.gpus_per_node,
        "pools": s.pools,
        "group_size": s.group_size,
        "nodes_per_rack": s.nodes_per_rack,
        "seed": s.seed,
        "bmc_port": s.bmc_port,
        "bmc_tls": s.bmc_tls,
        "time_scale": settings.time_scale,
        "faults": FaultPlan(
            count=s.faults,
            weights=s.fault_weights,
            start_after_h=s.faults_start_after_h,
            until_h=s.faults_until_h,
        ),
    }
    return SimulatorConfig(**fields)


async def _check_pools(settings: Settings, ready_file: Path) -> None:
    """Refuse settings of a pool the fleet does not have: a switch would be lost to a typo."""
    base_url = json.loads(ready_file.read_text(encoding="utf-8"))["base_url"]
    async with httpx.AsyncClient(timeout=READY_TIMEOUT_S) as http:
        known = sorted(
            {n["pool"] for n in (await http.get(f"{base_url}/inventory")).json()["nodes"]}
        )
    unknown = sorted(set(settings.pools) - set(known))
    if unknown:
        raise UsageError(
            f"no pool {unknown[0]!r} in this fleet",
            field=f"pools.{unknown[0]}",
            remedy=f"its pools are: {', '.join(known)}",
        )


def _is_ready(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["base_url"])
    except (OSError, ValueError, KeyError):
        return False
