"""Seeded draws in streams of their own, so that more of one never shifts another.

Every draw is keyed: the same seed, stream and key give the same numbers in any order and after any
restart. A stream without a natural key counts, and its count is part of the saved state.
"""

import random


class Draws:
    """Draws of one simulated fleet.

    Args:
        seed: the fleet's seed.
        counts: how often each counting stream was used before (saved state).
    """

    def __init__(self, seed: int, *, counts: dict[str, int] | None = None) -> None:
        self.seed = seed
        self.counts: dict[str, int] = dict(counts or {})

    def keyed(self, stream: str, *key: str | int) -> random.Random:
        """A generator that depends on the seed, the stream and the key alone."""
        return random.Random("/".join([str(self.seed), stream, *map(str, key)]))

    def next(self, stream: str) -> random.Random:
        """The next generator of a counting stream."""
        count = self.counts.get(stream, 0)
        self.counts[stream] = count + 1
        return self.keyed(stream, count)
