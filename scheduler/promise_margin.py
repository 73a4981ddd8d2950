"""How far promises stay away from what is just possible, from how many of them are kept.

Additive increase, multiplicative decrease (Chiu and Jain, 1989) of what is let in: a broken promise too many doubles
the margin, a long time without takes a step of it back, if anybody was refused meanwhile.
"""

from __future__ import annotations

FIRST_MARGIN = 0.05
MAX_MARGIN = 0.5
MIN_RAISED = 0.02
"""The margin after a rise is at least this."""
STEP = 0.01
"""By which it falls."""
MAX_BROKEN_SHARE = 0.01
MIN_BROKEN = 3
"""Fewer broken promises in a period are chance."""
CALM_BROKEN_SHARE = 0.001
CALM_PROMISES = 200
"""A period of so many may lower the margin."""
SETTLE_PROMISES = 50
"""After a rise, so many that end were mostly made before it: they say nothing of it."""
PERIOD_PROMISES = 1000
"""Periods are no longer than this."""


class PromiseMargin:
    """Owns the margin and the counts. Deterministic in what it observes."""

    def __init__(self) -> None:
        self.value = FIRST_MARGIN
        """Share of the time that promises leave unused; 0..`MAX_MARGIN`."""
        self.num_kept = 0
        self.num_broken = 0
        """Both since the start."""
        self._kept = 0
        self._broken = 0
        self._refused = 0
        self._settling = 0

    def refused(self) -> None:
        """A promise could not be made."""
        self._refused += 1

    def ended(self, *, is_kept: bool) -> None:
        """A promise was kept, or broken."""
        self.num_kept += is_kept
        self.num_broken += not is_kept
        if self._settling:
            self._settling -= 1
            return
        self._kept += is_kept
        self._broken += not is_kept
        total = self._kept + self._broken
        if self._broken >= MIN_BROKEN and self._broken > MAX_BROKEN_SHARE * total:
            self.value = min(MAX_MARGIN, max(2.0 * self.value, MIN_RAISED))
            self._settling = SETTLE_PROMISES
        elif total >= CALM_PROMISES and self._broken <= CALM_BROKEN_SHARE * total and self._refused:
            self.value = max(0.0, self.value - STEP)
        elif total < PERIOD_PROMISES:
            return
        self._kept = self._broken = self._refused = 0

    def check(self) -> None:
        """Assert the bounds."""
        assert 0.0 <= self.value <= MAX_MARGIN
        assert 0 <= self._settling <= SETTLE_PROMISES
        assert 0 <= self._kept <= self.num_kept and 0 <= self._broken <= self.num_broken
