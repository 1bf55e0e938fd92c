"""How DCGM writes a diagnostic down: the 4.x and the 3.x JSON, a short text, the exit status."""

ISOLATE = 2
EXIT_ISOLATE = 205
EXIT_ERROR = 226
CATEGORIES = ("Deployment", "Integration", "Hardware", "Stress")
DEVICE_ID = "2335"
OLD_TITLES = {
    "memory": "GPU Memory",
    "pcie": "PCIe",
    "diagnostic": "Diagnostic",
    "memory_bandwidth": "Memory Bandwidth",
    "targeted_stress": "Targeted Stress",
    "targeted_power": "Targeted Power",
    "memtest": "Memtest",
    "pulse_test": "Pulse Test",
}
OLD_DEPLOYMENT = (
    "Denylist",
    "NVML Library",
    "CUDA Main Library",
    "Permissions and OS Blocks",
    "Persistence Mode",
    "Environment Variables",
    "Page Retirement/Row Remap",
    "Graphics Processes",
    "Inforom",
    "Fabric Manager",
)
REMAP = "Page Retirement/Row Remap"


def exit_code(results: list) -> int:
    """0, or what the worst error makes of it."""
    errors = [e for _, _, gpus in results for _, _, errors in gpus.values() for e in errors]
    if any(e["error_severity"] == ISOLATE for e in errors):
        return EXIT_ISOLATE
    return EXIT_ERROR if errors else 0


def document(state: dict, results: list, *, old: bool) -> dict:
    """The JSON document of this version."""
    return _old(state, results) if old else _new(state, results)


def plain(results: list) -> str:
    """The text form, in short."""
    lines = ["Successfully ran diagnostic for group.", "+" + "-" * 60 + "+"]
    for name, category, gpus in results:
        failed = [str(index) for index, (status, _, _) in gpus.items() if status == "Fail"]
        verdict = f"Fail - GPU: {', '.join(failed)}" if failed else "Pass"
        lines.append(f"| {category:<12} {name:<20} | {verdict:<23} |")
        lines.extend(
            f"| Warning: {e['warning']} |" for _, _, errors in gpus.values() for e in errors
        )
    return "\n".join([*lines, lines[1]])


def _new(state: dict, results: list) -> dict:
    categories = []
    for category in CATEGORIES:
        tests = [_new_test(name, gpus) for name, of, gpus in results if of == category]
        if tests:
            categories.append({"category": category, "tests": tests})
    return {
        "DCGM Diagnostic": {"test_categories": categories},
        "entity_groups": [
            {
                "entities": [_entity(gpu) for gpu in state["gpus"]],
                "entity_group": "GPU",
                "entity_group_id": 1,
            }
        ],
        "metadata": {"Driver Version Detected": state["driver"], "version": state["dcgm_version"]},
    }


def _entity(gpu: dict) -> dict:
    serial = gpu["serial"] if gpu["answers"] else "<<<NOT_FOUND>>>"
    return {"device_id": DEVICE_ID, "entity_id": gpu["index"], "serial_num": serial}


def _new_test(name: str, gpus: dict) -> dict:
    rows = []
    for index, (status, infos, errors) in gpus.items():
        row = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": index, "status": status}
        if infos:
            row["info"] = infos
        if errors:
            row["warnings"] = errors
        rows.append(row)
    return {"name": name, "results": rows, "test_summary": {"status": _worst(gpus)}}


def _worst(gpus: dict) -> str:
    return "Fail" if any(status == "Fail" for status, _, _ in gpus.values()) else "Pass"


def _old(state: dict, results: list) -> dict:
    categories = []
    for category in CATEGORIES:
        tests = []
        for name, of, gpus in results:
            if of == category:
                tests.extend(
                    _old_deployment(gpus) if name == "software" else [_old_test(name, gpus)]
                )
        if category == "Hardware" and any(name == "diagnostic" for name, _, _ in results):
            ids = ",".join(str(gpu["index"]) for gpu in state["gpus"])
            tests.append({"name": "EUD Test", "results": [{"gpu_ids": ids, "status": "Skip"}]})
        if tests:
            categories.append({"category": category, "tests": tests})
    gpus = [gpu for gpu in state["gpus"] if gpu["answers"]]
    return {
        "DCGM GPU Diagnostic": {
            "Driver Version Detected": state["driver"],
            "GPU Device IDs": [DEVICE_ID for _ in gpus],
            "GPU Device Serials": {str(gpu["index"]): gpu["serial"] for gpu in gpus},
            "test_categories": categories,
            "version": state["dcgm_version"],
        }
    }


def _old_deployment(gpus: dict) -> list:
    """One test per check; a system-wide pass names no GPU."""
    tests = []
    for title in OLD_DEPLOYMENT:
        rows = []
        for index, (_, _, errors) in gpus.items():
            mine = [e for e in errors if (REMAP in e["warning"]) == (title == REMAP)]
            if mine and title in (REMAP, "NVML Library"):
                rows.append({"gpu_ids": str(index), "status": "Fail", "warnings": mine})
        tests.append({"name": title, "results": rows or [{"status": "Pass"}]})
    return tests


def _old_test(name: str, gpus: dict) -> dict:
    rows = []
    for index, (status, infos, errors) in gpus.items():
        row = {"gpu_ids": str(index), "status": status}
        if infos:
            row["info"] = ", ".join(infos)
        if errors:
            row["warnings"] = errors
        rows.append(row)
    return {"name": OLD_TITLES[name], "results": rows}
