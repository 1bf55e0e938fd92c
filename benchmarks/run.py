"""Runs every benchmark and prints ratios; nothing here is a test and nothing asserts a time.

`python benchmarks/run.py [repairs|start]`. Each figure stands beside its peer of the same run.
"""

import asyncio
import sys

import repairs
import start


def main() -> None:
    """Run the named benchmarks, or all."""
    wanted = sys.argv[1:] or ["repairs", "start"]
    for name, module in {"repairs": repairs, "start": start}.items():
        if name in wanted:
            asyncio.run(module.main())


if __name__ == "__main__":
    main()
