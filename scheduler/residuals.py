"""How far steps of one kind are from what was predicted: a correction that follows, and the spread around it."""

from __future__ import annotations

import bisect
import math
from collections import deque

WINDOW_STEPS = 64
"""Residuals that the quantile is taken of."""
MIN_STEPS = 20
"""Fewer than these have no 95th percentile; until then the prior holds."""
WEIGHT = 0.1
"""Of a new step in the correction."""
MAX_RATIO = 4.0
"""A step further off than this, or its inverse, counts as this far."""
FADE_STEPS = 256
"""After so many steps of other kinds, what this kind has shown counts for less and less."""
FADE = 0.01
"""Of the way to the other kinds' correction, a step."""
MAX_STRIDE = 1.25
"""The correction follows a step as if it were off by this factor at most: one stall moves it by 2.5 %."""


class Residuals:
    """Owns the correction and the residuals of one kind of step. Deterministic in what it observes."""

    def __init__(self, prior_p95: float) -> None:
        """
        Args:
            prior_p95: measured over corrected prediction at the 95th percentile, until there are `MIN_STEPS`.
        """
        self._prior_p95 = prior_p95
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._num_steps_of_others = 0
        self.correction = 1.0
        """Factor on predictions: exponentially weighted mean of measured over predicted."""

    @property
    def p95(self) -> float:
        """Measured over corrected prediction that 95 % of the recent steps do not exceed; at least 1."""
        num_steps = len(self._ordered)
        if num_steps < MIN_STEPS:
            return self._prior_p95
        return max(1.0, self._ordered[math.ceil(0.95 * num_steps) - 1])

    def observe(self, ratio: float) -> float:
        """A step took `ratio` times its uncorrected prediction; its residual against the correction before it."""
        self._num_steps_of_others = 0
        ratio = min(max(ratio, 1.0 / MAX_RATIO), MAX_RATIO)
        residual = ratio / self.correction
        if len(self._recent) == WINDOW_STEPS:
            oldest = self._recent.popleft()
            del self._ordered[bisect.bisect_left(self._ordered, oldest)]
        self._recent.append(residual)
        bisect.insort(self._ordered, residual)
        followed = self.correction * min(max(residual, 1.0 / MAX_STRIDE), MAX_STRIDE)
        self.correction += WEIGHT * (followed - self.correction)
        return residual

    def fade(self, correction: float) -> None:
        """A step of another kind was observed, whose correction is `correction` by now.

        A kind whose predictions are too long may never be scheduled again, and so never show that they are.
        """
        self._num_steps_of_others += 1
        if self._num_steps_of_others <= FADE_STEPS:
            return
        self.correction += FADE * (correction - self.correction)
        if self._recent and self._num_steps_of_others % WINDOW_STEPS == 0:
            self._recent.clear()
            self._ordered.clear()

    def check(self) -> None:
        """Assert that both orders hold the same residuals and the correction lies within bounds."""
        assert sorted(self._recent) == self._ordered and len(self._recent) <= WINDOW_STEPS
        assert 1.0 / MAX_RATIO <= self.correction <= MAX_RATIO
