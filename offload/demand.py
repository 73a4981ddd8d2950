"""How much of something is asked for per second, lately."""

from __future__ import annotations

import math


class DemandMeter:
    """Bytes per second of what was added, older additions weighing less: by 1/e after `time_constant_s`."""

    def __init__(self, time_constant_s: float) -> None:
        assert time_constant_s > 0
        self._time_constant_s = time_constant_s
        self._bytes_per_s = 0.0
        self._updated_s = 0.0

    def add(self, num_bytes: int, now_s: float) -> None:
        self._bytes_per_s = self.bytes_per_s(now_s) + num_bytes / self._time_constant_s
        self._updated_s = now_s

    def bytes_per_s(self, now_s: float) -> float:
        age_s = max(0.0, now_s - self._updated_s)
        return self._bytes_per_s * math.exp(-age_s / self._time_constant_s)
