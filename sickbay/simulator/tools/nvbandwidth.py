"""Fake `nvbandwidth`: copies between host and GPUs, between GPUs, and inside a GPU; text and -j.

What is verified is what was measured: the machine hands out bandwidth per GPU, and a copy between
two GPUs is as fast as the slower of them.
"""

import json

from sim_link import UNREACHABLE, Dead, Machine, Refusal, say

VERSION = "v0.8"
# name, line that describes it, rows: one, none or a matrix; the unit that is loaded.
TESTS = {
    "host_to_device_memcpy_ce": ("memcpy CE CPU(row) -> GPU(column)", "row", "pcie_gbps"),
    "device_to_host_memcpy_ce": ("memcpy CE CPU(row) <- GPU(column)", "row", "pcie_gbps"),
    "device_to_device_memcpy_read_ce": (
        "memcpy CE GPU(row) -> GPU(column)",
        "matrix",
        "nvlink_gbps",
    ),
    "device_to_device_memcpy_write_ce": (
        "memcpy CE GPU(row) <- GPU(column)",
        "matrix",
        "nvlink_gbps",
    ),
    "device_local_copy": ("memcpy local GPU(column)", "row", "memory_gbps"),
}
UNIT = {"pcie_gbps": "pcie", "nvlink_gbps": "nvlink", "memory_gbps": "compute"}
MINUTES = 0.3
FAILED = 1
PAIR = 2


def main(argv: list) -> int:
    """Run one command line; the exit status."""
    options = _parse(argv)
    if options is None:
        say("ERROR: unrecognised option. See --help")
        return FAILED
    if options["list"]:
        say("Index, Name:\n\tDescription\n" + "=" * 23)
        say("\n".join(f"{i}, {name}:" for i, name in enumerate(TESTS)))
        return 0
    try:
        machine = Machine()
        state = machine.read()
        code = _run(machine, state, options)
        machine.ran("nvbandwidth", argv, code)
    except (Dead, Refusal):
        return UNREACHABLE
    return code


def _parse(argv: list) -> dict | None:
    found = {"json": False, "list": False, "skip": False, "tests": [], "size": 512}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in ("-j", "--json"):
            found["json"] = True
        elif word in ("-l", "--list"):
            found["list"] = True
        elif word in ("-s", "--skipVerification"):
            found["skip"] = True
        elif word in ("-v", "--verbose", "-d", "--disableAffinity", "-m", "--useMean"):
            continue
        elif word in ("-b", "--bufferSize", "-i", "--testSamples") and words[:1]:
            if not words.pop(0).isdigit():
                return None
        elif word in ("-t", "--testcase"):
            while words and not words[0].startswith("-"):
                found["tests"].append(words.pop(0))
        else:
            return None
    return found


def _run(machine: Machine, state: dict, options: dict) -> int:
    gpus = sorted(state["gpus"], key=lambda gpu: gpu["index"])
    trouble = _trouble(gpus)
    if trouble:
        say(f"[{trouble[0]}] {trouble[1]} in expression cuInit(0) in main() : nvbandwidth.cpp:298")
        return FAILED
    names = options["tests"] or list(TESTS)
    cases = []
    for name in names:
        if name not in TESTS:
            cases.append({"name": name, "status": "Not Found"})
            continue
        cases.append(_measure(machine, name, [gpu["index"] for gpu in gpus]))
    if options["json"]:
        say(json.dumps({"nvbandwidth": _document(state, gpus, cases)}, indent="\t"))
    else:
        _text(state, gpus, cases)
    return FAILED if any(case["status"] == "Not Found" for case in cases) else 0


def _trouble(gpus: list) -> tuple | None:
    """What the CUDA library answers before anything can be measured."""
    if any(not gpu["answers"] or gpu["hung"] for gpu in gpus):
        return "CUDA_ERROR_UNKNOWN", "unknown error"
    if any(gpu["pid"] is not None for gpu in gpus):
        return "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"
    return None if gpus else ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected")


def _measure(machine: Machine, name: str, indices: list) -> dict:
    says, shape, key = TESTS[name]
    if shape == "matrix" and len(indices) < PAIR:
        return {"name": name, "status": "Waived"}
    found = machine.load(UNIT[key], MINUTES, indices)
    if set(found) != set(indices):
        return {"name": name, "status": "Error", "bandwidth_description": f"{says} bandwidth"}
    value = {index: gpu[key] for index, gpu in found.items()}
    if shape == "row":
        matrix = [[value[i] for i in indices]]
    else:
        matrix = [[None if i == j else min(value[i], value[j]) for j in indices] for i in indices]
    return {
        "name": name,
        "status": "Passed",
        "bandwidth_description": f"{says} bandwidth (GB/s) ",
        "bandwidth_matrix": [["N/A" if c is None else f"{c:.2f}" for c in row] for row in matrix],
        "sum": round(sum(c for row in matrix for c in row if c is not None), 2),
    }


def _document(state: dict, gpus: list, cases: list) -> dict:
    return {
        "CUDA Runtime Version": 13000,
        "Driver Version": state["driver"],
        "GPU Device list": [f"{gpu['index']}: {_device(state, gpu)}" for gpu in gpus],
        "git_version": VERSION,
        "testcases": cases,
        "version": VERSION,
    }


def _device(state: dict, gpu: dict) -> str:
    return f"{state['model']} ({gpu['bus_id'].rpartition('.')[0]})"


def _text(state: dict, gpus: list, cases: list) -> None:
    say(f"nvbandwidth Version: {VERSION}\nBuilt from Git version: {VERSION}\n")
    say("CUDA Runtime Version: 13000\nCUDA Driver Version: 13000")
    say(f"Driver Version: {state['driver']}\n")
    say(state["name"])
    for gpu in gpus:
        say(f"Device {gpu['index']}: {_device(state, gpu)}")
    say("")
    for case in cases:
        if case["status"] == "Not Found":
            say(f"ERROR: Testcase {case['name']} not found!\n")
            continue
        say(f"Running {case['name']}.")
        if case["status"] != "Passed":
            say(f"{case['status']}: \n")
            continue
        say(case["bandwidth_description"].rstrip())
        columns = range(len(case["bandwidth_matrix"][0]))
        say(" " + "".join(f"{i:>10}" for i in columns))
        for i, row in enumerate(case["bandwidth_matrix"]):
            say(f"{i}" + "".join(f"{cell:>10}" for cell in row))
        say(f"\nSUM {case['name']} {case['sum']:.2f}\n")
    say("NOTE: The reported results may not reflect the full capabilities of the platform.")
