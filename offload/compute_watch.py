"""Whether steps compute as long as predicted: a wrong record, a slower clock or a busy neighbour shows here."""

from __future__ import annotations

import statistics
from collections import deque

NUM_STEPS = 24
"""Steps that make a fact: one slow step is none."""
TOLERANCE = 0.2
"""By how much most steps must be off before the factor follows them, so that plans do not flap."""


class ComputeWatch:
    """The factor between measured and predicted times of computing, in steps of its own.

    The factor in force changes only when three of four of the last `num_steps` ratios differ from it by more than the
    tolerance, in the same direction; it is then their median, and the window begins anew.
    """

    def __init__(self, num_steps: int = NUM_STEPS, tolerance: float = TOLERANCE) -> None:
        self._ratios: deque[float] = deque(maxlen=num_steps)
        self._tolerance = tolerance
        self.factor = 1.0
        """In force: predicted times are to be multiplied by it."""

    def forget(self) -> None:
        """Expect what the record says."""
        self._ratios.clear()
        self.factor = 1.0

    def observe(self, predicted_s: float, measured_s: float) -> bool:
        """A step was predicted, by the record alone, to compute that long, and did. True: the factor has changed.

        Raises:
            ValueError: a time is not positive.
        """
        if not predicted_s > 0.0 or not measured_s > 0.0:
            raise ValueError(f"predicted {predicted_s} s, measured {measured_s} s: both must be positive")
        self._ratios.append(measured_s / predicted_s)
        if len(self._ratios) < (self._ratios.maxlen or 1):
            return False
        low, median, high = statistics.quantiles(self._ratios, n=4)
        if low <= self.factor * (1.0 + self._tolerance) and high >= self.factor * (1.0 - self._tolerance):
            return False
        self.factor = median
        self._ratios.clear()
        return True
