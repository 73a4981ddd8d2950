"""Which block a full tier forgets: the longest unused of the lowest rank, and no rank protects for ever."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from scheduler.request import BlockHash

OUTPUT_PRIORITY = 0
"""Blocks of sampled tokens: only the same conversation comes back to them."""
PROMPT_PRIORITY = 1
KEYED_PRIORITY = 2
"""Blocks of a prompt whose client named a cache key: it says that it will come back."""
NUM_PRIORITIES = 3


def check_priority(priority: int) -> int:
    """The priority as it is.

    Raises:
        ValueError: there is no such priority.
    """
    if not 0 <= priority < NUM_PRIORITIES:
        raise ValueError(f"the priority is {priority}, it must lie in 0..{NUM_PRIORITIES - 1}")
    return priority


class RetentionOrder(Protocol):
    """The blocks that may go, in the order in which they would. Blocks in use are taken out while they are."""

    def add(self, block_hash: BlockHash, rank: int) -> None: ...

    def touch(self, block_hash: BlockHash, rank: int) -> None: ...

    def remove(self, block_hash: BlockHash) -> None: ...

    def take_victim(self) -> BlockHash | None: ...

    def __contains__(self, block_hash: BlockHash) -> bool: ...

    def __len__(self) -> int: ...

    def check(self) -> None: ...


class PriorityLru:
    """LRU within a rank, lowest rank first, with aging.

    A block of rank r goes as if it had been used r x `decay` evictions later than it was. So among blocks used within
    the last `decay` evictions the lowest rank goes first, and a block of the highest rank that nobody uses goes after
    at most (num_ranks - 1) x `decay` evictions more than one of the lowest. This is GreedyDual's aging (Young 1994)
    with the ranks as costs. Every call is O(1) in the blocks and O(num_ranks).
    """

    def __init__(self, num_ranks: int, decay: int) -> None:
        if num_ranks < 1 or decay < 1:
            raise ValueError(f"there are {num_ranks} ranks and a decay of {decay} evictions; both must be at least 1")
        self._decay = decay
        self._num_evictions = 0
        self._used_at: tuple[OrderedDict[BlockHash, int], ...] = tuple(OrderedDict() for _ in range(num_ranks))
        """Of each rank: block to the number of evictions at its last use, the longest unused first."""
        self._rank: dict[BlockHash, int] = {}

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._rank

    def __len__(self) -> int:
        return len(self._rank)

    def add(self, block_hash: BlockHash, rank: int) -> None:
        """It may go from now on, and was used just now.

        Raises:
            ValueError: it is there already.
        """
        if block_hash in self._rank:
            raise ValueError(f"block {block_hash.hex()} is in the order already")
        self._rank[block_hash] = rank
        self._used_at[rank][block_hash] = self._num_evictions

    def touch(self, block_hash: BlockHash, rank: int) -> None:
        """It was used, and has this rank now."""
        if self._rank[block_hash] == rank:
            used_at = self._used_at[rank]
            used_at[block_hash] = self._num_evictions
            used_at.move_to_end(block_hash)
        else:
            self.remove(block_hash)
            self.add(block_hash, rank)

    def remove(self, block_hash: BlockHash) -> None:
        """It may not go any more.

        Raises:
            KeyError: it is not there.
        """
        del self._used_at[self._rank.pop(block_hash)][block_hash]

    def take_victim(self) -> BlockHash | None:
        """Remove the one that goes first; None: there is none."""
        victim: BlockHash | None = None
        lowest = 0
        for rank, used_at in enumerate(self._used_at):
            if used_at:
                block_hash = next(iter(used_at))
                worth = used_at[block_hash] + rank * self._decay
                if victim is None or worth < lowest:
                    victim, lowest = block_hash, worth
        if victim is not None:
            self.remove(victim)
            self._num_evictions += 1
        return victim

    def check(self) -> None:
        """Assert that every block has one place, and every rank its order."""
        places = {block_hash: rank for rank, used_at in enumerate(self._used_at) for block_hash in used_at}
        assert places == self._rank and sum(map(len, self._used_at)) == len(places), "a block is lost or doubled"
        for used_at in self._used_at:
            times = list(used_at.values())
            assert times == sorted(times) and all(0 <= time <= self._num_evictions for time in times)
