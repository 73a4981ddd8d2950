"""Which blocks the disk holds, which are on their way there, and which are on their way out."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Iterable, Sequence

from scheduler.disk_room import DiskRoom
from scheduler.host_directory import DECAY_POOLS
from scheduler.request import BlockHash
from scheduler.retention import NUM_PRIORITIES, PROMPT_PRIORITY, PriorityLru, RetentionOrder

MAX_ENTRY_FAILURES = 2
"""Reads of one entry in a row that fail before it is given up."""
REST_S = 30.0
"""How long an entry is left alone after a failed read or deletion."""
MAX_DELETIONS = 64
"""Begun in one call."""


class DiskState(enum.Enum):
    WRITING = "writing"  # on its way there
    READY = "ready"  # readable
    READING = "reading"  # being read; may not go
    DUE = "due"  # not readable any more, its file is to be deleted
    DELETING = "deleting"
    GONE = "gone"  # takes no room


class InvalidDiskTransition(RuntimeError):
    """An entry of the disk was moved between two states that no edge joins. Always a bug of ours."""


_NEXT: dict[DiskState, frozenset[DiskState]] = {
    DiskState.WRITING: frozenset({DiskState.READY, DiskState.DUE, DiskState.GONE}),
    DiskState.READY: frozenset({DiskState.READING, DiskState.DUE}),
    DiskState.READING: frozenset({DiskState.READY, DiskState.DUE, DiskState.GONE}),
    DiskState.DUE: frozenset({DiskState.DELETING}),
    DiskState.DELETING: frozenset({DiskState.DUE, DiskState.GONE}),
    DiskState.GONE: frozenset(),
}


@dataclasses.dataclass(slots=True, eq=False)
class DiskBlock:
    """A block that takes room on the disk."""

    priority: int
    state: DiskState
    num_failures: int = 0
    """Reads in a row that failed."""
    rests_until_s: float = 0.0
    """Neither read nor deleted before."""


class DiskDirectory:
    """Owns the room on the disk, in blocks. An entry takes its room until its file is gone."""

    def __init__(self, num_blocks: int, hashes: Sequence[BlockHash]) -> None:
        self.room = DiskRoom(num_blocks)
        self._blocks: dict[BlockHash, DiskBlock] = {}
        self._now_s = 0.0
        self._due: deque[BlockHash] = deque()
        self._stuck: deque[BlockHash] = deque()  # due, but a deletion failed; the first to be tried again first
        self._num_deleting = 0
        self._num_readable = 0
        self._order: RetentionOrder = PriorityLru(NUM_PRIORITIES, max(1, num_blocks * DECAY_POOLS))
        """Exactly the READY ones."""
        for block_hash in hashes:
            if block_hash in self._blocks:
                raise ValueError(f"block {block_hash.hex()} is twice among those that the disk holds")
            self._blocks[block_hash] = DiskBlock(PROMPT_PRIORITY, DiskState.READY)
            self._num_readable += 1
            self._order.add(block_hash, PROMPT_PRIORITY)
        for _ in range(len(hashes) - num_blocks):
            self.evict()

    @property
    def num_readable(self) -> int:
        return self._num_readable

    @property
    def num_free(self) -> int:
        """Blocks that may be written now, as far as room goes."""
        return max(0, self.room.capacity - len(self._blocks))

    @property
    def num_going(self) -> int:
        """Blocks whose room will be free soon: without those whose file could not be deleted."""
        return len(self._due) + self._num_deleting

    @property
    def num_free_soon(self) -> int:
        """Blocks that may be written once what goes is gone; negative where more must go."""
        return self.room.capacity - len(self._blocks) + self.num_going

    @property
    def num_due(self) -> int:
        """Deletions that may begin."""
        return len(self._due)

    def observe(self, now_s: float) -> None:
        """Time has passed: deletions that failed long ago are due again."""
        self._now_s = max(self._now_s, now_s)
        while self._stuck and self._now_s >= self._blocks[self._stuck[0]].rests_until_s:
            self._due.append(self._stuck.popleft())

    def get(self, block_hash: BlockHash) -> DiskBlock | None:
        """The block if it takes room, in whatever state."""
        return self._blocks.get(block_hash)

    def items(self) -> Iterable[tuple[BlockHash, DiskBlock]]:
        """All that take room."""
        return self._blocks.items()

    def block(self, block_hash: BlockHash, state: DiskState) -> DiskBlock:
        """The block, in the state in which it must be.

        Raises:
            InvalidDiskTransition: it is unknown or in another state.
        """
        block = self._blocks.get(block_hash)
        if block is None or block.state is not state:
            found = "not on disk" if block is None else block.state.value
            raise InvalidDiskTransition(f"block {block_hash.hex()} is {found}, it must be {state.value}")
        return block

    def is_readable(self, block_hash: BlockHash) -> bool:
        """Whether a read may begin."""
        block = self._blocks.get(block_hash)
        return block is not None and block.state is DiskState.READY and self._now_s >= block.rests_until_s

    def touch(self, block: DiskBlock, block_hash: BlockHash, priority: int) -> None:
        """The block was used, wherever it was found; its priority may rise and never falls."""
        block.priority = max(block.priority, priority)
        if block.state is DiskState.READY:
            self._order.touch(block_hash, block.priority)

    def begin_read(self, block_hash: BlockHash) -> DiskBlock:
        block = self.block(block_hash, DiskState.READY)
        self._order.remove(block_hash)
        self._move(block_hash, block, DiskState.READING)
        return block

    def end_read(self, block_hash: BlockHash) -> None:
        """It was read, and stays."""
        block = self.block(block_hash, DiskState.READING)
        block.num_failures = 0
        self._settle(block_hash, block)

    def fail_read(self, block_hash: BlockHash) -> None:
        """It could not be read: left alone for a while the first time, given up the second."""
        block = self.block(block_hash, DiskState.READING)
        block.num_failures += 1
        if block.num_failures >= MAX_ENTRY_FAILURES:
            self._condemn(block_hash, block)
        else:
            block.rests_until_s = self._now_s + REST_S
            self._settle(block_hash, block)

    def condemn(self, block_hash: BlockHash, state: DiskState) -> None:
        """What its file holds is wrong: it is to be deleted. `state` is the one it is in."""
        self._condemn(block_hash, self.block(block_hash, state))

    def forget(self, block_hash: BlockHash, state: DiskState) -> None:
        """There is no file of it. `state` is the one it is in."""
        self._move(block_hash, self.block(block_hash, state), DiskState.GONE)

    def begin_write(self, block_hash: BlockHash, priority: int) -> None:
        assert block_hash not in self._blocks and self.num_free > 0
        self._blocks[block_hash] = DiskBlock(priority, DiskState.WRITING)

    def end_write(self, block_hash: BlockHash) -> None:
        """It is there."""
        self._settle(block_hash, self.block(block_hash, DiskState.WRITING))

    def evict(self) -> BlockHash | None:
        """The block that goes first is to be deleted. None: every one is in use, or going already."""
        victim = self._order.take_victim()
        if victim is not None:
            self._condemn(victim, self._blocks[victim])
        return victim

    def take_deletions(self, max_blocks: int) -> tuple[BlockHash, ...]:
        """Begin deletions that are due, the first that became so first."""
        hashes = tuple(self._due.popleft() for _ in range(min(max_blocks, len(self._due))))
        for block_hash in hashes:
            self._move(block_hash, self._blocks[block_hash], DiskState.DELETING)
            self._num_deleting += 1
        return hashes

    def end_delete(self, block_hash: BlockHash, is_gone: bool) -> None:
        """The file is gone, or it could not be deleted: it keeps its room, and is tried again after a while."""
        block = self.block(block_hash, DiskState.DELETING)
        self._num_deleting -= 1
        if is_gone:
            self._move(block_hash, block, DiskState.GONE)
        else:
            self._move(block_hash, block, DiskState.DUE)
            block.rests_until_s = self._now_s + REST_S
            self._stuck.append(block_hash)

    def _settle(self, block_hash: BlockHash, block: DiskBlock) -> None:
        self._move(block_hash, block, DiskState.READY)
        self._order.add(block_hash, block.priority)

    def _condemn(self, block_hash: BlockHash, block: DiskBlock) -> None:
        self._move(block_hash, block, DiskState.DUE)
        self._due.append(block_hash)

    def _move(self, block_hash: BlockHash, block: DiskBlock, state: DiskState) -> None:
        if state not in _NEXT[block.state]:
            raise InvalidDiskTransition(f"block {block_hash.hex()} cannot go from {block.state.value} to {state.value}")
        self._num_readable += _is_readable(state) - _is_readable(block.state)
        block.state = state
        if state is DiskState.GONE:
            del self._blocks[block_hash]

    def check(self) -> None:
        """Assert that every entry is in one place and every count agrees."""
        self._order.check()
        self.room.check()
        states = {block_hash: block.state for block_hash, block in self._blocks.items()}
        assert sorted([*self._due, *self._stuck]) == sorted(h for h, state in states.items() if state is DiskState.DUE)
        assert self._num_deleting == sum(state is DiskState.DELETING for state in states.values())
        assert self._num_readable == sum(map(_is_readable, states.values()))
        for block_hash, state in states.items():
            assert state is not DiskState.GONE
            assert (block_hash in self._order) == (state is DiskState.READY)
        assert len(self._order) == sum(state is DiskState.READY for state in states.values())


def _is_readable(state: DiskState) -> bool:
    return state is DiskState.READY or state is DiskState.READING
