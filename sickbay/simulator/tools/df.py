"""Fake `df`: one disk, half full."""

from sim_link import UNREACHABLE, Dead, Machine, Refusal, say

TABLE = """Filesystem     1024-blocks      Used Available Capacity Mounted on
/dev/nvme0n1p2   937367040 468683520 468683520      50% /"""


def main(argv: list) -> int:
    """Print the table; the exit status."""
    del argv
    try:
        Machine().read()
    except (Dead, Refusal):
        return UNREACHABLE
    say(TABLE)
    return 0
