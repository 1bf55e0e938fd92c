"""Which tests a level runs, and what each concludes from what the hardware yields.

Error ids, severities and categories are those of DCGM's own table; limits are DCGM's defaults
where it has one, else a tenth or a fifth below the median of the node's GPUs.
"""

import time

from sim_link import Machine

# name, category, unit it loads, minutes it loads it; level it belongs to.
TESTS = (
    ("software", "Deployment", None, 0.08, 1),
    ("memory", "Hardware", "memory", 1.0, 2),
    ("pcie", "Integration", "pcie", 1.0, 2),
    ("diagnostic", "Hardware", "compute", 4.0, 3),
    ("nvbandwidth", "Integration", "nvlink", 2.0, 3),
    ("memory_bandwidth", "Stress", "memory", 1.0, 3),
    ("targeted_stress", "Stress", "compute", 3.0, 3),
    ("targeted_power", "Stress", "compute", 3.0, 3),
    ("memtest", "Hardware", "memory", 30.0, 4),
    ("pulse_test", "Hardware", "compute", 30.0, 4),
)
NAMES = tuple(test[0] for test in TESTS)
LEVELS = {"1": 1, "quick": 1, "short": 1, "2": 2, "medium": 2, "3": 3, "long": 3, "4": 4}
LEVELS["xlong"] = 4
# Tests that came after 3.x.
NEW = ("nvbandwidth",)
OLD_NAMES = {"gpu memory": "memory", "diagnostic": "diagnostic", "pcie": "pcie"}

# Severity and category by error id.
ERRORS = {
    3: (2, 13),
    4: (2, 10),
    10: (1, 9),
    13: (2, 11),
    14: (4, 11),
    30: (4, 13),
    46: (5, 13),
    50: (4, 1),
    51: (1, 6),
    52: (2, 10),
    62: (4, 1),
    63: (4, 14),
    80: (6, 10),
    85: (6, 10),
    103: (2, 10),
    110: (4, 2),
    120: (2, 15),
    125: (6, 15),
    126: (2, 15),
}
THERMAL_BITS = 0x48
ACTION_RESET, ACTION_REBOOT = 1, 2
FULL_LANES = 16
PCIE_FLOOR_GBPS = 48.0
TARGET_POWER_W = 525.0
NEAR_MEDIAN = 0.9


def tests_of(run: str, *, old: bool) -> tuple:
    """The tests of a level or a list of names, and the first name that is unknown."""
    level = LEVELS.get(run)
    if level is not None:
        return [t for t in TESTS if t[4] <= level and not (old and t[0] in NEW)], None
    wanted = {"software"}
    for word in run.split(","):
        name = word.strip().lower()
        name = OLD_NAMES.get(name, name.replace(" ", "_"))
        name = "software" if name in ("short", "deployment") else name
        if name not in NAMES or (old and name in NEW):
            return [], word
        wanted.add(name)
    return [t for t in TESTS if t[0] in wanted], None


def run(machine: Machine, tests: list, indices: list, *, old: bool) -> list:
    """Run the tests in order: (name, category, {index: (status, infos, errors)}) of each."""
    results = []
    for name, category, unit, minutes, _ in tests:
        measured = {}
        if unit is None:
            time.sleep(minutes * 60.0 / machine.ask("read")["scale"])
        else:
            measured = machine.load(unit, minutes, _free(machine, indices))
        gpus = [gpu for gpu in machine.ask("read")["node"]["gpus"] if gpu["index"] in indices]
        outcome = {gpu["index"]: _conclude(name, gpu, measured, old=old) for gpu in gpus}
        results.append((name, category, outcome))
    return results


def error(number: int, text: str) -> dict:
    """One warning as DCGM writes it."""
    severity, category = ERRORS[number]
    return {
        "error_category": category,
        "error_id": number,
        "error_severity": severity,
        "warning": text,
    }


def _free(machine: Machine, indices: list) -> list:
    state = machine.ask("read")["node"]
    return [
        gpu["index"]
        for gpu in state["gpus"]
        if gpu["index"] in indices and gpu["answers"] and not gpu["hung"] and gpu["pid"] is None
    ]


def _conclude(name: str, gpu: dict, measured: dict, *, old: bool) -> tuple:
    """Status, information and errors of one test on one GPU."""
    index = gpu["index"]
    if not gpu["answers"]:
        text = f"GPU {index} has fallen off the bus. Please check the system logs."
        return "Fail", [], [error(120, text)]
    if name == "software":
        errors = _software(gpu, old=old)
    elif gpu["pid"] is not None:
        why = "all CUDA-capable devices are busy or unavailable"
        errors = [
            error(51, f"Error using CUDA API cudaDeviceGetByPCIBusId: '{why}' for GPU {index}")
        ]
    elif index not in measured:
        errors = [error(51, f"Error using CUDA API cuInit: 'unknown error' for GPU {index}")]
    else:
        errors, infos = _CHECKS[name](gpu, measured[index], measured)
        return "Fail" if errors else "Pass", infos, errors
    return "Fail" if errors else "Pass", [], errors


def _software(gpu: dict, *, old: bool) -> list:
    index = gpu["index"]
    errors = []
    if gpu["remap_failure"]:
        text = f"GPU {index} had uncorrectable memory errors and row remapping failed."
        errors.append(error(80, f"Page Retirement/Row Remap: {text} Run a field diagnostic."))
    elif gpu["remap_pending"]:
        text = f"GPU {index} had uncorrectable memory errors and row remappings are pending."
        errors.append(error(85, f"Page Retirement/Row Remap: {text} Reset the GPU."))
    # Recovery actions are looked at from 4.x on.
    if not old and gpu["recovery"] == ACTION_RESET:
        errors.append(error(125, f"GPU {index} requires a reset to recover from a fault."))
    if not old and gpu["recovery"] == ACTION_REBOOT:
        errors.append(error(126, f"GPU {index} requires a node reboot to recover from a fault."))
    return errors


def _memory(gpu: dict, found: dict, _: object) -> tuple:
    index = gpu["index"]
    errors = []
    if gpu["dbe"]:
        text = f"Detected {gpu['dbe']} volatile double-bit ECC error(s) in GPU {index}."
        errors.append(error(4, f"{text} Drain the GPU and reset it or reboot the node."))
    if found["bit_errors"]:
        text = f"Found {found['bit_errors']} faulty memory elements on GPU {index}."
        errors.append(error(52, f"{text} Run a field diagnostic on the GPU."))
    return errors, [f"GPU {index} Allocated 149184059146 bytes (98.9%)"]


def _pcie(gpu: dict, found: dict, _: object) -> tuple:
    index = gpu["index"]
    errors = []
    if gpu["lanes"] < FULL_LANES:
        text = f"GPU {index} is running at a PCI link width of {gpu['lanes']}X, which is below"
        errors.append(error(46, f"{text} the minimum allowed link width of 16X."))
    if found["pcie_gbps"] < PCIE_FLOOR_GBPS:
        text = f"Bandwidth of GPU {index} in direction HtoD of {found['pcie_gbps']} did not exceed"
        errors.append(error(30, f"{text} minimum required bandwidth of {PCIE_FLOOR_GBPS}."))
    for link in gpu["links_down"]:
        text = f"GPU {index}'s NvLink link {link} is currently down."
        errors.append(error(14, f"{text} Run a field diagnostic on the GPU."))
    if gpu["link_crc"]:
        text = f"Detected {gpu['link_crc']} nvlink_flit_crc_error_count_total NvLink errors on GPU"
        errors.append(error(13, f"{text} {index}, which exceeds threshold of 1."))
    speed = f"GPU to Host bandwidth:\t\t{found['pcie_gbps']:.2f} GB/s"
    return errors, [f"GPU {index} {speed}"]


def _burn(gpu: dict, found: dict, all_found: dict) -> tuple:
    index = gpu["index"]
    median = _median(all_found, "gflops")
    errors = _thermal(index, found)
    if gpu["dbe"]:
        errors.append(error(103, f"Detected {gpu['dbe']} double bit errors on GPU {index}."))
    if found["gflops"] < NEAR_MEDIAN * median:
        text = f"GPU {index} performed {found['gflops']:.2f} GFLOPs, below the threshold"
        errors.append(error(110, f"{text} of {NEAR_MEDIAN * median:.2f}."))
    text = (
        f"GPU {index} calculated at approximately {found['gflops']:.2f} gigaflops during this test"
    )
    return errors, [text]


def _stress(gpu: dict, found: dict, all_found: dict) -> tuple:
    index = gpu["index"]
    median = _median(all_found, "gflops")
    errors = _thermal(index, found)
    if found["gflops"] < NEAR_MEDIAN * median:
        text = f"Max stress level of {found['gflops']:.1f} did not reach desired stress level of"
        errors.append(error(50, f"{text} {NEAR_MEDIAN * median:.1f} for GPU {index}"))
    return errors, [f"GPU {index} relative stress level\t{found['gflops']:.0f}"]


def _power(gpu: dict, found: dict, _: object) -> tuple:
    index = gpu["index"]
    errors = _thermal(index, found)
    if found["power_w"] < TARGET_POWER_W:
        text = f"Max power of {found['power_w']} did not reach desired power minimum target_power"
        errors.append(error(63, f"{text} of {TARGET_POWER_W} for GPU {index}"))
    return errors, [f"GPU {index} power average:\t{found['power_w']:.0f} W"]


def _bandwidth(gpu: dict, found: dict, all_found: dict) -> tuple:
    index = gpu["index"]
    median = _median(all_found, "memory_gbps")
    errors = []
    if found["bit_errors"]:
        errors, _ = _memory(gpu, found, all_found)
    if found["memory_gbps"] < NEAR_MEDIAN * median:
        text = f"GPU {index} resulted in an average bandwidth of {found['memory_gbps']} MB/s"
        errors.append(error(62, f"{text}, below the minimum of {NEAR_MEDIAN * median:.0f}"))
    return errors, []


def _links(gpu: dict, found: dict, all_found: dict) -> tuple:
    index = gpu["index"]
    median = _median(all_found, "nvlink_gbps")
    errors = []
    if found["links_down"]:
        text = f"NvLink bandwidth of GPU {index} of {found['nvlink_gbps']} GB/s is below"
        errors.append(error(30, f"{text} {median:.1f} GB/s of the other GPUs."))
    return errors, []


def _median(all_found: dict, unit: str) -> float:
    """The upper median: some GPU's own value, never a mean of a good and a bad one."""
    values = sorted(found[unit] for found in all_found.values())
    return values[len(values) // 2]


def _thermal(index: int, found: dict) -> list:
    if not found["reasons"] & THERMAL_BITS:
        return []
    text = f"Detected thermal slowdown on GPU {index} at {found['temp_c']} C."
    return [error(10, f"{text} Verify that the cooling on this machine works.")]


_CHECKS = {
    "memory": _memory,
    "pcie": _pcie,
    "diagnostic": _burn,
    "nvbandwidth": _links,
    "memory_bandwidth": _bandwidth,
    "targeted_stress": _stress,
    "targeted_power": _power,
    "memtest": _memory,
    "pulse_test": _burn,
}
