"""How fast one direction of the link is, from the slices that it has carried."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque

MIN_MEASURED_BYTES = 128 * 1024
"""Of a smaller slice the fixed cost of a copy is measured, not the bandwidth."""


@dataclasses.dataclass(frozen=True, slots=True)
class BandwidthRules:
    """When a measurement counts, and how many make a fact.

    Slices are gathered into samples of at least `sample_s` of a busy link: a plan is about the bytes of a step, and
    half a millisecond of one slice is mostly the jitter of the system. Percentiles are over the last
    `num_window_samples`, and of the initial value until there are `num_first_samples`. The 5th is never the
    least of all: of a few samples that is one hiccup, as there is when an engine that has warmed up starts to serve.

    After a row of `num_late_slices` and `min_late_s` in which each took `late_factor` times what was expected, the
    bandwidth is at once the median of theirs (the catch-up after a hiccup of the system ends the row, and one long
    stall does not count for all). It stays at most that until every sample has been `recovery_factor` times as fast for
    `recovery_s`, so that a link that comes and goes does not make plans come and go.
    """

    sample_s: float = 50e-3
    num_window_samples: int = 40
    num_first_samples: int = 20
    late_factor: float = 1.25
    num_late_slices: int = 8
    min_late_s: float = 10e-3
    recovery_factor: float = 1.05
    recovery_s: float = 2.0


class BandwidthEstimate:
    """The median and the 5th percentile of the bandwidth of one direction, in bytes per second.

    Seconds given to it are those that the slice would have taken with the other direction idle.
    """

    def __init__(self, initial_bytes_per_s: float, rules: BandwidthRules) -> None:
        assert initial_bytes_per_s > 0
        self._rules = rules
        self._nominal_p50 = self._nominal_p5 = initial_bytes_per_s  # of the window, or the initial value
        self._window: deque[float] = deque(maxlen=rules.num_window_samples)
        self._sample_bytes = 0
        self._sample_s = 0.0
        self._late_row: list[float] = []  # bytes per second of each
        self._late_s = 0.0
        self._ceiling: float | None = None
        self._fast_since_s: float | None = None
        self.num_drops = 0

    @property
    def p50_bytes_per_s(self) -> float:
        return self._nominal_p50 if self._ceiling is None else min(self._nominal_p50, self._ceiling)

    @property
    def p5_bytes_per_s(self) -> float:
        return self._nominal_p5 if self._ceiling is None else min(self._nominal_p5, self._ceiling)

    @property
    def is_derated(self) -> bool:
        """Whether a drop was seen that the link has not recovered from."""
        return self._ceiling is not None

    def is_late(self, num_bytes: int, seconds: float) -> bool:
        """Whether a slice took notably longer than its bytes should. Slices that measure nothing are never late."""
        if num_bytes < MIN_MEASURED_BYTES:
            return False
        return seconds * self.p50_bytes_per_s > self._rules.late_factor * num_bytes

    def add(self, num_bytes: int, seconds: float, now_s: float) -> bool:
        """Take in a finished slice; whether it was late."""
        if num_bytes < MIN_MEASURED_BYTES or seconds <= 0.0:
            return False
        is_late = self.is_late(num_bytes, seconds)
        if is_late:
            self._late_row.append(num_bytes / seconds)
            self._late_s += seconds
            if self._is_drop():
                self._drop(statistics.median(self._late_row))
                return True
        elif self._late_row:
            self._forget_late()
        self._sample_bytes += num_bytes
        self._sample_s += seconds
        if self._sample_s >= self._rules.sample_s:
            self._add_sample(self._sample_bytes / self._sample_s, now_s)
            self._sample_bytes, self._sample_s = 0, 0.0
        return is_late

    def check(self) -> None:
        """Assert that the percentiles are in order and the row of late slices is short of a drop."""
        assert 0 < self.p5_bytes_per_s <= self.p50_bytes_per_s, (self.p5_bytes_per_s, self.p50_bytes_per_s)
        assert not self._is_drop()
        assert self._sample_s < self._rules.sample_s
        assert self._fast_since_s is None or self._ceiling is not None

    def _is_drop(self) -> bool:
        return len(self._late_row) >= self._rules.num_late_slices and self._late_s >= self._rules.min_late_s

    def _drop(self, bytes_per_s: float) -> None:
        self.num_drops += 1
        self._ceiling = self._nominal_p50 = self._nominal_p5 = bytes_per_s
        self._fast_since_s = None
        self._window.clear()
        self._sample_bytes, self._sample_s = 0, 0.0
        self._forget_late()

    def _forget_late(self) -> None:
        self._late_row.clear()
        self._late_s = 0.0

    def _add_sample(self, bytes_per_s: float, now_s: float) -> None:
        self._window.append(bytes_per_s)
        if self._ceiling is not None:
            self._watch_recovery(self._ceiling, bytes_per_s, now_s)
        if len(self._window) >= self._rules.num_first_samples:
            ordered = sorted(self._window)
            self._nominal_p50 = ordered[len(ordered) // 2]
            self._nominal_p5 = ordered[max(1, len(ordered) // 20)]

    def _watch_recovery(self, ceiling: float, bytes_per_s: float, now_s: float) -> None:
        """End the derating if this sample completes a recovery, of which the window then holds the samples alone."""
        if bytes_per_s < self._rules.recovery_factor * ceiling:
            self._fast_since_s = None
        elif self._fast_since_s is None:
            self._fast_since_s = now_s
            self._window.clear()
            self._window.append(bytes_per_s)
        elif (
            now_s - self._fast_since_s >= self._rules.recovery_s and len(self._window) >= self._rules.num_first_samples
        ):
            self._ceiling = self._fast_since_s = None
