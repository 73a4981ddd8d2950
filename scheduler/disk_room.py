"""How many blocks the disk may hold, and what a full one teaches."""

from __future__ import annotations

import enum

from scheduler.request import BlockHash

RETRY_AFTER_S = 10.0
"""After the disk was full no block is written for so long."""
BATCH_SHARE = 16
"""A full disk makes room by one block in so many of those it holds."""


class RoomState(enum.Enum):
    OPEN = "open"
    PAUSED = "paused"  # was full; what was evicted then is being deleted
    TRYING = "trying"  # one block is being written
    CLOSED = "closed"  # full again: nothing is written any more


class DiskRoom:
    """Lowers the capacity to what fitted when the disk was full, and tries again once before it stops writing.

    The size that was asked for is a wish: others fill the same file system, or a quota is smaller. FULL pauses writing
    until what was evicted is deleted and `RETRY_AFTER_S` have passed; then one block is written. If it is there,
    writing goes on; if the disk is full once more, it is read only from then on.
    """

    def __init__(self, num_blocks: int) -> None:
        self.capacity = num_blocks
        """Blocks, those on their way in or out included. Never rises."""
        self.state = RoomState.OPEN
        self._trial: BlockHash | None = None
        self._retry_at_s = 0.0

    @property
    def is_writable(self) -> bool:
        """Whether blocks are, or will be, written."""
        return self.state is not RoomState.CLOSED and self.capacity > 0

    def max_writes(self, num_going: int, now_s: float) -> int | None:
        """How many writes may begin; None: as many as there is room for. `num_going`: deletions not yet done."""
        if self.state is RoomState.OPEN:
            return None
        return int(self.state is RoomState.PAUSED and num_going == 0 and now_s >= self._retry_at_s)

    def begin_write(self, block_hash: BlockHash) -> None:
        if self.state is RoomState.PAUSED:
            self.state = RoomState.TRYING
            self._trial = block_hash

    def end_write(self, block_hash: BlockHash, is_done: bool) -> None:
        """A write ended otherwise than by a full disk."""
        if block_hash == self._trial:
            self.state = RoomState.OPEN if is_done else RoomState.PAUSED
            self._trial = None

    def fill(self, block_hash: BlockHash, num_kept: int, now_s: float) -> int:
        """A write found the disk full that holds `num_kept` blocks beside it; how many of them to evict.

        0 where another write has found out before.
        """
        if block_hash == self._trial:
            self.state = RoomState.CLOSED
            self._trial = None
        elif self.state is RoomState.OPEN:
            self.state = RoomState.PAUSED
            self._retry_at_s = now_s + RETRY_AFTER_S
            self.capacity = min(self.capacity, max(1, num_kept))
            return -(-num_kept // BATCH_SHARE)
        return 0

    def check(self) -> None:
        """Assert that a trial is under way exactly in its state."""
        assert (self._trial is not None) == (self.state is RoomState.TRYING) and self.capacity >= 0
