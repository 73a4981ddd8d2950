"""The transfers that wait for one direction of the link, and which slice goes next."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterator

from offload.link import TransferHandle
from offload.transfer import TransferClass

_RANK = {name: rank for rank, name in enumerate(TransferClass)}
_IDLE_KEY = (math.inf, _RANK[TransferClass.BACKGROUND], 0)
"""Of the first transfer of the last class that nobody waits for."""


class QueuedTransfer:
    """A transfer that has not ended: how much of it was handed out, and how much of that is under way."""

    __slots__ = ("error", "handle", "key", "num_in_flight", "num_taken_bytes", "submitted_s")

    def __init__(self, handle: TransferHandle, key: tuple[float, int, int], submitted_s: float) -> None:
        self.handle = handle
        self.key = key
        self.submitted_s = submitted_s
        self.num_taken_bytes = 0
        self.num_in_flight = 0
        self.error: BaseException | None = None

    def __lt__(self, other: QueuedTransfer) -> bool:
        return self.key < other.key

    @property
    def is_idle_work(self) -> bool:
        """Whether it is for when nothing else waits; sorts behind everything that is not."""
        return self.key >= _IDLE_KEY

    @property
    def is_taken_whole(self) -> bool:
        """Whether no slice of it will be handed out any more."""
        return self.error is not None or self.num_taken_bytes == self.handle.transfer.num_bytes


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Bytes [start, end) of a transfer, one copy."""

    queued: QueuedTransfer
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


class LinkQueue:
    """One direction: the order of slices.

    The transfer that must start first goes first: by deadline less the time its bytes take at the bandwidth of its
    submission; of two equally urgent ones that of the class named first (weights), then the older. The order of two
    transfers never turns, so that they do not delay each other by taking turns.

    KV is never starved: while KV and others wait, KV gets `kv_share` of the bytes at least. Credit says how far KV is
    behind that share; it is bounded, so that neither side makes up for the distant past. Background work without a
    deadline is no other: it goes when nothing else waits, so that it delays nobody by more than a slice, and what KV
    carries beside it is not held against KV.
    """

    def __init__(self) -> None:
        self._kv: list[QueuedTransfer] = []  # heaps
        self._other: list[QueuedTransfer] = []
        self._num_submitted = 0
        self._queued_bytes = dict.fromkeys(TransferClass, 0)
        self._kv_credit_bytes = 0.0

    @property
    def is_empty(self) -> bool:
        return not self._kv and not self._other

    @property
    def queued_bytes(self) -> dict[TransferClass, int]:
        """Bytes of each class that are not handed out yet."""
        return dict(self._queued_bytes)

    def push(self, handle: TransferHandle, bytes_per_s: float, now_s: float) -> QueuedTransfer:
        """Queue a transfer of at least one byte."""
        transfer = handle.transfer
        latest_start_s = transfer.deadline_s - transfer.num_bytes / bytes_per_s
        key = (latest_start_s, _RANK[transfer.transfer_class], self._num_submitted)
        queued = QueuedTransfer(handle, key, now_s)
        self._num_submitted += 1
        heapq.heappush(self._kv if transfer.transfer_class.is_kv else self._other, queued)
        self._queued_bytes[transfer.transfer_class] += transfer.num_bytes
        return queued

    def take(self, max_bytes: int, kv_share: float) -> Slice | None:
        """The next slice, of at most `max_bytes`; None if nothing waits."""
        heap = self._next_heap()
        if not heap:
            return None
        queued = heap[0]
        start = queued.num_taken_bytes
        end = min(start + max_bytes, queued.handle.transfer.num_bytes)
        if self._kv and self._other and not self._other[0].is_idle_work:
            self._charge(heap is self._kv, end - start, max_bytes, kv_share)
        queued.num_taken_bytes = end
        queued.num_in_flight += 1
        self._queued_bytes[queued.handle.transfer.transfer_class] -= end - start
        if queued.is_taken_whole:
            heapq.heappop(heap)
        return Slice(queued, start, end)

    def remove(self, queued: QueuedTransfer) -> None:
        """Hand out no more of a transfer that has failed."""
        transfer = queued.handle.transfer
        heap = self._kv if transfer.transfer_class.is_kv else self._other
        if queued in heap:
            heap.remove(queued)
            heapq.heapify(heap)
            self._queued_bytes[transfer.transfer_class] -= transfer.num_bytes - queued.num_taken_bytes

    def __iter__(self) -> Iterator[QueuedTransfer]:
        """Those of which a part waits, in no order."""
        yield from self._kv
        yield from self._other

    def check(self) -> None:
        """Assert that the bytes add up and nothing that is handed out whole still waits."""
        waiting = dict.fromkeys(TransferClass, 0)
        for queued in self:
            assert not queued.is_taken_whole, "a transfer waits that has nothing left to hand out"
            transfer = queued.handle.transfer
            waiting[transfer.transfer_class] += transfer.num_bytes - queued.num_taken_bytes
        assert waiting == self._queued_bytes, (waiting, self._queued_bytes)
        assert all(queued.handle.transfer.transfer_class.is_kv for queued in self._kv)

    def _next_heap(self) -> list[QueuedTransfer]:
        if not self._kv or not self._other:
            return self._kv or self._other
        if self._kv_credit_bytes > 0:
            return self._kv
        return min(self._kv, self._other, key=lambda heap: heap[0].key)

    def _charge(self, is_kv: bool, num_bytes: int, max_bytes: int, kv_share: float) -> None:
        change = -(1 - kv_share) * num_bytes if is_kv else kv_share * num_bytes
        self._kv_credit_bytes = min(max(self._kv_credit_bytes + change, -max_bytes), max_bytes)
