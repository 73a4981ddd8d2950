"""Reference counts of the device's KV blocks, the map from hashes to blocks, and the order in which free ones go out.

A block is used (one or more references) or free; a free block may still hold a prefix, and is then *cached*: a hit
revives it. Free blocks without a prefix go out first, lowest id first (the border of the arena is at the high ids);
cached ones go out last, the longest unused first.

Where weights are streamed, the border of the arena moves: blocks at or beyond `limit` are not handed out, and are out
of the pool as soon as nobody uses them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable

from scheduler.request import BlockHash


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free. Whoever may run short asks `num_free_blocks` first."""


class BlockPool:
    """Owns every device block. Its reference count is the only truth about who uses one.

    A request's table, a step in flight and a transfer's lease each count as one reference.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}, it must be at least 1")
        self.num_blocks = num_blocks
        """All that there may ever be."""
        self.limit = num_blocks
        """Ids below it may be handed out now."""
        self._num_references = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self._free = list(range(num_blocks))  # a heap
        self._free_cached: OrderedDict[int, None] = OrderedDict()  # longest unused first
        self._beyond: set[int] = set()  # free ones at or beyond the limit
        self.on_forget: Callable[[BlockHash], None] = _ignore
        """Told each content that can be found here no longer."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `allocate` can hand out, cached ones included."""
        return len(self._free) + len(self._free_cached)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks - len(self._beyond)

    @property
    def num_used_beyond(self) -> int:
        """Blocks at or beyond the limit that somebody still uses."""
        return self.num_blocks - self.limit - len(self._beyond)

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that still hold a prefix."""
        return len(self._free_cached)

    def num_references(self, block_id: int) -> int:
        return self._num_references[block_id]

    def set_limit(self, num_blocks: int) -> None:
        """Hand out only ids below `num_blocks` from now on. What free blocks beyond it hold is forgotten at once.

        Raises:
            ValueError: it is not in 1..the number of blocks.
        """
        if not 1 <= num_blocks <= self.num_blocks:
            raise ValueError(f"the limit is {num_blocks} blocks, it must lie in 1..{self.num_blocks}")
        if num_blocks < self.limit:
            for block_id in [b for b in self._free_cached if b >= num_blocks]:
                del self._free_cached[block_id]
                self._forget(block_id)
                self._beyond.add(block_id)
            self._beyond.update(b for b in self._free if b >= num_blocks)
            self._free = [b for b in self._free if b < num_blocks]
            heapq.heapify(self._free)
        else:
            for block_id in [b for b in self._beyond if b < num_blocks]:
                self._beyond.remove(block_id)
                heapq.heappush(self._free, block_id)
        self.limit = num_blocks

    def allocate(self, num_blocks: int) -> list[int]:
        """Take free blocks, one reference each. What they held is forgotten.

        Raises:
            OutOfBlocks: fewer are free; nothing was taken.
        """
        if num_blocks > self.num_free_blocks:
            raise OutOfBlocks(f"{num_blocks} blocks are asked for, {self.num_free_blocks} are free")
        return [self._take() for _ in range(num_blocks)]

    def _take(self) -> int:
        if self._free:
            block_id = heapq.heappop(self._free)
        else:
            block_id, _ = self._free_cached.popitem(last=False)
            self._forget(block_id)
        self._num_references[block_id] = 1
        return block_id

    def _forget(self, block_id: int) -> None:
        """What a registered block holds is no longer findable."""
        block_hash = self._hash_of[block_id]
        assert block_hash is not None
        del self._block_of[block_hash]
        self._hash_of[block_id] = None
        self.on_forget(block_hash)

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each; a free cached block is revived.

        Raises:
            ValueError: a block is free and holds no prefix: nobody could have known of it.
        """
        for block_id in block_ids:
            if self._num_references[block_id] == 0:
                if block_id not in self._free_cached:
                    raise ValueError(f"block {block_id} is free and not cached, it cannot be shared")
                del self._free_cached[block_id]
            self._num_references[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference of each; the first to become free is the first to be handed out again.

        Raises:
            ValueError: a block has no reference.
        """
        for block_id in block_ids:
            if self._num_references[block_id] == 0:
                raise ValueError(f"block {block_id} is free, it cannot be released")
            self._num_references[block_id] -= 1
            if self._num_references[block_id] == 0:
                if block_id >= self.limit:
                    if self._hash_of[block_id] is not None:
                        self._forget(block_id)
                    self._beyond.add(block_id)
                elif self._hash_of[block_id] is None:
                    heapq.heappush(self._free, block_id)
                else:
                    self._free_cached[block_id] = None

    def register(self, block_id: int, block_hash: BlockHash) -> bool:
        """Make a full block findable. False: another block holds the same content already, and stays the one.

        Raises:
            ValueError: the block is free, or registered under another hash.
        """
        if self._num_references[block_id] == 0:
            raise ValueError(f"block {block_id} is free, it cannot be registered")
        if self._hash_of[block_id] not in (None, block_hash):
            raise ValueError(f"block {block_id} is registered under another hash")
        if self._block_of.setdefault(block_hash, block_id) != block_id:
            return False
        self._hash_of[block_id] = block_hash
        return True

    def lookup(self, block_hash: BlockHash) -> int | None:
        """The block with that content, used or free; takes no reference."""
        return self._block_of.get(block_hash)

    def check(self) -> None:
        """Assert that every block is in exactly one place and every map agrees."""
        free = [b for b in range(self.num_blocks) if self._num_references[b] == 0]
        assert sorted([*self._free, *self._free_cached, *self._beyond]) == free, (
            "a free block is lost, doubled or still used"
        )
        assert all(count >= 0 for count in self._num_references)
        assert all(b < self.limit for b in (*self._free, *self._free_cached)), "a block beyond the limit may go out"
        assert all(b >= self.limit for b in self._beyond), "a block below the limit is held back"
        assert all(self._hash_of[b] is None for b in (*self._free, *self._beyond)), (
            "a cached block is in the wrong list"
        )
        hashed = {b: h for b, h in enumerate(self._hash_of) if h is not None}
        assert self._block_of == {h: b for b, h in hashed.items()}, "hashes and blocks disagree"
        assert len(self._block_of) == len(hashed), "two blocks are registered under one hash"
        assert all(b in hashed for b in self._free_cached), "a free block without a prefix counts as cached"


def _ignore(block_hash: BlockHash) -> None:
    """Nobody listens."""


class ReleasePreview:
    """What would become free if references were dropped. Changes nothing."""

    def __init__(self, pool: BlockPool, keep: Collection[int] = ()) -> None:
        self._pool = pool
        self._keep = frozenset(keep)
        self._num_dropped: dict[int, int] = {}

    def drop(self, block_ids: Iterable[int]) -> int:
        """Blocks that can be handed out once these references are gone, besides those in `keep`."""
        num_freed = 0
        for block_id in block_ids:
            dropped = self._num_dropped.get(block_id, 0) + 1
            self._num_dropped[block_id] = dropped
            is_freed = dropped == self._pool.num_references(block_id) and block_id < self._pool.limit
            if is_freed and block_id not in self._keep:
                num_freed += 1
        return num_freed
