"""How many blocks the disk may hold, and what a full one teaches."""

from __future__ import annotations

import enum

from scheduler.request import BlockHash

RETRY_AFTER_S = 10.0
"""After the disk was full no block is written for so long."""
BATCH_SHARE = 16
"""A full disk makes room by one block in so many of those it holds, and grows again by one in so many of all."""
FIRST_GROWTH_S = 60.0
"""After the disk was full more is tried no sooner; each try that fails doubles it..."""
MAX_GROWTH_S = 3600.0
"""... up to this."""


class RoomState(enum.Enum):
    OPEN = "open"
    PAUSED = "paused"  # was full; what was evicted then is being deleted
    TRYING = "trying"  # one block is being written
    CLOSED = "closed"  # full again, although blocks had gone: nothing is written any more


class DiskRoom:
    """Lowers the capacity to what fitted when the disk was full, and raises it again by steps when others have left.

    The size that was asked for is a wish: others fill the same file system, or a quota is smaller. FULL pauses writing
    until what was evicted is deleted and `RETRY_AFTER_S` have passed; then one block is written. If it is there,
    writing goes on. If the disk is full once more, what was evicted freed nothing: it is read only from then on.

    A lowered capacity that is used up grows for a try, `FIRST_GROWTH_S` after the last FULL or later. A FULL then takes
    back the try and no block; it is none of the two in a row.
    """

    def __init__(self, num_blocks: int) -> None:
        self.capacity = num_blocks
        """Blocks, those on their way in or out included. Never above what was asked for."""
        self.state = RoomState.OPEN
        self._num_wished = num_blocks
        self._trial: BlockHash | None = None
        self._retry_at_s = 0.0
        self._full_s = 0.0
        self._growth_s = FIRST_GROWTH_S
        self._grown_from: int | None = None  # a larger capacity is being tried
        self._has_evicted = False  # for the trial that is next or under way

    @property
    def is_writable(self) -> bool:
        """Whether blocks are, or will be, written."""
        return self.state is not RoomState.CLOSED and self.capacity > 0

    def max_writes(self, num_going: int, now_s: float) -> int | None:
        """How many writes may begin; None: as many as there is room for. `num_going`: deletions not yet done."""
        if self.state is RoomState.OPEN:
            return None
        return int(self.state is RoomState.PAUSED and num_going == 0 and now_s >= self._retry_at_s)

    def grow(self, now_s: float) -> None:
        """The capacity is used up: raise a lowered one by a step, if the last FULL was long enough ago."""
        if self._grown_from is not None:  # all of the last step fitted
            self._grown_from = None
            self._growth_s = FIRST_GROWTH_S
        is_lowered = self.state is RoomState.OPEN and self.capacity < self._num_wished
        if is_lowered and now_s >= self._full_s + self._growth_s:
            self._grown_from = self.capacity
            self.capacity = min(self._num_wished, self.capacity - (-self._num_wished // BATCH_SHARE))

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

        0 where another write has found out before, or a larger capacity was tried.
        """
        is_trial = block_hash == self._trial
        if not is_trial and self.state is not RoomState.OPEN:
            return 0
        self._trial, self._full_s, self._retry_at_s = None, now_s, now_s + RETRY_AFTER_S
        if is_trial and self._has_evicted:
            self.state = RoomState.CLOSED
            return 0
        self.state = RoomState.PAUSED
        if self._grown_from is not None:
            self.capacity = min(self.capacity, max(num_kept, self._grown_from))
            self._growth_s = min(MAX_GROWTH_S, 2 * self._growth_s)
            self._grown_from, self._has_evicted = None, False
            return 0
        self.capacity, self._has_evicted = min(self.capacity, max(1, num_kept)), True
        return -(-num_kept // BATCH_SHARE)

    def check(self) -> None:
        """Assert that a trial is under way exactly in its state."""
        assert (self._trial is not None) == (self.state is RoomState.TRYING) and 0 <= self.capacity <= self._num_wished
        assert self._grown_from is None or self._grown_from < self.capacity
        assert self._grown_from is None or self.state is RoomState.OPEN
