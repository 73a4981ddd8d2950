"""When copies of KV blocks would be done, by the state of the link at the start of a step and what it asked for since.

Source: the quote of the design, a pure function of the snapshot; bandwidth is what the link measured, never a guess.
"""

from __future__ import annotations

import math

from scheduler.link import LinkDirection, LinkSnapshot


class LinkQuote:
    """Of one step. What is reserved counts for what is asked afterwards."""

    def __init__(self, link: LinkSnapshot, block_bytes: int) -> None:
        self._link = link
        self._block_bytes = block_bytes
        self._reserved_load_bytes = 0
        self._reserved_store_bytes = 0

    def load_s(self, num_blocks: int) -> float:
        """Seconds from now until that many blocks have come from the host; 0 where no bandwidth is known."""
        ahead_bytes = self._link.h2d.queued_kv_load_bytes + self._reserved_load_bytes
        return self._seconds(ahead_bytes + num_blocks * self._block_bytes, self._link.h2d)

    def store_s(self, num_blocks: int) -> float:
        """Seconds from now until that many blocks have left for the host; 0 where no bandwidth is known."""
        ahead_bytes = self._link.d2h.queued_kv_store_bytes + self._reserved_store_bytes
        return self._seconds(ahead_bytes + num_blocks * self._block_bytes, self._link.d2h)

    def read_s(self, num_blocks: int) -> float:
        """Seconds that it takes to read that many blocks from the disk; 0 where its speed is not known."""
        bytes_per_s = self._link.disk_read_bytes_per_s
        return num_blocks * self._block_bytes / bytes_per_s if bytes_per_s > 0.0 else 0.0

    @property
    def bears_stores(self) -> bool:
        """Whether blocks may leave beside the weights of steps: what these lose by it is no more than the share of the
        link that is KV's anyway.
        """
        link = self._link
        return not link.num_streamed_layers or link.coupling >= 1.0 - link.kv_link_share

    def num_stored_in(self, duration_s: float) -> int:
        """Blocks that leave for the host in that time, at least 1."""
        bytes_per_s = self._kv_bytes_per_s(self._link.d2h)
        return max(1, int(duration_s * bytes_per_s // self._block_bytes)) if bytes_per_s > 0.0 else 1

    def reserve_load(self, num_blocks: int) -> None:
        """These will be loaded from this step on."""
        self._reserved_load_bytes += num_blocks * self._block_bytes

    def reserve_store(self, num_blocks: int) -> None:
        """These will be stored from this step on."""
        self._reserved_store_bytes += num_blocks * self._block_bytes

    def _seconds(self, num_bytes: int, direction: LinkDirection) -> float:
        if direction.p50_bytes_per_s <= 0.0:
            return 0.0
        bytes_per_s = self._kv_bytes_per_s(direction)
        return num_bytes / bytes_per_s if bytes_per_s > 0.0 else math.inf

    def _kv_bytes_per_s(self, direction: LinkDirection) -> float:
        """What is left to KV: on the way to the device its share, while weights take theirs in every step."""
        link = self._link
        if not link.num_streamed_layers:
            return direction.p50_bytes_per_s
        share = link.kv_link_share if direction is link.h2d else link.coupling
        return direction.p50_bytes_per_s * share
