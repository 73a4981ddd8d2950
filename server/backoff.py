"""How long to wait before the next try."""

from __future__ import annotations


class Backoff:
    """Doubles from `first_s` to `max_s`; a run of at least `healthy_s` starts it over."""

    def __init__(self, first_s: float = 0.5, max_s: float = 30.0, healthy_s: float = 60.0) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._healthy_s = healthy_s
        self._next_s = first_s

    def next_s(self, ran_s: float) -> float:
        """Seconds to wait after a run of `ran_s` seconds."""
        if ran_s >= self._healthy_s:
            self._next_s = self._first_s
        delay_s = self._next_s
        self._next_s = min(self._next_s * 2.0, self._max_s)
        return delay_s
