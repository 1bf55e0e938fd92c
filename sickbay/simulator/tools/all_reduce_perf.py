"""Fake `all_reduce_perf` of nccl-tests on the GPUs of this machine."""

import nccl_ranks
from sim_link import UNREACHABLE, Dead, Machine, Refusal, say

USAGE = "USAGE: all_reduce_perf [-b minbytes] [-e maxbytes] [-f stepfactor] [-g ngpus] [-c 0/1]"


def main(argv: list) -> int:
    """Run one command line; the exit status."""
    options = nccl_ranks.parse(argv)
    if options is None:
        say(USAGE)
        return 1
    try:
        machine = Machine()
        code = nccl_ranks.run(options, [(machine, options.gpus * options.threads)])
        machine.ran("all_reduce_perf", argv, code)
    except (Dead, Refusal):
        return UNREACHABLE
    return code
