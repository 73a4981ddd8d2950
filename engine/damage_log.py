"""Says in the log that KV blocks were damaged, once a minute at most: one line may be a flipped bit, many a disk."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0


class DamageLog:
    """Counts between two lines."""

    def __init__(self) -> None:
        self._num_since = 0
        self._last_s: float | None = None

    def add(self, num_blocks: int, now_s: float) -> None:
        """So many blocks were not what was stored."""
        if not num_blocks:
            return
        self._num_since += num_blocks
        if self._last_s is not None and now_s - self._last_s < INTERVAL_S:
            return
        logger.warning(
            "%d KV blocks that came back from host memory or disk were not what was stored: they are computed again; "
            "if this goes on, check the disk and the memory of this machine",
            self._num_since,
        )
        self._num_since = 0
        self._last_s = now_s
