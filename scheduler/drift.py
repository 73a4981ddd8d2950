"""Whether steps have become slower or faster for good: a shift of the clock or a hot machine widens the margin.

Source: E. S. Page, Continuous Inspection Schemes, Biometrika 41 (1954), for the two-sided cumulative sum.
"""

from __future__ import annotations

import math

SLACK = 0.05
"""Of the logarithm of a residual: noise up to here adds nothing."""
LIMIT = 0.5
"""Of a cumulative sum: ten steps that are 10 % off, or one that is 70 % off."""
WIDENING = 1.25
MAX_MARGIN = 2.0
DECAY = 0.98
"""Per step, of what the margin is above 1: half of it is gone after 34 steps without drift."""


class Drift:
    """Owns the margin that predictions are widened by while they are known to be off."""

    def __init__(self) -> None:
        self._slower = 0.0
        self._faster = 0.0
        self.margin = 1.0

    def observe(self, residual: float) -> bool:
        """A step took `residual` times its corrected prediction. True: a drift was found, the margin is wider."""
        deviation = math.log(residual)
        self._slower = max(0.0, self._slower + deviation - SLACK)
        self._faster = max(0.0, self._faster - deviation - SLACK)
        if max(self._slower, self._faster) <= LIMIT:
            self.margin = 1.0 + (self.margin - 1.0) * DECAY
            return False
        self._slower = self._faster = 0.0
        self.margin = min(self.margin * WIDENING, MAX_MARGIN)
        return True

    def check(self) -> None:
        """Assert the bounds."""
        assert 1.0 <= self.margin <= MAX_MARGIN
        assert 0.0 <= self._slower <= LIMIT and 0.0 <= self._faster <= LIMIT
