"""What the sensors of a GPU read at a moment, and what loading a unit of it yields.

Noise is a slow deterministic wobble per part: sensors move all the time, and reading twice at one
moment gives the same.
"""

import math
from dataclasses import dataclass

from sickbay.simulator.hardware import BOOST_MHZ, IDLE_MHZ, IDLE_W, LANES, LINKS, LOAD_W, Gpu

IDLE_C = 33.0
LOAD_C = 30.0
SLOWDOWN_C = 87.0
# Share of a cooling fault that shows while the GPU idles, and what a hardware slowdown leaves.
IDLE_HEAT = 0.4
SLOWDOWN_FACTOR = 0.68
REASON_IDLE = 0x1
REASON_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8
REASON_HW_THERMAL = 0x40
# One H200: dense FP32 of a matrix burn, PCIe 5 x16 and one NVLink, as measured on such nodes.
GFLOPS = 51_200.0
PCIE_GBPS = 55.2
LINK_GBPS = 20.8


@dataclass(frozen=True)
class Sensors:
    """The moving values of one GPU at one moment."""

    temp_c: int
    memory_temp_c: int
    sm_clock_mhz: int
    power_w: float
    util_pct: int
    reasons: int


def wobble(gpu: Gpu, *, now_h: float, speed: float) -> float:
    """Between -1 and 1, slow against a scrape and different for every part."""
    return math.sin(gpu.phase * speed + now_h * 40.0 * speed)


def sensors(gpu: Gpu, *, now_h: float, loaded: bool) -> Sensors:
    """What the GPU's sensors read, idle or under load. A hung GPU repeats its last values."""
    at_h = now_h if gpu.hung_since_h is None else gpu.hung_since_h
    calm = wobble(gpu, now_h=at_h, speed=1.0)
    quick = wobble(gpu, now_h=at_h, speed=7.3)
    heat_c = gpu.heat_c * (1.0 if loaded else IDLE_HEAT)
    temp_c = IDLE_C + (LOAD_C if loaded else 0.0) + heat_c + 1.6 * calm + 0.6 * quick
    if not loaded:
        return Sensors(
            temp_c=round(temp_c),
            memory_temp_c=round(temp_c + 4.0),
            sm_clock_mhz=IDLE_MHZ,
            power_w=IDLE_W + 2.0 * calm + quick,
            util_pct=0,
            reasons=REASON_IDLE,
        )
    hot = temp_c >= SLOWDOWN_C
    factor = gpu.clock_factor * (SLOWDOWN_FACTOR if hot else 1.0)
    capped = REASON_POWER_CAP if quick > 0.6 else 0  # noqa: PLR2004 - a fifth of the time
    return Sensors(
        temp_c=round(temp_c),
        memory_temp_c=round(temp_c + 9.0),
        sm_clock_mhz=15 * round((BOOST_MHZ * factor - 20.0 + 20.0 * calm) / 15.0),
        power_w=IDLE_W + (LOAD_W - IDLE_W) * factor + 14.0 * calm + 9.0 * quick,
        util_pct=round(97.5 + 2.0 * calm),
        reasons=(REASON_HW_SLOWDOWN | REASON_HW_THERMAL) if hot else capped,
    )


def exercised(
    gpu: Gpu, *, now_h: float, bit_errors: int, rail_gbps: float
) -> dict[str, float | int]:
    """What a test program measures on a GPU, and through its rail, that it has loaded alone."""
    state = sensors(gpu, now_h=now_h, loaded=True)
    clock = state.sm_clock_mhz / BOOST_MHZ
    links = LINKS - len(gpu.links_down)
    return {
        "temp_c": state.temp_c,
        "power_w": round(state.power_w, 1),
        "sm_clock_mhz": state.sm_clock_mhz,
        "reasons": state.reasons,
        "bit_errors": bit_errors,
        "gflops": round(GFLOPS * clock, 2),
        "memory_gbps": round(4150.0 * (0.5 + 0.5 * clock), 1),
        "pcie_gbps": round(PCIE_GBPS * gpu.lanes / LANES, 2),
        "nvlink_gbps": round(LINK_GBPS * links, 2),
        "links_down": len(gpu.links_down),
        "rail_gbps": round(rail_gbps * (0.985 + 0.01 * wobble(gpu, now_h=now_h, speed=3.1)), 2),
    }


def memory_errors(gpu: Gpu, *, minutes: float) -> int:
    """Wrong words that a memory pattern test reads back; the stress adds up over the tests."""
    gpu.stressed_min += minutes
    if gpu.weak_after_min is None or gpu.stressed_min <= gpu.weak_after_min:
        return 0
    return max(1, round(37 * (gpu.stressed_min - gpu.weak_after_min)))
