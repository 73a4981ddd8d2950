"""What each slot of host memory holds, and who uses it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from scheduler.request import BlockHash
from scheduler.retention import NUM_PRIORITIES, PriorityLru, RetentionOrder

DECAY_POOLS = 4
"""A priority protects a block until so many times the tier's size was evicted since its last use."""


class HostState(enum.Enum):
    FREE = "free"  # holds nothing
    RESERVED = "reserved"  # a block is being read from disk into it
    STORING = "storing"  # a block is being copied from the device into it
    READY = "ready"  # holds a block that nobody uses
    LOADING = "loading"  # holds a block that is being copied out of it, to the device or to disk
    EVICTING = "evicting"  # its block is being forgotten; within a call only
    LOST = "lost"  # its block is not to be trusted; somebody still copies out of it


class InvalidSlotTransition(RuntimeError):
    """A slot was moved between two states that no edge joins. Always a bug of ours."""


_NEXT: dict[HostState, frozenset[HostState]] = {
    HostState.FREE: frozenset({HostState.RESERVED, HostState.STORING}),
    HostState.RESERVED: frozenset({HostState.READY, HostState.FREE}),
    HostState.STORING: frozenset({HostState.READY, HostState.FREE}),
    HostState.READY: frozenset({HostState.LOADING, HostState.EVICTING}),
    HostState.LOADING: frozenset({HostState.READY, HostState.LOST}),
    HostState.EVICTING: frozenset({HostState.FREE}),
    HostState.LOST: frozenset({HostState.FREE}),
}


@dataclasses.dataclass(slots=True, eq=False)
class HostBlock:
    """A block that has a slot."""

    slot: int
    priority: int
    position: int
    """How many blocks of its prefix come before it."""
    state: HostState = HostState.FREE
    num_uses: int = 0
    """Since it came."""
    num_loads: int = 0
    """Copies to the device under way."""
    is_written: bool = False
    """A copy to disk is under way."""
    is_on_disk: bool = False
    """And need not be kept as much as one that is not."""

    @property
    def rank(self) -> int:
        """In the retention order: within a priority a block that is on disk as well goes first."""
        return 2 * self.priority + (not self.is_on_disk)

    @property
    def is_readable(self) -> bool:
        return self.state is HostState.READY or self.state is HostState.LOADING

    @property
    def is_held(self) -> bool:
        return self.num_loads > 0 or self.is_written


class HostDirectory:
    """Owns every host slot. A slot is free, or belongs to one hash until nobody copies into or out of it."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._blocks: dict[BlockHash, HostBlock] = {}
        self._free = list(range(num_slots - 1, -1, -1))  # the last goes out first
        self._order: RetentionOrder = PriorityLru(2 * NUM_PRIORITIES, max(1, num_slots * DECAY_POOLS // 2))
        """Exactly the READY ones."""
        self._num_readable = 0

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._free)

    @property
    def num_readable(self) -> int:
        return self._num_readable

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    def get(self, block_hash: BlockHash) -> HostBlock | None:
        """The block if it has a slot, in whatever state."""
        return self._blocks.get(block_hash)

    def items(self) -> Iterable[tuple[BlockHash, HostBlock]]:
        """All that have a slot."""
        return self._blocks.items()

    def block(self, block_hash: BlockHash) -> HostBlock:
        """The block that has a slot.

        Raises:
            ValueError: it has none.
        """
        block = self._blocks.get(block_hash)
        if block is None:
            raise ValueError(f"block {block_hash.hex()} has no slot in host memory")
        return block

    def evict(self) -> BlockHash | None:
        """Forget the block that goes first, so that a slot is free. None: every block is in use."""
        victim = self._order.take_victim()
        if victim is not None:
            block = self._blocks[victim]
            _move(block, HostState.EVICTING)
            self._num_readable -= 1
            self._free_slot(victim, block)
        return victim

    def reserve(self, block_hash: BlockHash, priority: int, position: int, state: HostState, is_on_disk: bool) -> int:
        """Give a block a free slot, into which it is copied from the device (STORING) or from disk (RESERVED)."""
        assert block_hash not in self._blocks
        block = HostBlock(self._free.pop(), priority, position, is_on_disk=is_on_disk)
        _move(block, state)
        self._blocks[block_hash] = block
        return block.slot

    def settle(self, block_hash: BlockHash) -> None:
        """The block has arrived in its slot."""
        block = self.block(block_hash)
        _move(block, HostState.READY)
        self._num_readable += 1
        self._order.add(block_hash, block.rank)

    def drop(self, block_hash: BlockHash) -> None:
        """The block did not arrive."""
        self._free_slot(block_hash, self.block(block_hash))

    def hold(self, block_hash: BlockHash, is_write: bool) -> HostBlock:
        """A copy out of the slot begins; the block may not go while it lasts."""
        block = self.block(block_hash)
        if not block.is_held:
            _move(block, HostState.LOADING)
            self._order.remove(block_hash)
        elif not block.is_readable:
            raise InvalidSlotTransition(f"block {block_hash.hex()} is {block.state.value}, nothing can be read of it")
        if is_write:
            block.is_written = True
        else:
            block.num_loads += 1
        return block

    def release(self, block_hash: BlockHash, is_write: bool) -> None:
        """A copy out of the slot has ended. The last of them makes the block one that may go, or a lost one gone."""
        block = self.block(block_hash)
        if is_write:
            block.is_written = False
        else:
            block.num_loads -= 1
        if block.is_held:
            return
        if block.state is HostState.LOST:
            self._free_slot(block_hash, block)
        else:
            _move(block, HostState.READY)
            self._order.add(block_hash, block.rank)

    def lose(self, block_hash: BlockHash) -> None:
        """What the slot holds is not to be trusted. Somebody holds it still."""
        block = self.block(block_hash)
        if block.state is not HostState.LOST:
            _move(block, HostState.LOST)
            self._num_readable -= 1

    def touch(self, block: HostBlock, block_hash: BlockHash, priority: int) -> None:
        """The block was used; its priority may rise and never falls."""
        block.num_uses += 1
        block.priority = max(block.priority, priority)
        if block.state is HostState.READY:
            self._order.touch(block_hash, block.rank)

    def set_on_disk(self, block_hash: BlockHash, is_on_disk: bool) -> None:
        """Whether there is a copy on disk; for the order of retention a change counts as a use."""
        block = self._blocks.get(block_hash)
        if block is not None and block.is_on_disk != is_on_disk:
            block.is_on_disk = is_on_disk
            if block.state is HostState.READY:
                self._order.touch(block_hash, block.rank)

    def _free_slot(self, block_hash: BlockHash, block: HostBlock) -> None:
        _move(block, HostState.FREE)
        del self._blocks[block_hash]
        self._free.append(block.slot)

    def check(self) -> None:
        """Assert that every slot is in one place and every state agrees with who uses it."""
        self._order.check()
        used = [block.slot for block in self._blocks.values()]
        assert sorted([*used, *self._free]) == list(range(self.num_slots)), "a slot is lost or doubled"
        for block_hash, block in self._blocks.items():
            assert block.state not in (HostState.FREE, HostState.EVICTING), "a state that lasts no longer than a call"
            assert block.num_loads >= 0 and block.is_held == (block.state in (HostState.LOADING, HostState.LOST))
            assert (block_hash in self._order) == (block.state is HostState.READY)
        assert self._num_readable == sum(block.is_readable for block in self._blocks.values())
        assert len(self._order) <= self._num_readable


def _move(block: HostBlock, state: HostState) -> None:
    """Change the state.

    Raises:
        InvalidSlotTransition: no edge joins the two.
    """
    if state not in _NEXT[block.state]:
        raise InvalidSlotTransition(f"host slot {block.slot} cannot go from {block.state.value} to {state.value}")
    block.state = state
