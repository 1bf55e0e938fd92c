"""Runs every benchmark and prints ratios; nothing here is a test and nothing asserts a time.

`python benchmarks/run.py [repairs|start|burst|waiting|kills]`. Each figure stands beside its
peer of the same run.
"""

import asyncio
import sys

import burst
import kills
import repairs
import start
import waiting

MENU = {"repairs": repairs, "start": start, "burst": burst, "waiting": waiting, "kills": kills}


def main() -> None:
    """Run the named benchmarks, or all."""
    wanted = sys.argv[1:] or list(MENU)
    for name, module in MENU.items():
        if name in wanted:
            asyncio.run(module.main())


if __name__ == "__main__":
    main()
