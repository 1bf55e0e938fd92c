"""What DCGM's health watch says: incidents in the samples it still holds, and nothing more."""

FAILURE_XIDS = (48, 64, 74, 79, 95, 119, 120, 140)
WARNING_XIDS = (31, 32, 43, 63, 94)
HELD_MIN = 10.0
SBE_LIMIT = 10
ORDER = ("Healthy", "Warning", "Failure")
_SYSTEM_OF = {48: "Memory system", 63: "Memory system", 64: "Memory system", 94: "Memory system"}
_SYSTEM_OF.update({95: "Memory system", 140: "Memory system", 74: "NVLink system"})


def document(state: dict) -> dict:
    """`health -c -j`. Healthy entities are absent."""
    gpus = {}
    for gpu in state["gpus"]:
        systems = _incidents(gpu)
        if systems:
            gpus[str(gpu["index"])] = _entity(systems)
    worst = _worst([entity["value"] for entity in gpus.values()])
    body = {"Overall Health": {"value": worst}}
    if gpus:
        body["GPU"] = {"children": gpus}
    return {"body": body, "header": ["Health Monitor Report"]}


def plain(found: dict) -> str:
    """`health -c`, in short."""
    lines = [f"Overall Health: {found['body']['Overall Health']['value']}"]
    for index, entity in found["body"].get("GPU", {}).get("children", {}).items():
        for name, system in entity["children"]["Errors"]["children"].items():
            lines.append(f"GPU {index}: {name}: {system['value']}: {'; '.join(system['overflow'])}")
    return "\n".join(lines)


def _entity(systems: dict) -> dict:
    children = {}
    for system, found in systems.items():
        texts = [text for _, text in found]
        children[system] = {"overflow": texts, "value": _worst([level for level, _ in found])}
    worst = _worst([child["value"] for child in children.values()])
    return {"children": {"Errors": {"children": children}}, "value": worst}


def _worst(levels: list) -> str:
    return max(levels, key=ORDER.index, default="Healthy")


def _incidents(gpu: dict) -> dict:
    """Level and text per system of one GPU."""
    index = gpu["index"]
    found = {}

    def add(system: str, level: str, text: str) -> None:
        found.setdefault(system, []).append((level, text))

    if not gpu["answers"]:
        add("Driver system", "Failure", f"GPU {index} has fallen off the bus.")
        return found
    if gpu["dbe"]:
        text = f"A DBE has been detected: {gpu['dbe']} volatile DBE(s) in GPU {index}."
        add("Memory system", "Failure", text)
    if gpu["sbe"] > SBE_LIMIT:
        text = f"A high rate of volatile SBEs has been detected in GPU {index}."
        add("Memory system", "Warning", text)
    if gpu["remap_failure"]:
        add("Memory system", "Failure", f"GPU {index} had a row remapping failure.")
    if gpu["remap_pending"]:
        add("Memory system", "Warning", f"GPU {index} has a pending row remapping.")
    for link in gpu["links_down"]:
        add("NVLink system", "Failure", f"GPU {index}'s NvLink link {link} is currently down.")
    if gpu["reasons"] & 0x48:
        add("Thermal system", "Warning", f"Thermal violations were detected on GPU {index}.")
    for code in sorted({code for code, minutes in gpu["xids"] if minutes <= HELD_MIN}):
        level = "Failure" if code in FAILURE_XIDS else "Warning" if code in WARNING_XIDS else None
        if level:
            system = _SYSTEM_OF.get(code, "Driver system")
            add(system, level, f"XID {code} was detected on GPU {index}.")
    return found
