"""Fake `mpirun`: starts the ranks of a collective test on the hosts of `-H a:8,b:8`.

It reaches other machines of the fleet as the real one does by ssh, and nothing else of them.
"""

import os

import nccl_ranks
from sim_link import UNREACHABLE, Dead, Machine, Refusal, say

PROGRAM = "all_reduce_perf"
LINE = "-" * 74
NO_ROUTE = "ssh: connect to host {host} port 22: No route to host"
LOST_DAEMON = (
    "ORTE was unable to reliably start one or more daemons.\n"
    "This usually is caused by: a host that is down or cannot be reached"
)
FEW_SLOTS = "There are not enough slots available in the system to satisfy the {np} slots"
ENDED = (
    "Primary job terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted."
)


def main(argv: list) -> int:
    """Run one command line; the exit status."""
    parsed = _parse(argv)
    if parsed is None:
        say("mpirun was unable to find the specified executable or an option is not known")
        return 1
    count, slots, program = parsed
    options = nccl_ranks.parse(program[1:])
    if options is None:
        say("Invalid argument to the collective test")
        return 1
    hosts, left = [], count
    for host, most in slots:
        ranks = min(most, left)
        if ranks:
            hosts.append((host, ranks * options.gpus))
            left -= ranks
    if left:
        say(f"{LINE}\n{FEW_SLOTS.format(np=count)}\n{LINE}")
        return 1
    return _start(argv, options, hosts)


def _start(argv: list, options: object, hosts: list) -> int:
    machines = []
    for host, ranks in hosts:
        try:
            machines.append((nccl_ranks.machine_of(host), ranks))
        except (Dead, Refusal):
            say(f"{NO_ROUTE.format(host=host)}\n{LINE}\n{LOST_DAEMON}\n{LINE}")
            return 1
    code = nccl_ranks.run(options, machines)
    if code:
        say(f"{LINE}\n{ENDED}\n{LINE}")
    try:
        Machine().ran("mpirun", argv, code)
    except (Dead, Refusal):
        return UNREACHABLE
    return code


def _parse(argv: list) -> tuple | None:
    """Number of ranks, (host, slots) in order, the program with its arguments."""
    count, slots, words = None, [], list(argv)
    while words:
        word = words.pop(0)
        if word.rpartition("/")[2] == PROGRAM:
            program = [word, *words]
            break
        if word in ("-np", "-n", "-c", "--np") and words and words[0].isdigit():
            count = int(words.pop(0))
        elif word in ("-H", "--host", "-host") and words:
            slots = [_slots(item) for item in words.pop(0).split(",")]
        elif word == "-x" and words:
            name, equals, value = words.pop(0).partition("=")
            if equals:
                os.environ[name] = value
        elif word in ("--map-by", "--bind-to", "-N", "--mca", "-mca") and words:
            del words[: 2 if word.endswith("mca") else 1]
        elif word not in ("--allow-run-as-root", "--tag-output"):
            return None
    else:
        return None
    slots = slots or [(os.environ.get("SICKBAY_SIM_NODE", ""), count or 1)]
    if any(number <= 0 for _, number in slots):
        return None
    return count or sum(number for _, number in slots), slots, program


def _slots(item: str) -> tuple:
    host, _, number = item.partition(":")
    return host, int(number) if number.isdigit() else 1
