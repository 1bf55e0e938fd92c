"""The metrics page of a node, in the text form and with the names of dcgm-exporter.

Everything that does not move is joined once per node and kept until its parts change: 64 pages a
second must cost next to nothing.
"""

from dataclasses import dataclass

from sickbay.simulator.hardware import MEMORY_MHZ, MODEL, Gpu, Node
from sickbay.simulator.physics import sensors

_METRICS: tuple[tuple[str, str, str], ...] = (
    ("SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
    ("MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."),
    ("MEMORY_TEMP", "gauge", "Memory temperature (in C)."),
    ("GPU_TEMP", "gauge", "GPU temperature (in C)."),
    ("POWER_USAGE", "gauge", "Power draw (in W)."),
    ("TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."),
    ("PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."),
    ("PCIE_LINK_GEN", "gauge", "PCIe current link generation."),
    ("PCIE_LINK_WIDTH", "gauge", "PCIe current link width."),
    ("GPU_UTIL", "gauge", "GPU utilization (in %)."),
    ("XID_ERRORS", "gauge", "Value of the last XID error encountered."),
    ("ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors."),
    ("ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors."),
    ("ECC_DBE_AGG_TOTAL", "counter", "Total number of double-bit persistent ECC errors."),
    ("UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows, uncorrectable errors"),
    ("CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows, correctable errors"),
    ("ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"),
    ("ROW_REMAP_PENDING", "gauge", "Whether remapping of rows is pending"),
    (
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "counter",
        "Total number of NVLink flow-control CRC errors.",
    ),
    ("CLOCKS_EVENT_REASONS", "gauge", "Current clock event reasons (bitmask)."),
    ("GPU_RECOVERY_ACTION", "gauge", "Recommended recovery action of the GPU."),
)
HEADS = tuple(
    f"# HELP DCGM_FI_DEV_{name} {text}\n# TYPE DCGM_FI_DEV_{name} {kind}\n"
    for name, kind, text in _METRICS
)
NAMES = tuple(f"DCGM_FI_DEV_{name}" for name, _, _ in _METRICS)


@dataclass
class _Kept:
    revision: int
    prefixes: list[tuple[Gpu, list[str]]]


class MetricsPages:
    """Pages of all nodes."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def page(self, node: Node, *, revision: int, now_h: float) -> str:
        """The page of a node that is up. A GPU that is off the bus is not on it."""
        kept = self._kept.get(node.name)
        if kept is None or kept.revision != revision:
            kept = _Kept(revision, [(gpu, _prefixes(node, gpu)) for gpu in node.gpus])
            self._kept[node.name] = kept
        seen = [
            (prefixes, _values(gpu, now_h=now_h)) for gpu, prefixes in kept.prefixes if gpu.visible
        ]
        parts: list[str] = []
        for number, head in enumerate(HEADS):
            parts.append(head)
            parts.extend(f"{prefixes[number]}{values[number]}\n" for prefixes, values in seen)
        return "".join(parts)


def _prefixes(node: Node, gpu: Gpu) -> list[str]:
    labels = (
        f'gpu="{gpu.index}",UUID="{gpu.uuid}",pci_bus_id="{gpu.bus_id}",'
        f'device="nvidia{gpu.index}",modelName="{MODEL}",Hostname="{node.name}",'
        f'DCGM_FI_DEV_VBIOS_VERSION="{gpu.vbios}"'
    )
    return [f"{name}{{{labels}}} " for name in NAMES]


def _values(gpu: Gpu, *, now_h: float) -> tuple[float | int | str, ...]:
    state = sensors(gpu, now_h=now_h, loaded=gpu.busy)
    # A hung GPU's own telemetry is stale; what the driver knows of it is not.
    energy_h = now_h if gpu.hung_since_h is None else gpu.hung_since_h
    return (
        state.sm_clock_mhz,
        MEMORY_MHZ,
        state.memory_temp_c,
        state.temp_c,
        f"{state.power_w:.3f}",
        int(gpu.energy_mj.at(energy_h)),
        int(gpu.replays.at(now_h)),
        5,
        gpu.lanes,
        state.util_pct,
        gpu.last_xid,
        int(gpu.sbe.at(now_h)),
        gpu.dbe,
        gpu.dbe_lifetime,
        gpu.remap_uncorrectable,
        gpu.remap_correctable,
        int(gpu.remap_failure),
        int(gpu.remap_pending),
        int(gpu.link_crc.at(now_h)),
        state.reasons,
        gpu.recovery,
    )
