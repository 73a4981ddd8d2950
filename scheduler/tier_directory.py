"""Where the blocks beside the device's are: in host memory and on disk, by the hash of their content.

Pure state: it names slots and blocks, and others move bytes. It changes only in `schedule` and `update`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence

from scheduler.disk_directory import MAX_DELETIONS, DiskDirectory, DiskState
from scheduler.host_directory import HostDirectory, HostState
from scheduler.kv_transfer import BlockOutcome, Tier, TierConfig, TransferKind
from scheduler.request import BlockHash
from scheduler.retention import check_priority
from scheduler.tier_breaker import TierBreaker
from scheduler.write_queue import WriteQueue


class Presence(enum.Enum):
    """Where a block can be had from now."""

    ABSENT = "absent"
    HOST = "host"  # a load may begin
    COMING = "coming"  # being read from disk; a load may begin afterwards
    DISK = "disk"  # a read may begin


class TierCounters:
    """What has happened since the start; only ever rising."""

    __slots__ = ("evictions", "failures", "num_vanished")

    def __init__(self) -> None:
        self.evictions: Counter[Tier] = Counter()
        """Blocks that went for others, HOST or DISK."""
        self.failures: Counter[tuple[Tier, BlockOutcome]] = Counter()
        """Copies of blocks that did not end with DONE. Stores and loads count for the host, the others for the disk."""
        self.num_vanished = 0
        """Evictions from host memory of blocks that were not on disk."""


class TierDirectory:
    """Host slots and disk entries of blocks, their order of retention, and the breakers of both tiers.

    Every operation that begins holds its slot and its disk entry until the one call that ends it. Every call is O(1),
    or O(blocks named in it).
    """

    def __init__(self, config: TierConfig) -> None:
        if config.disk_hashes and not config.num_disk_blocks:
            raise ValueError(f"{len(config.disk_hashes)} blocks are said to be on disk, and there is no disk tier")
        self._host = HostDirectory(config.num_host_slots)
        self._disk = DiskDirectory(config.num_disk_blocks, config.disk_hashes)
        self._queue = WriteQueue()
        self._host_breaker = TierBreaker()
        self._disk_breaker = TierBreaker()
        self._has_disk = config.num_disk_blocks > 0
        self._now_s = 0.0
        self.counters = TierCounters()
        """For reading."""

    @property
    def num_host_used(self) -> int:
        """Slots that hold a block or wait for one."""
        return self._host.num_used

    @property
    def num_host_ready(self) -> int:
        """Blocks in host memory that can be loaded."""
        return self._host.num_readable

    @property
    def num_disk_blocks(self) -> int:
        """Blocks that can be read from disk."""
        return self._disk.num_readable

    @property
    def disk_capacity(self) -> int:
        """Blocks for which there is room on disk, as far as is known by now."""
        return self._disk.room.capacity

    @property
    def num_unwritten(self) -> int:
        """Blocks in host memory that wait to be written to disk."""
        return len(self._queue)

    @property
    def num_deletions_due(self) -> int:
        """Blocks that `take_deletions` would begin with, once the disk is on."""
        return self._disk.num_due

    @property
    def is_host_on(self) -> bool:
        """Whether blocks are loaded from host memory: neither without slots nor while its breaker is open."""
        return self._host.num_slots > 0 and self._host_breaker.is_on

    @property
    def can_store(self) -> bool:
        """Whether a store may begin as far as the breaker goes: an open one is tried by a store and nothing else."""
        return self._host.num_slots > 0 and self._host_breaker.may_begin

    @property
    def is_disk_on(self) -> bool:
        """Whether there is a disk tier and its breaker is closed."""
        return self._has_disk and self._disk_breaker.is_on

    @property
    def is_disk_writable(self) -> bool:
        """Whether blocks are written to disk: not without one, and not once it was full twice in a row."""
        return self._disk.room.is_writable

    def observe(self, now_s: float) -> None:
        """Once a step: a tier that was off for long enough may be tried."""
        self._now_s = max(self._now_s, now_s)
        self._host_breaker.observe(now_s)
        self._disk_breaker.observe(now_s)
        self._disk.observe(now_s)

    def presence(self, block_hash: BlockHash) -> Presence:
        """Where the block can be had from. A block that is being stored, or is lost, cannot be had yet."""
        block = self._host.get(block_hash)
        if not self._host_breaker.is_on:
            return Presence.ABSENT
        if block is not None:
            if block.is_readable:
                return Presence.HOST
            return Presence.COMING if block.state is HostState.RESERVED else Presence.ABSENT
        if self._disk.is_readable(block_hash) and self._disk_breaker.may_begin:
            return Presence.DISK
        return Presence.ABSENT

    def is_known(self, block_hash: BlockHash) -> bool:
        """Whether the host has the block, or is about to: storing it again is of no use."""
        block = self._host.get(block_hash)
        return block is not None and block.state is not HostState.LOST

    def host_slot(self, block_hash: BlockHash) -> int:
        """The slot of a block that can be loaded.

        Raises:
            ValueError: it cannot.
        """
        self._require_loadable(block_hash)
        return self._host.block(block_hash).slot

    def position(self, block_hash: BlockHash) -> int:
        """How many blocks of its prefix come before one that has a slot.

        Raises:
            ValueError: it has none.
        """
        return self._host.block(block_hash).position

    def is_ready_on_disk(self, block_hash: BlockHash) -> bool:
        """Whether there is a file of it that nothing is being done with."""
        entry = self._disk.get(block_hash)
        return entry is not None and entry.state is DiskState.READY

    def touch(self, block_hashes: Sequence[BlockHash], priority: int) -> None:
        """They were used, as one prefix: its last block goes first. Unknown ones are passed over.

        Raises:
            ValueError: there is no such priority.
        """
        check_priority(priority)
        for block_hash in reversed(block_hashes):
            block = self._host.get(block_hash)
            entry = self._disk.get(block_hash)
            if entry is not None:
                self._disk.touch(entry, block_hash, priority)
            if block is not None:
                self._host.touch(block, block_hash, priority)
                self._enqueue(block_hash)

    def begin_store(self, block_hash: BlockHash, priority: int, position: int = 0) -> int | None:
        """A slot into which the block is copied from the device, the one at `position` of its prefix. None: it is known
        already, the tier is off, or every slot is in use.

        Raises:
            ValueError: there is no such priority.
        """
        check_priority(priority)
        if self._host.get(block_hash) is not None or not self._host_breaker.may_begin or not self._make_slot():
            return None
        self._host_breaker.begin(TransferKind.STORE, block_hash)
        return self._host.reserve(block_hash, priority, position, HostState.STORING, self._has_disk_copy(block_hash))

    def end_store(self, block_hash: BlockHash, outcome: BlockOutcome) -> None:
        """The store ended; anything but DONE drops the entry."""
        self._require(block_hash, HostState.STORING)
        self._end(self._host_breaker, TransferKind.STORE, block_hash, outcome)
        if outcome is BlockOutcome.DONE:
            self._host.settle(block_hash)
            self._enqueue(block_hash)
        else:
            self._host.drop(block_hash)

    def begin_load(self, block_hash: BlockHash) -> int:
        """The slot from which the block is copied to the device; several may at once.

        Raises:
            ValueError: it cannot be loaded, `presence` says so.
        """
        self._require_loadable(block_hash)
        return self._host.hold(block_hash, is_write=False).slot

    def end_load(self, block_hash: BlockHash, outcome: BlockOutcome) -> None:
        """A load ended; anything but DONE makes the block lost to all. Its copy on disk stays."""
        block = self._host.block(block_hash)
        if not block.num_loads:
            raise ValueError(f"block {block_hash.hex()} is not being loaded")
        self._end(self._host_breaker, TransferKind.LOAD, block_hash, outcome)
        if outcome is not BlockOutcome.DONE:
            self._lose(block_hash)
        self._host.release(block_hash, is_write=False)

    def begin_read(self, block_hash: BlockHash, priority: int, position: int = 0) -> int | None:
        """A slot into which the block is read from disk. None: it cannot be read now, or every slot is in use.

        The slot may come from a block that nobody holds: begin the loads of a prefix before the reads of its rest.

        Raises:
            ValueError: there is no such priority.
        """
        check_priority(priority)
        if self.presence(block_hash) is not Presence.DISK or not self._make_slot():
            return None
        self._disk_breaker.begin(TransferKind.READ, block_hash)
        entry = self._disk.begin_read(block_hash)
        entry.priority = max(entry.priority, priority)
        return self._host.reserve(block_hash, entry.priority, position, HostState.RESERVED, is_on_disk=True)

    def end_read(self, block_hash: BlockHash, outcome: BlockOutcome) -> None:
        """The read ended. DONE: the block is in both tiers. CORRUPT and ABSENT: it is in neither. Another failure
        leaves it on disk to be tried once more, after a while."""
        self._require(block_hash, HostState.RESERVED)
        self._end(self._disk_breaker, TransferKind.READ, block_hash, outcome)
        if outcome is BlockOutcome.DONE:
            self._disk.end_read(block_hash)
            self._host.settle(block_hash)
            return
        if outcome is BlockOutcome.CORRUPT:
            self._disk.condemn(block_hash, DiskState.READING)
        elif outcome is BlockOutcome.ABSENT:
            self._disk.forget(block_hash, DiskState.READING)
        else:
            self._disk.fail_read(block_hash)
        self._host.drop(block_hash)

    def next_writes(self, max_blocks: int) -> list[tuple[BlockHash, int]]:
        """Begin to write blocks to disk: which, and the slots they are in. Fewer than could be asked for where there
        is no room yet; what must go for them is then due for deletion."""
        if not (self.is_disk_writable and self._host_breaker.is_on and self._disk_breaker.may_begin):
            return []
        limit = self._disk.room.max_writes(self._disk.num_going, self._now_s)
        num_wanted = min(max_blocks, len(self._queue), max_blocks if limit is None else limit)
        if not self._disk_breaker.is_on:
            num_wanted = min(num_wanted, 1)
        if self._disk.num_free_soon < num_wanted:
            self._disk.room.grow(self._now_s)
        while self._disk.num_free_soon < num_wanted and self._evict_disk():
            pass
        return [self._begin_write() for _ in range(min(num_wanted, self._disk.num_free))]

    def end_write(self, block_hash: BlockHash, outcome: BlockOutcome) -> None:
        """The write ended. FULL makes room, lowers the capacity to what fits, and is tried once more later."""
        block = self._host.block(block_hash)
        self._disk.block(block_hash, DiskState.WRITING)
        self._end(self._disk_breaker, TransferKind.WRITE, block_hash, outcome)
        if outcome is BlockOutcome.CORRUPT:
            self._lose(block_hash)
        if outcome is not BlockOutcome.DONE:
            self._disk.forget(block_hash, DiskState.WRITING)
        elif block.state is HostState.LOST:
            # It was lost while it was copied: the file may hold what was wrong.
            self._disk.condemn(block_hash, DiskState.WRITING)
        else:
            self._disk.end_write(block_hash)
            self._host.set_on_disk(block_hash, is_on_disk=True)
        if outcome is BlockOutcome.FULL:
            self._make_room(block_hash)
        else:
            self._disk.room.end_write(block_hash, outcome is BlockOutcome.DONE)
        self._host.release(block_hash, is_write=True)
        if outcome is BlockOutcome.FULL:
            self._enqueue(block_hash)

    def take_deletions(self) -> tuple[BlockHash, ...]:
        """Begin to delete blocks from disk: at most `MAX_DELETIONS`."""
        if not self._disk_breaker.may_begin:
            return ()
        hashes = self._disk.take_deletions(MAX_DELETIONS if self._disk_breaker.is_on else 1)
        for block_hash in hashes:
            self._disk_breaker.begin(TransferKind.DELETE, block_hash)
        return hashes

    def end_delete(self, block_hash: BlockHash, outcome: BlockOutcome) -> None:
        """The deletion ended: with DONE or ABSENT the room is free. A file that stays is tried again after a while."""
        self._disk.block(block_hash, DiskState.DELETING)
        self._end(self._disk_breaker, TransferKind.DELETE, block_hash, outcome)
        self._disk.end_delete(block_hash, outcome in (BlockOutcome.DONE, BlockOutcome.ABSENT))

    def _require(self, block_hash: BlockHash, state: HostState) -> None:
        found = self._host.block(block_hash).state
        if found is not state:
            raise ValueError(f"block {block_hash.hex()} is {found.value}, it must be {state.value} to end this")

    def _require_loadable(self, block_hash: BlockHash) -> None:
        presence = self.presence(block_hash)
        if presence is not Presence.HOST:
            raise ValueError(f"block {block_hash.hex()} is {presence.value}, only one in host memory can be loaded")

    def _has_disk_copy(self, block_hash: BlockHash) -> bool:
        entry = self._disk.get(block_hash)
        return entry is not None and entry.state in (DiskState.READY, DiskState.READING)

    def _make_slot(self) -> bool:
        """Whether a slot is free, by eviction if need be."""
        if self._host.has_free:
            return True
        victim = self._host.evict()
        if victim is None:
            return False
        self._queue.discard(victim)
        self.counters.evictions[Tier.HOST] += 1
        self.counters.num_vanished += not self._has_disk_copy(victim)
        return True

    def _evict_disk(self) -> bool:
        """Whether a block on disk was there to be condemned for others."""
        victim = self._disk.evict()
        if victim is None:
            return False
        self._host.set_on_disk(victim, is_on_disk=False)
        self.counters.evictions[Tier.DISK] += 1
        return True

    def _make_room(self, block_hash: BlockHash) -> None:
        """The disk was full: evict a batch of what it does hold."""
        for _ in range(self._disk.room.fill(block_hash, self._disk.num_readable, self._now_s)):
            if not self._evict_disk():
                break

    def _enqueue(self, block_hash: BlockHash) -> None:
        """Let a block be written that the disk neither holds nor is about to forget.

        A block that was forgotten by the disk, or could not be written, waits again only once it is used again: a
        disk smaller than host memory would be written for ever otherwise.
        """
        block = self._host.get(block_hash)
        if block is not None and block.is_readable and self.is_disk_writable and self._disk.get(block_hash) is None:
            self._queue.put(block_hash, block.priority, block.num_uses)

    def _begin_write(self) -> tuple[BlockHash, int]:
        block_hash = self._queue.take()
        block = self._host.hold(block_hash, is_write=True)
        self._disk_breaker.begin(TransferKind.WRITE, block_hash)
        self._disk.begin_write(block_hash, block.priority)
        self._disk.room.begin_write(block_hash)
        return block_hash, block.slot

    def _lose(self, block_hash: BlockHash) -> None:
        self._queue.discard(block_hash)
        self._host.lose(block_hash)

    def _end(self, breaker: TierBreaker, kind: TransferKind, block_hash: BlockHash, outcome: BlockOutcome) -> None:
        breaker.end(kind, block_hash, outcome)
        if outcome is not BlockOutcome.DONE:
            tier = Tier.HOST if kind in (TransferKind.STORE, TransferKind.LOAD) else Tier.DISK
            self.counters.failures[tier, outcome] += 1

    def check(self) -> None:
        """Assert that both tiers, the queue of writes and the breakers agree."""
        for part in (self._host, self._disk, self._queue, self._host_breaker, self._disk_breaker):
            part.check()
        self._check_host()
        self._check_disk()

    def _check_host(self) -> None:
        for block_hash, block in self._host.items():
            entry = self._disk.get(block_hash)
            state = None if entry is None else entry.state
            assert block.is_on_disk == self._has_disk_copy(block_hash), "the order knows of another disk"
            assert block.is_written == (state is DiskState.WRITING), "a write without both its ends"
            assert (block.state is HostState.RESERVED) == (state is DiskState.READING), "a read without both its ends"
            if block_hash in self._queue:
                assert block.is_readable and entry is None, "a block waits to be written that cannot be"

    def _check_disk(self) -> None:
        queued = sum(block_hash in self._queue for block_hash, _ in self._host.items())
        assert queued == len(self._queue), "a block waits to be written that is not in host memory"
        for block_hash, entry in self._disk.items():
            if entry.state in (DiskState.WRITING, DiskState.READING):
                assert self._host.get(block_hash) is not None, "an entry is written or read without a slot"
