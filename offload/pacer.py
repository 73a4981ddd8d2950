"""When the slices of an emulated link start and end."""

from __future__ import annotations


class Pacer:
    """One direction of a link that carries `bytes_per_s`.

    Times are absolute, each from the one before: a copier that wakes late catches up with the link that it emulates,
    and no slice ever ends before it would have there.
    """

    def __init__(self, bytes_per_s: float, free_s: float) -> None:
        """`free_s` is when the link can carry its first slice."""
        assert bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._free_s = free_s

    def schedule(self, num_bytes: int, ready_s: float, share: float = 1.0) -> float:
        """Take the link for a slice that could start at `ready_s`, at `share` of the bandwidth; when the slice ends."""
        self._free_s = max(self._free_s, ready_s) + num_bytes / (self._bytes_per_s * share)
        return self._free_s
