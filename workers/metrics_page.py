"""A worker process's Prometheus page: Temporal's own metrics, and the process itself.

Labels never name nodes: a page must not grow with the fleet. What each node is lives in the store.
"""

import asyncio
import contextlib
import logging
import os
import resource
import time
from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from temporalio.common import MetricMeter
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from sickbay.cluster_settings import MetricsSettings
from sickbay.errors import UsageError

log = logging.getLogger(__name__)

REFRESH_S = 5.0


@contextlib.asynccontextmanager
async def metrics_page(
    settings: MetricsSettings, *, port: int, process: str
) -> AsyncIterator[None]:
    """Serve `/metrics` on `port` while inside; port 0 serves nothing. Enter it before any client.

    Raises:
        UsageError: the address cannot be listened on.
    """
    if not port:
        yield
        return
    runtime = _runtime(settings, port=port, process=process)
    Runtime.set_default(runtime, error_if_already_set=False)
    log.info("metrics of this process at http://%s:%d/metrics", settings.host, port)
    refreshing = asyncio.create_task(_keep_fresh(runtime.metric_meter))
    try:
        yield
    finally:
        refreshing.cancel()


def _runtime(settings: MetricsSettings, *, port: int, process: str) -> Runtime:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    page = PrometheusConfig(
        bind_address=f"{host}:{port}",
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
    )
    telemetry = TelemetryConfig(
        metrics=page, global_tags={"process": process}, attach_service_name=False
    )
    try:
        return Runtime(telemetry=telemetry)
    except ValueError as error:
        raise UsageError(
            f"metrics cannot be served at {settings.host}:{port}: {error}",
            field=f"metrics.{process}_port",
            remedy="set another port (0: no page), and an IP address of this machine as"
            " metrics.host",
        ) from error


async def _keep_fresh(meter: MetricMeter) -> None:
    """Set the gauges of this process, and again every few seconds."""
    began = meter.create_gauge_float("sickbay_process_start_time_seconds", "Unix time of the start")
    began.set(time.time() - _age_s())
    meter.create_gauge("sickbay_build_info", "1, labelled with the release").set(
        1, {"version": _release()}
    )
    cpu = meter.create_gauge_float("sickbay_process_cpu_seconds", "CPU used, user and system")
    memory = meter.create_gauge("sickbay_process_resident_memory_bytes", "Memory in use")
    files = meter.create_gauge("sickbay_process_open_files", "Open file descriptors")
    lag = meter.create_gauge_float(
        "sickbay_process_loop_lag_seconds", "How late the event loop woke a timer"
    )
    due = time.monotonic()
    while True:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu.set(used.ru_utime + used.ru_stime)
        lag.set(max(0.0, time.monotonic() - due))
        memory.set(_resident_bytes(peak_kib=used.ru_maxrss))
        files.set(_open_files())
        due = time.monotonic() + REFRESH_S
        await asyncio.sleep(REFRESH_S)


def _age_s() -> float:
    """Seconds this process has run, by its CPU clock's origin where Linux tells it."""
    try:
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]
        )
        up_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, up_s - ticks / os.sysconf("SC_CLK_TCK"))


def _resident_bytes(*, peak_kib: int) -> int:
    """Memory now; where the system does not tell, the most it ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, ValueError, IndexError):
        return peak_kib * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, not paths
    except OSError:
        return 0


def _release() -> str:
    try:
        return version("sickbay")
    except PackageNotFoundError:
        return "unknown"
