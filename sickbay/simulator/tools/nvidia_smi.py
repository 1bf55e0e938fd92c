"""Fake `nvidia-smi`: -L, -q (text and XML), --query-gpu, --gpu-reset, -pm, nvlink -s.

As with the real one a GPU that is lost ends most queries, error text goes to standard output, and
a GPU that somebody uses is not reset.
"""

import nvidia_smi_query as query
from sim_link import UNREACHABLE, Dead, Machine, Refusal, say

LOST = 15
NOT_FOUND = 6
BAD_ARGUMENT = 2
IN_USE = (
    "The following GPUs could not be reset:\n"
    "  GPU {bus_id}: In use by another client\n"
    "\n"
    "1 device is currently being used by one or more other processes (e.g. Fabric\n"
    "Manager, CUDA application, graphics application such as an X server, or a\n"
    "monitoring application such as another instance of nvidia-smi). Please first kill\n"
    "all processes using this device and all compute applications running in the\n"
    "system.\n"
)


def main(argv: list) -> int:
    """Run one command line; the exit status."""
    try:
        machine = Machine()
        state = machine.read()
        return _run(machine, state, argv)
    except (Dead, Refusal):
        say(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
            " Make sure that the latest NVIDIA driver is installed and running.\n"
        )
        return UNREACHABLE


def _run(machine: Machine, state: dict, argv: list) -> int:
    if argv[:1] == ["nvlink"]:
        return _nvlink(state, argv[1:])
    flags, values = _parse(argv)
    if flags is None:
        say(f'Invalid combination of input arguments. "{values}" was not expected.')
        return BAD_ARGUMENT
    chosen = _chosen(state, values.get("-i"))
    if chosen is None:
        say("No devices were found")
        return NOT_FOUND
    if "-L" in flags:
        return _list(chosen)
    if "--gpu-reset" in flags:
        return _reset(machine, chosen, argv)
    if "-pm" in values:
        return _persistence(chosen, values["-pm"])
    lost = [gpu for gpu in chosen if not gpu["answers"]]
    if lost:
        say(_lost(lost[0]))
        return LOST
    if "--query-gpu" in values:
        return query.table(chosen, values["--query-gpu"], values.get("--format", ""))
    if "-q" in flags:
        say(query.xml(state, chosen) if "-x" in flags else query.text(state, chosen))
        return 0
    say(query.summary(state, chosen))
    return 0


def _parse(argv: list) -> tuple:
    """Flags and values; (None, word) for a word that is not known."""
    plain = {"-L": "-L", "--list-gpus": "-L", "-q": "-q", "--query": "-q", "-x": "-x"}
    plain.update({"--xml-format": "-x", "--gpu-reset": "--gpu-reset", "-r": "--gpu-reset"})
    valued = {"-i": "-i", "--id": "-i", "-pm": "-pm", "--persistence-mode": "-pm"}
    valued.update({"--query-gpu": "--query-gpu", "--format": "--format", "-d": "-d"})
    flags, values = set(), {}
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word in plain:
            flags.add(plain[word])
        elif name in valued and (equals or words):
            values[valued[name]] = value if equals else words.pop(0)
        else:
            return None, word
    return flags, values


def _chosen(state: dict, wanted: str | None) -> list | None:
    """The GPUs named by index, UUID, serial or bus id in any spelling; None for an unknown one."""
    if wanted is None:
        return state["gpus"]
    found = []
    for name in wanted.split(","):
        match = [gpu for gpu in state["gpus"] if _is(gpu, name.strip())]
        if not match:
            return None
        found.extend(match)
    return found


def _is(gpu: dict, name: str) -> bool:
    if name in (str(gpu["index"]), gpu["uuid"], gpu["serial"]):
        return True
    return _bus(name) is not None and _bus(name) == _bus(gpu["bus_id"])


def _bus(name: str) -> tuple | None:
    """Domain, bus and device as numbers; None when it is no bus id."""
    try:
        domain, bus, device = (
            name.split(":")[-3:] if name.count(":") > 1 else ("0", *name.split(":"))
        )
        return int(domain, 16), int(bus, 16), int(device.split(".")[0], 16)
    except ValueError:
        return None


def _lost(gpu: dict) -> str:
    short = gpu["bus_id"][4:]
    return (
        f"Unable to determine the device handle for GPU {short}: GPU is lost.  Reboot the system"
        " to recover this GPU"
    )


def _list(chosen: list) -> int:
    for gpu in chosen:
        if gpu["answers"]:
            say(f"GPU {gpu['index']}: {query.MODEL} (UUID: {gpu['uuid']})")
        else:
            say(f"Unable to determine the device handle for gpu {gpu['bus_id'][4:]}: Unknown Error")
    return 0


def _persistence(chosen: list, mode: str) -> int:
    if mode not in ("0", "1"):
        say(f"Invalid persistence mode {mode}")
        return BAD_ARGUMENT
    for gpu in chosen:
        if not gpu["answers"]:
            say(_lost(gpu))
            return LOST
        word = "Enabled" if mode == "1" else "Disabled"
        say(f"{word} persistence mode for GPU {gpu['bus_id']}.")
    say("All done.")
    return 0


def _reset(machine: Machine, chosen: list, argv: list) -> int:
    code = 0
    for gpu in chosen:
        code = max(code, _reset_one(machine, gpu))
    if code == 0:
        say("All done.")
    machine.ran("nvidia-smi", argv, code)
    return code


def _reset_one(machine: Machine, gpu: dict) -> int:
    try:
        machine.wait(machine.ask("gpu_reset", bus_id=gpu["bus_id"]))
    except Refusal as no:
        if no.code == "lost":
            say(_lost(gpu))
            return LOST
        if no.code == "in_use":
            say(IN_USE.format(bus_id=gpu["bus_id"]))
            return UNREACHABLE
        say(f"Unable to reset GPU {gpu['bus_id']}: {no}")
        return UNREACHABLE
    say(f"GPU {gpu['bus_id']} was successfully reset.")
    return 0


def _nvlink(state: dict, argv: list) -> int:
    if "-s" not in argv and "--status" not in argv:
        say("nvlink: one of -s is wanted")
        return BAD_ARGUMENT
    wanted = argv[argv.index("-i") + 1] if "-i" in argv[:-1] else None
    chosen = _chosen(state, wanted)
    if chosen is None:
        say("No devices were found")
        return NOT_FOUND
    for gpu in chosen:
        if not gpu["answers"]:
            say(_lost(gpu))
            return LOST
        say(f"GPU {gpu['index']}: {query.MODEL} (UUID: {gpu['uuid']})")
        for link in range(gpu["links"]):
            down = link in gpu["links_down"]
            say(f"\t Link {link}: " + ("<inactive>" if down else "26.562 GB/s"))
    return 0
