"""What the fake `nvidia-smi` prints about GPUs, as text, XML and CSV."""

MODEL = "NVIDIA H200"
ACTIONS = {0: "None", 1: "Reset", 2: "Reboot"}
MEMORY_MIB = 143771
# Clock event reasons: bit, name in text, name in XML.
REASONS = (
    (0x1, "Idle", "gpu_idle"),
    (0x2, "Applications Clocks Setting", "applications_clocks_setting"),
    (0x4, "SW Power Cap", "sw_power_cap"),
    (0x8, "HW Slowdown", "hw_slowdown"),
    (0x40, "    HW Thermal Slowdown", "hw_thermal_slowdown"),
    (0x80, "    HW Power Brake Slowdown", "hw_power_brake_slowdown"),
    (0x10, "Sync Boost", "sync_boost"),
    (0x20, "SW Thermal Slowdown", "sw_thermal_slowdown"),
)
STALE = "[GPU requires reset]"


def table(gpus: list, fields: str, form: str) -> int:
    """`--query-gpu=... --format=csv[,noheader][,nounits]`."""
    names = [name.strip() for name in fields.split(",")]
    options = form.split(",")
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        print(f'Field "{unknown[0]}" is not a valid field to query.')
        return 2
    if "csv" not in options:
        print('"--format=" switch is missing or malformed')
        return 2
    if "noheader" not in options:
        heads = [f"{name} [{COLUMNS[name][1]}]" if COLUMNS[name][1] else name for name in names]
        print(", ".join(heads))
    for gpu in gpus:
        cells = []
        for name in names:
            value, unit = COLUMNS[name][0](gpu), COLUMNS[name][1]
            cells.append(f"{value} {unit}" if unit and "nounits" not in options else str(value))
        print(", ".join(cells))
    return 0


COLUMNS = {
    "index": (lambda g: g["index"], ""),
    "name": (lambda _: MODEL, ""),
    "uuid": (lambda g: g["uuid"], ""),
    "gpu_uuid": (lambda g: g["uuid"], ""),
    "serial": (lambda g: g["serial"], ""),
    "vbios_version": (lambda g: g["vbios"], ""),
    "pci.bus_id": (lambda g: g["bus_id"], ""),
    "gpu_bus_id": (lambda g: g["bus_id"], ""),
    "gpu_recovery_action": (lambda g: ACTIONS[g["recovery"]], ""),
    "temperature.gpu": (lambda g: g["temp_c"], ""),
    "temperature.memory": (lambda g: g["memory_temp_c"], ""),
    "clocks.sm": (lambda g: g["sm_clock_mhz"], "MHz"),
    "clocks.mem": (lambda g: g["memory_clock_mhz"], "MHz"),
    "power.draw": (lambda g: f"{g['power_w']:.2f}", "W"),
    "utilization.gpu": (lambda g: g["util_pct"], "%"),
    "pcie.link.gen.current": (lambda _: 5, ""),
    "pcie.link.width.current": (lambda g: g["lanes"], ""),
    "pstate": (lambda _: "P0", ""),
    "persistence_mode": (lambda _: "Enabled", ""),
    "ecc.errors.corrected.volatile.total": (lambda g: g["sbe"], ""),
    "ecc.errors.uncorrected.volatile.total": (lambda g: g["dbe"], ""),
    "ecc.errors.uncorrected.aggregate.total": (lambda g: g["dbe_lifetime"], ""),
}


def text(state: dict, gpus: list) -> str:
    """`-q`."""
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [_line(0, "Driver Version", state["driver"]), _line(0, "CUDA Version", "13.0"), ""]
    lines.append(_line(0, "Attached GPUs", len(state["gpus"])))
    for gpu in gpus:
        lines.append(f"GPU {gpu['bus_id']}")
        fields = (*_identity(gpu), *_errors(gpu), *_readings(gpu))
        lines.extend(_line(depth, name, value) for depth, name, value in fields)
    return "\n".join(lines) + "\n"


def _line(depth: int, name: str, value: object) -> str:
    head = "    " * depth + name
    return head if value is None else f"{head:<50}: {value}"


def _identity(gpu: dict) -> tuple:
    """Depth, name and value of the first lines about one GPU; None as value heads a block."""
    return (
        (1, "Product Name", MODEL),
        (1, "Persistence Mode", "Enabled"),
        (1, "Serial Number", gpu["serial"]),
        (1, "GPU UUID", gpu["uuid"]),
        (1, "VBIOS Version", gpu["vbios"]),
        (1, "GPU Recovery Action", ACTIONS[gpu["recovery"]]),
        (1, "PCI", None),
        (2, "Bus Id", gpu["bus_id"]),
        (2, "GPU Link Info", None),
        (3, "PCIe Generation", None),
        (4, "Max", 5),
        (4, "Current", 5),
        (3, "Link Width", None),
        (4, "Max", "16x"),
        (4, "Current", f"{gpu['lanes']}x"),
        (2, "Replays Since Reset", gpu["replays"]),
    )


def _errors(gpu: dict) -> tuple:
    return (
        (1, "ECC Mode", None),
        (2, "Current", "Enabled"),
        (2, "Pending", "Enabled"),
        (1, "ECC Errors", None),
        (2, "Volatile", None),
        (3, "SRAM Correctable", 0),
        (3, "SRAM Uncorrectable Parity", 0),
        (3, "SRAM Uncorrectable SEC-DED", 0),
        (3, "DRAM Correctable", gpu["sbe"]),
        (3, "DRAM Uncorrectable", gpu["dbe"]),
        (2, "Aggregate", None),
        (3, "SRAM Correctable", 0),
        (3, "SRAM Uncorrectable Parity", 0),
        (3, "SRAM Uncorrectable SEC-DED", 0),
        (3, "DRAM Correctable", gpu["sbe"]),
        (3, "DRAM Uncorrectable", gpu["dbe_lifetime"]),
        (3, "SRAM Threshold Exceeded", "No"),
        (1, "Remapped Rows", None),
        (2, "Correctable Error", gpu["remap_correctable"]),
        (2, "Uncorrectable Error", gpu["remap_uncorrectable"]),
        (2, "Pending", _yes(gpu["remap_pending"])),
        (2, "Remapping Failure Occurred", _yes(gpu["remap_failure"])),
    )


def _readings(gpu: dict) -> tuple:
    stale = STALE if gpu["hung"] else None
    reasons = [(2, name, stale or _active(gpu, bit)) for bit, name, _ in REASONS]
    return (
        (1, "Clocks Event Reasons", None),
        *reasons,
        (1, "Utilization", None),
        (2, "GPU", stale or f"{gpu['util_pct']} %"),
        (1, "Temperature", None),
        (2, "GPU Current Temp", stale or f"{gpu['temp_c']} C"),
        (2, "GPU T.Limit Temp", stale or f"{87 - gpu['temp_c']} C"),
        (2, "Memory Current Temp", stale or f"{gpu['memory_temp_c']} C"),
        (1, "GPU Power Readings", None),
        (2, "Average Power Draw", stale or f"{gpu['power_w']:.2f} W"),
        (2, "Current Power Limit", "700.00 W"),
        (1, "Clocks", None),
        (2, "SM", stale or f"{gpu['sm_clock_mhz']} MHz"),
        (2, "Memory", stale or f"{gpu['memory_clock_mhz']} MHz"),
        (1, "Fabric", None),
        (2, "State", "Completed"),
        (2, "Status", "Success"),
        *_process_lines(gpu),
    )


def _process_lines(gpu: dict) -> tuple:
    if gpu["pid"] is None:
        return ((1, "Processes", "None"),)
    process = ((2, "Process ID", gpu["pid"]), (3, "Type", "C"), (3, "Name", "python"))
    return ((1, "Processes", None), *process)


def _active(gpu: dict, bit: int) -> str:
    return "Active" if gpu["reasons"] & bit else "Not Active"


def _yes(value: object) -> str:
    return "Yes" if value else "No"


def summary(state: dict, gpus: list) -> str:
    """The plain table, in short."""
    lines = [f"| NVIDIA-SMI {state['driver']}    Driver Version: {state['driver']} |"]
    lines.extend(
        f"| {gpu['index']:>3}  {MODEL}  On  | {gpu['bus_id']} | {gpu['temp_c']}C"
        f" {gpu['power_w']:.0f}W / 700W | {gpu['util_pct']}% |"
        for gpu in gpus
    )
    return "\n".join(lines)


def xml(state: dict, gpus: list) -> str:
    """`-q -x`."""
    head = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
        f"\t<driver_version>{state['driver']}</driver_version>",
        "\t<cuda_version>13.0</cuda_version>",
        f"\t<attached_gpus>{len(state['gpus'])}</attached_gpus>",
    ]
    body = []
    for gpu in gpus:
        body.append(f'\t<gpu id="{gpu["bus_id"]}">')
        body.extend(_element(name, value, 2) for name, value in _tree(gpu))
        body.append("\t</gpu>")
    return "\n".join([*head, *body, "</nvidia_smi_log>"]) + "\n"


def _element(name: str, value: object, depth: int) -> str:
    tabs = "\t" * depth
    if isinstance(value, list):
        inner = "\n".join(_element(child, below, depth + 1) for child, below in value)
        return (
            f"{tabs}<{name}>\n{inner}\n{tabs}</{name}>"
            if value
            else f"{tabs}<{name}>\n{tabs}</{name}>"
        )
    return f"{tabs}<{name}>{value}</{name}>"


def _tree(gpu: dict) -> list:
    stale = STALE if gpu["hung"] else None
    reasons = [
        (f"clocks_event_reason_{tag}", stale or _active(gpu, bit)) for bit, _, tag in REASONS
    ]
    return [
        ("product_name", MODEL),
        ("product_architecture", "Hopper"),
        ("persistence_mode", "Enabled"),
        ("mig_mode", [("current_mig", "Disabled"), ("pending_mig", "Disabled")]),
        ("serial", gpu["serial"]),
        ("uuid", gpu["uuid"]),
        ("minor_number", gpu["index"]),
        ("vbios_version", gpu["vbios"]),
        ("gpu_recovery_action", ACTIONS[gpu["recovery"]]),
        ("pci", _pci(gpu)),
        ("clocks_event_reasons", reasons),
        ("fb_memory_usage", [("total", f"{MEMORY_MIB} MiB")]),
        ("utilization", [("gpu_util", stale or f"{gpu['util_pct']} %")]),
        ("ecc_mode", [("current_ecc", "Enabled"), ("pending_ecc", "Enabled")]),
        ("ecc_errors", _ecc(gpu)),
        ("remapped_rows", _rows(gpu)),
        ("temperature", _temperatures(gpu, stale)),
        ("gpu_power_readings", _power(gpu, stale)),
        ("clocks", _clocks(gpu, stale)),
        ("fabric", [("state", "Completed"), ("status", "Success")]),
        ("processes", _processes(gpu)),
    ]


def _temperatures(gpu: dict, stale: str | None) -> list:
    return [
        ("gpu_temp", stale or f"{gpu['temp_c']} C"),
        ("gpu_temp_tlimit", stale or f"{87 - gpu['temp_c']} C"),
        ("memory_temp", stale or f"{gpu['memory_temp_c']} C"),
    ]


def _power(gpu: dict, stale: str | None) -> list:
    return [
        ("power_state", "P0"),
        ("average_power_draw", stale or f"{gpu['power_w']:.2f} W"),
        ("current_power_limit", "700.00 W"),
    ]


def _clocks(gpu: dict, stale: str | None) -> list:
    return [
        ("sm_clock", stale or f"{gpu['sm_clock_mhz']} MHz"),
        ("mem_clock", stale or f"{gpu['memory_clock_mhz']} MHz"),
    ]


def _pci(gpu: dict) -> list:
    widths = [("max_link_width", "16x"), ("current_link_width", f"{gpu['lanes']}x")]
    return [
        ("pci_bus", gpu["bus_id"].split(":")[1]),
        ("pci_device", "00"),
        ("pci_domain", "0000"),
        ("pci_bus_id", gpu["bus_id"]),
        (
            "pci_gpu_link_info",
            [
                ("pcie_gen", [("max_link_gen", 5), ("current_link_gen", 5)]),
                ("link_widths", widths),
            ],
        ),
        ("replay_counter", gpu["replays"]),
    ]


def _ecc(gpu: dict) -> list:
    def block(dram: int) -> list:
        return [
            ("sram_correctable", 0),
            ("sram_uncorrectable_parity", 0),
            ("sram_uncorrectable_secded", 0),
            ("dram_correctable", gpu["sbe"]),
            ("dram_uncorrectable", dram),
        ]

    lifetime = [*block(gpu["dbe_lifetime"]), ("sram_threshold_exceeded", "No")]
    return [("volatile", block(gpu["dbe"])), ("aggregate", lifetime)]


def _rows(gpu: dict) -> list:
    return [
        ("remapped_row_corr", gpu["remap_correctable"]),
        ("remapped_row_unc", gpu["remap_uncorrectable"]),
        ("remapped_row_pending", _yes(gpu["remap_pending"])),
        ("remapped_row_failure", _yes(gpu["remap_failure"])),
    ]


def _processes(gpu: dict) -> list:
    if gpu["pid"] is None:
        return []
    info = [("pid", gpu["pid"]), ("type", "C"), ("process_name", "python")]
    return [("process_info", info)]
