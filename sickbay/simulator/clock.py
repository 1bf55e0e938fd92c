"""Simulated time: wall time that passes while the process runs, times `time_scale`.

It stands still while the process is down and goes on where it was: a fleet stopped overnight does
not wake up with a night's worth of faults.
"""

import time

S_PER_H = 3600.0
S_PER_MIN = 60.0


class Clock:
    """Hours of simulated time since the fleet was first started.

    Args:
        time_scale: simulated seconds per wall second.
        start_h: where the last run stopped.
    """

    def __init__(self, time_scale: float, *, start_h: float = 0.0) -> None:
        self.time_scale = time_scale
        self._start_h = start_h
        self._started_s = time.monotonic()

    def now_h(self) -> float:
        """The present simulated hour."""
        passed_s = time.monotonic() - self._started_s
        return self._start_h + passed_s * self.time_scale / S_PER_H

    def wall(self) -> float:
        """The present wall time, as unix seconds."""
        return time.time()

    def real_s(self, simulated_h: float) -> float:
        """Wall seconds that a simulated duration takes."""
        return simulated_h * S_PER_H / self.time_scale

    def simulated_h(self, real_s: float) -> float:
        """Simulated hours that pass during a wall duration."""
        return real_s * self.time_scale / S_PER_H

    def wall_at(self, at_h: float) -> float:
        """The wall time of a simulated moment, unless the process stops in between."""
        return self.wall() + self.real_s(at_h - self.now_h())
