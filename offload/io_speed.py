"""Bytes per second of the last operations on a disk."""

from __future__ import annotations

_MEMORY = 0.95
"""What an operation keeps of the weight of those before it: the last twenty count for two thirds."""


class IoSpeed:
    """Decayed sums of bytes and of seconds: a large operation counts for more. Written by one thread."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """In all."""
        self.busy_s = 0.0
        """In all."""
        self._recent_bytes = 0.0
        self._recent_s = 0.0

    @property
    def bytes_per_s(self) -> float:
        """0.0: nothing was measured yet."""
        return self._recent_bytes / self._recent_s if self._recent_s > 0 else 0.0

    def add(self, num_bytes: int, seconds: float, *, is_counted: bool = True) -> None:
        """An operation took `seconds`; one that was a trial does not count in the totals."""
        self._recent_bytes = _MEMORY * self._recent_bytes + num_bytes
        self._recent_s = _MEMORY * self._recent_s + seconds
        if is_counted:
            self.num_bytes += num_bytes
            self.busy_s += seconds
