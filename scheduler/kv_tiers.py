"""Copies of KV blocks between the device and cheaper tiers: which are under way, what holds both ends, what their end
means.

A copy to or from the device is a lease: one more reference to each of its device blocks, from the step that asks for it
until its result is taken in. The directory of host and disk changes only here, within `schedule` and `update`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from scheduler.block_pool import BlockPool
from scheduler.kv_transfer import (
    NEVER_S,
    BlockOutcome,
    KVTransfer,
    Purpose,
    TierConfig,
    TransferKind,
    TransferResult,
)
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.link_quote import LinkQuote
from scheduler.request import BlockHash
from scheduler.tier_directory import Presence, TierDirectory
from scheduler.tier_use import TierUse
from scheduler.write_behind import WriteBehind

MAX_BACKGROUND_STORES = 2
"""Write-behind transfers at a time: one on the wire, one to follow."""
MAX_STORED_BLOCKS = 16
"""In one of them."""
STORE_S = 0.02
"""And what it may keep the link busy for: whoever needs its blocks waits no longer."""
MAX_WRITES = 2
MAX_WRITTEN_BLOCKS = 8
READ_BLOCKS = 16
"""In one transfer from the disk."""


@dataclasses.dataclass(frozen=True, slots=True)
class ComingBlock:
    """A device block whose content is on its way."""

    block_id: int
    transfer_id: int


class KVTiers:
    """Owns the directory and the leases. Without host slots nothing ever moves."""

    def __init__(self, config: TierConfig, pool: BlockPool) -> None:
        self.config = config
        self.is_on = config.has_host
        """Whether there is anything beside the device."""
        self._pool = pool
        self.directory = TierDirectory(config)
        self.use = TierUse()
        self._under_way: dict[int, KVTransfer] = {}
        self._outgoing: list[KVTransfer] = []
        """Since the last step was sealed."""
        self._coming: dict[BlockHash, ComingBlock] = {}
        self._reads: dict[BlockHash, int] = {}
        """Blocks that come from the disk: by which transfer."""
        self._ready_s: dict[int, float] = {}
        """When loads under way are expected to have arrived."""
        self._write_behind = WriteBehind()
        self._num_background = dict.fromkeys((TransferKind.STORE, TransferKind.WRITE), 0)
        self._next_id = 0
        self._is_settled = False
        """The last step found nothing to copy in the background, and nothing has changed since."""
        self._now_s = 0.0
        self.quote = LinkQuote(NO_LINK, config.block_bytes)
        pool.on_forget = self._write_behind.drop

    def observe(self, link: LinkSnapshot, now_s: float) -> None:
        """At the start of a step."""
        if self.is_on:
            self._now_s = now_s
            self.quote = LinkQuote(link, self.config.block_bytes)
            self.directory.observe(now_s)

    # Looking.

    def coming(self, block_hash: BlockHash) -> ComingBlock | None:
        """The device block that this content is being loaded into."""
        return self._coming.get(block_hash)

    def is_on_host(self, block_hash: BlockHash) -> bool:
        """Whether it can be loaded now."""
        return self.directory.presence(block_hash) is Presence.HOST

    def load_ids(self, block_hashes: Iterable[BlockHash]) -> set[int]:
        """Loads under way that bring some of these."""
        return {coming.transfer_id for block_hash in block_hashes if (coming := self._coming.get(block_hash))}

    def wait_s(self, load_ids: Iterable[int]) -> float:
        """Seconds until these loads are expected to have arrived; one that is overdue may take as long again."""
        return max(abs(self._ready_s[load_id] - self._now_s) for load_id in load_ids)

    @property
    def num_load_parts(self) -> int:
        return self.config.num_load_parts

    # Asking for copies.

    def became_full(self, block_hash: BlockHash, priority: int, position: int) -> None:
        """A block was registered on the device, of which there are `position` before it in its prefix: save it when
        there is time."""
        if self.is_on and not self.directory.is_known(block_hash):
            self._write_behind.add(block_hash, priority, position)
            self._is_settled = False

    def used(self, block_hashes: Sequence[BlockHash], priority: int) -> None:
        """A request found this prefix."""
        if self.is_on:
            self.directory.touch(block_hashes, priority)
            for block_hash in block_hashes:
                self._write_behind.used(block_hash)

    def given_back(self, block_hashes: Sequence[BlockHash]) -> None:
        """A request used this prefix until now: files of it on the disk are to look used, for the next server."""
        directory = self.directory
        if not directory.is_disk_on:
            return
        found = [(each, position) for position, each in enumerate(block_hashes) if directory.is_ready_on_disk(each)]
        if found:
            hashes, positions = zip(*found, strict=True)
            self._issue(TransferKind.TOUCH, Purpose.BACKGROUND, hashes, positions=positions)
            self._is_settled = False

    def load(self, block_hashes: Sequence[BlockHash], block_ids: Sequence[int], deadline_s: float) -> int:
        """Fill device blocks from the host; the transfer's id. All of them can be loaded now."""
        slots = [self.directory.begin_load(block_hash) for block_hash in block_hashes]
        self._pool.acquire(block_ids)
        ready_s = self._now_s + self.quote.load_s(len(slots))
        self.quote.reserve_load(len(slots))
        transfer = self._issue(
            TransferKind.LOAD, Purpose.ADMITTED, block_hashes, slots, block_ids=block_ids, deadline_s=deadline_s
        )
        self._ready_s[transfer.transfer_id] = ready_s
        for block_hash, block_id in zip(block_hashes, block_ids, strict=True):
            self._coming[block_hash] = ComingBlock(block_id, transfer.transfer_id)
        self.use.num_loads += 1
        return transfer.transfer_id

    def store(self, blocks: Sequence[tuple[BlockHash, int, int, int]], purpose: Purpose) -> int:
        """Copy device blocks to the host, the first ones first; how many of them.

        Args:
            blocks: hash, block id, priority and position of each. Those that the host knows are passed over; where it
                has no place, the rest is left.
        """
        stored: list[tuple[BlockHash, int, int]] = []
        for block_hash, block_id, priority, position in blocks:
            slot = self.directory.begin_store(block_hash, priority, position)
            if slot is not None:
                self._write_behind.drop(block_hash)
                stored.append((block_hash, block_id, slot))
            elif not self.directory.is_known(block_hash):
                break
        if stored:
            hashes, block_ids, slots = zip(*stored, strict=True)
            self._pool.acquire(block_ids)
            self.quote.reserve_store(len(stored))
            self._issue(TransferKind.STORE, purpose, hashes, slots, block_ids=block_ids)
        return len(stored)

    def read(self, blocks: Sequence[tuple[BlockHash, int]], priority: int) -> set[int]:
        """Bring these from the disk to the host, as far as there is room; the transfers that do.

        Args:
            blocks: hash and position of each.
        """
        ids = {self._reads[block_hash] for block_hash, _ in blocks if block_hash in self._reads}
        begun: list[tuple[BlockHash, int]] = []
        for block_hash, position in blocks:
            if self.directory.presence(block_hash) is Presence.DISK:
                slot = self.directory.begin_read(block_hash, priority, position)
                if slot is None:
                    break
                begun.append((block_hash, slot))
        for first in range(0, len(begun), READ_BLOCKS):
            hashes, slots = zip(*begun[first : first + READ_BLOCKS], strict=True)
            transfer = self._issue(TransferKind.READ, Purpose.WAITING, hashes, slots)
            ids.add(transfer.transfer_id)
            self._reads.update(dict.fromkeys(hashes, transfer.transfer_id))
        return ids

    def copy_in_background(self, *, is_idle: bool) -> None:
        """Use the idle link and the idle disk, a little at a time. Once a step, last.

        Args:
            is_idle: the step computes nothing.
        """
        if not self.is_on:
            return
        num_before = len(self._outgoing)
        bears_stores = is_idle or self.quote.bears_stores
        if bears_stores:
            self._write_behind_some()
        while self._num_background[TransferKind.WRITE] < MAX_WRITES:
            writes = self.directory.next_writes(MAX_WRITTEN_BLOCKS)
            if not writes:
                break
            hashes, slots = zip(*writes, strict=True)
            positions = [self.directory.position(block_hash) for block_hash in hashes]
            self._issue(TransferKind.WRITE, Purpose.BACKGROUND, hashes, slots, positions=positions)
        if deletions := self.directory.take_deletions():
            self._issue(TransferKind.DELETE, Purpose.BACKGROUND, deletions)
        self._is_settled = bears_stores and len(self._outgoing) == num_before

    def has_background_work(self) -> bool:
        """Whether `copy_in_background` may find something."""
        return self.is_on and not self._is_settled and self._has_background_room()

    def take_outgoing(self) -> tuple[KVTransfer, ...]:
        """What was asked for since the last call."""
        outgoing = tuple(self._outgoing)
        self._outgoing.clear()
        return outgoing

    # Taking in their ends.

    def require(self, results: Sequence[TransferResult]) -> None:
        """Raises ValueError: a result is of no transfer under way, of another number of blocks, or comes twice."""
        if len({result.transfer_id for result in results}) != len(results):
            raise ValueError("two results of one transfer")
        for result in results:
            transfer = self._under_way.get(result.transfer_id)
            if transfer is None:
                raise ValueError(f"a result of transfer {result.transfer_id}, which is not under way")
            if len(transfer.block_hashes) != len(result.outcomes):
                raise ValueError(
                    f"{len(result.outcomes)} outcomes of transfer {result.transfer_id}, which has "
                    f"{len(transfer.block_hashes)} blocks"
                )

    def end(self, results: Iterable[TransferResult]) -> tuple[set[int], set[int]]:
        """Transfers have ended, as `require` allows.

        Returns:
            The ids of all of them, and of those loads of which a block did not arrive.
        """
        ended: set[int] = set()
        failed_loads: set[int] = set()
        for result in results:
            transfer = self._under_way.pop(result.transfer_id)
            ended.add(result.transfer_id)
            self._is_settled = False
            self.use.count_transfer(transfer.kind, result.outcomes)
            if self._end_one(transfer, result.outcomes):
                failed_loads.add(result.transfer_id)
        return ended, failed_loads

    def leased_block_ids(self) -> list[int]:
        """Device blocks that leases hold, one entry a lease."""
        return [block_id for transfer in self._under_way.values() for block_id in transfer.device_blocks]

    def check(self) -> None:
        """Assert that leases, expectations and directory agree."""
        self.directory.check()
        self._write_behind.check()
        loads = {i: t for i, t in self._under_way.items() if t.kind is TransferKind.LOAD}
        assert self._ready_s.keys() == loads.keys()
        assert self._coming == {
            block_hash: ComingBlock(block_id, i)
            for i, transfer in loads.items()
            for block_hash, block_id in zip(transfer.block_hashes, transfer.device_blocks, strict=True)
        }, "blocks that come, and loads that bring them"
        reads = {h: i for i, t in self._under_way.items() if t.kind is TransferKind.READ for h in t.block_hashes}
        assert self._reads == reads
        for kind, count in self._num_background.items():
            here = [t for t in self._under_way.values() if t.kind is kind and t.purpose is Purpose.BACKGROUND]
            assert count == len(here)
        assert all(self._pool.num_references(block_id) > 0 for block_id in self.leased_block_ids())

    # Parts.

    def _issue(
        self,
        kind: TransferKind,
        purpose: Purpose,
        block_hashes: Sequence[BlockHash],
        host_slots: Sequence[int] = (),
        *,
        block_ids: Sequence[int] = (),
        deadline_s: float = NEVER_S,
        positions: Sequence[int] = (),
    ) -> KVTransfer:
        transfer = KVTransfer(
            self._next_id, kind, purpose, tuple(block_hashes), tuple(block_ids), tuple(host_slots), deadline_s,
            tuple(positions),
        )  # fmt: skip
        self._next_id += 1
        self._under_way[transfer.transfer_id] = transfer
        self._outgoing.append(transfer)
        if purpose is Purpose.BACKGROUND and kind in self._num_background:
            self._num_background[kind] += 1
        return transfer

    def _write_behind_some(self) -> None:
        if self._num_background[TransferKind.STORE] >= MAX_BACKGROUND_STORES:
            return
        if not self.directory.can_store:
            return
        most = min(MAX_STORED_BLOCKS, self.quote.num_stored_in(STORE_S))
        blocks: list[tuple[BlockHash, int, int, int]] = []
        while len(blocks) < most and (waiting := self._write_behind.pop()) is not None:
            block_hash, priority, position = waiting
            block_id = self._pool.lookup(block_hash)
            if block_id is not None and not self.directory.is_known(block_hash):
                blocks.append((block_hash, block_id, priority, position))
        if blocks:
            self.store(blocks, Purpose.BACKGROUND)

    def _has_background_room(self) -> bool:
        return (
            self._num_background[TransferKind.STORE] < MAX_BACKGROUND_STORES
            or self._num_background[TransferKind.WRITE] < MAX_WRITES
        )

    def _end_one(self, transfer: KVTransfer, outcomes: Sequence[BlockOutcome]) -> bool:
        """Whether it is a load of which a block did not arrive."""
        if transfer.kind is TransferKind.TOUCH:
            return False  # it held nothing
        directory = self.directory
        if transfer.purpose is Purpose.BACKGROUND and transfer.kind in self._num_background:
            self._num_background[transfer.kind] -= 1
        end = {
            TransferKind.STORE: directory.end_store,
            TransferKind.LOAD: directory.end_load,
            TransferKind.WRITE: directory.end_write,
            TransferKind.READ: directory.end_read,
            TransferKind.DELETE: directory.end_delete,
        }[transfer.kind]
        for block_hash, outcome in zip(transfer.block_hashes, outcomes, strict=True):
            end(block_hash, outcome)
        if transfer.kind is TransferKind.READ:
            for block_hash in transfer.block_hashes:
                del self._reads[block_hash]
        if transfer.kind is TransferKind.LOAD:
            del self._ready_s[transfer.transfer_id]
            self._register_loaded(transfer, outcomes)
        self._pool.release(tuple(reversed(transfer.device_blocks)))
        return transfer.kind is TransferKind.LOAD and any(outcome is not BlockOutcome.DONE for outcome in outcomes)

    def _register_loaded(self, transfer: KVTransfer, outcomes: Sequence[BlockOutcome]) -> None:
        for block_hash, block_id, outcome in zip(transfer.block_hashes, transfer.device_blocks, outcomes, strict=True):
            del self._coming[block_hash]
            if outcome is BlockOutcome.DONE:
                self._pool.register(block_id, block_hash)


def first_missing(blocks: Sequence[int | None]) -> int:
    """Index of the first block that is to be loaded; the length where none is."""
    return sum(1 for _ in itertools.takewhile(lambda block_id: block_id is not None, blocks))
