"""Fake `ibstat`: one adapter per GPU, all ports up: a slow cable shows nothing here."""

from sim_link import UNREACHABLE, Dead, Machine, Refusal, say

ADAPTER = """CA 'mlx5_{index}'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: {lid}
\t\tLink layer: InfiniBand"""


def main(argv: list) -> int:
    """List the adapters; the exit status."""
    try:
        machine = Machine()
        count = max(1, len(machine.read()["gpus"]))
        machine.ran("ibstat", argv, 0)
    except (Dead, Refusal):
        return UNREACHABLE
    say("\n".join(ADAPTER.format(index=index, lid=index + 1) for index in range(count)))
    return 0
