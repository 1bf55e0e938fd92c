"""Fake `journalctl -k`: the kernel's first line, and the Xids since a moment."""

import time

from sim_link import UNREACHABLE, Dead, Machine, Refusal, say


def main(argv: list) -> int:
    """Print the kernel's lines; the exit status."""
    since = next((word[len("--since=@") :] for word in argv if word.startswith("--since=@")), None)
    try:
        machine = Machine()
        asked = machine.ask("read")
    except (Dead, Refusal):
        return UNREACHABLE
    state, scale = asked["node"], asked["scale"]
    if since is None:
        say(f"{_stamp(0.0)} {state['name']} kernel: Linux version 6.8.0")
        return 0
    lines = []
    for gpu in state["gpus"]:
        for code, minutes in gpu["xids"]:
            at = time.time() - minutes * 60.0 / scale
            if at >= float(since):
                where = gpu["bus_id"].lower()[-12:-2]
                text = f"NVRM: Xid (PCI:{where}): {code}, pid='<unknown>', name=<unknown>"
                lines.append(f"{_stamp(at)} {state['name']} kernel: {text}")
    say("\n".join(sorted(lines)) or "-- No entries --")
    return 0


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(at))
