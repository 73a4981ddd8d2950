"""The engine's real clock."""

from __future__ import annotations

import time


class MonotonicClock:
    """CLOCK_MONOTONIC, which all processes of a machine share."""

    def now_s(self) -> float:
        """Seconds since an arbitrary start, never going back."""
        return time.monotonic()
