"""The time of a simulation: it moves only when it is told to."""

from __future__ import annotations

import math


class VirtualClock:
    """Implements `engine.runner.Clock`. Invariant: it never goes back."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Seconds since the simulation began."""
        return self._now_s

    def advance(self, duration_s: float) -> None:
        """Let time pass.

        Raises:
            ValueError: a duration that is negative or no number.
        """
        if not 0.0 <= duration_s < math.inf:
            raise ValueError(f"time would move by {duration_s} s, it must be at least 0 and finite")
        self._now_s += duration_s

    def wait_until(self, time_s: float) -> None:
        """Let time pass until then; a moment that is over is none to wait for."""
        self._now_s = max(self._now_s, time_s)
