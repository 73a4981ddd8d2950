"""Device, host and disk without bytes: a block holds the identities of the prefixes that were computed into it.

A copy fills its target with poison when it begins and keeps both ends until its result was handed over. Whoever writes
to an end, copies from a half that has not arrived, or reads anything but its own tokens' KV is caught at once.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable

from scheduler.kv_transfer import BlockOutcome, KVTransfer, TransferKind, TransferResult
from scheduler.output import BlockCopy
from scheduler.request import BlockHash
from tests.device_model import POISON, PrefixIds, block_hashes

Content = tuple[int, ...]
"""Prefix ids at the positions of a block."""

FROM_DEVICE = frozenset({TransferKind.STORE})
FROM_SLOT = frozenset({TransferKind.LOAD, TransferKind.WRITE})
TO_SLOT = frozenset({TransferKind.STORE, TransferKind.READ})
ON_DISK = frozenset({TransferKind.READ, TransferKind.WRITE, TransferKind.DELETE})


class Truth:
    """What a block must hold, by its hash: kept from the tokens alone."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.prefix_ids = PrefixIds()
        self._content: dict[BlockHash, Content] = {}
        self._positions: dict[BlockHash, int] = {}

    def chain(self, tokens: list[int], salt: str = "") -> list[int]:
        """Ids of the prefixes of some tokens."""
        return self.extend([], tokens, salt)

    def extend(self, chain: list[int], tokens: list[int], salt: str = "") -> list[int]:
        """The same, of a chain and what follows it; the salt is of a chain that begins."""
        chain = list(chain)
        for token in tokens:
            chain.append(self.prefix_ids.extend(chain[-1] if chain else self.prefix_ids.root(salt), token))
        return chain

    def hashes(self, chain: list[int]) -> tuple[BlockHash, ...]:
        """Of the full blocks of a chain, which are known from here."""
        hashes = block_hashes(chain, self.block_size)
        for index, block_hash in enumerate(hashes):
            content = tuple(chain[index * self.block_size : (index + 1) * self.block_size])
            assert self._content.setdefault(block_hash, content) == content
            assert self._positions.setdefault(block_hash, index) == index
        return hashes

    def position(self, block_hash: BlockHash) -> int:
        """How many blocks of its prefix come before it."""
        return self._positions[block_hash]

    def content(self, block_hash: BlockHash) -> Content:
        return self._content[block_hash]


@dataclasses.dataclass
class Flight:
    """A copy that began and whose result was not handed over."""

    transfer: KVTransfer
    end_s: float
    outcomes: tuple[BlockOutcome, ...]
    """That it is to have; what lies at its source may make them worse."""
    has_ended: bool = False

    @property
    def result(self) -> TransferResult:
        return TransferResult(self.transfer.transfer_id, self.outcomes)


class TierContent:
    """The memories of one engine, and the copies between them."""

    def __init__(self, num_blocks: int, num_slots: int, truth: Truth, disk: dict[BlockHash, Content | None]) -> None:
        """
        Args:
            disk: files by hash, None where one is corrupt; it outlives the engine. The longest unused first.
        """
        self.truth = truth
        self.disk = disk
        self.disk_room: int | None = None
        """Files that there is really room for; None: all."""
        self.flights: dict[int, Flight] = {}
        self._device = [self._poison() for _ in range(num_blocks)]
        self._slots: list[Content | None] = [None] * num_slots
        self._flipped: set[int] = set()  # slots whose bytes changed behind everybody's back
        self._num_begun = 0

    def _poison(self) -> list[int]:
        return [POISON] * self.truth.block_size

    def leases(self) -> Counter[int]:
        """Device blocks that copies hold."""
        return Counter(b for flight in self.flights.values() for b in flight.transfer.device_blocks)

    def flip(self, slot: int) -> None:
        """A byte of a host slot changes. No copy fills it at the moment."""
        self._slots[slot] = None
        self._flipped.add(slot)

    def slots_at_rest(self) -> list[int]:
        """Slots with something in them that no copy uses."""
        busy = {slot for flight in self.flights.values() for slot in flight.transfer.host_slots}
        return [slot for slot, content in enumerate(self._slots) if content is not None and slot not in busy]

    # Copies.

    def begin(self, transfer: KVTransfer, end_s: float, outcomes: tuple[BlockOutcome, ...]) -> None:
        """Both ends are the copy's from here; what it will fill is poison."""
        kind, num = transfer.kind, len(transfer.block_hashes)
        assert num, f"{transfer} moves nothing"
        assert transfer.transfer_id not in self.flights, f"two copies are number {transfer.transfer_id}"
        on_device = num if kind in (TransferKind.STORE, TransferKind.LOAD) else 0
        on_host = num if kind not in (TransferKind.DELETE, TransferKind.TOUCH) else 0
        placed = num if kind in (TransferKind.WRITE, TransferKind.TOUCH) else 0
        assert len(transfer.positions) == placed, f"{transfer} does not say where its blocks are in their prefix"
        assert (len(transfer.device_blocks), len(transfer.host_slots)) == (on_device, on_host), transfer
        assert len(set(transfer.device_blocks)) == on_device, f"a block twice: {transfer}"
        assert len(set(transfer.host_slots)) == on_host and len(set(transfer.block_hashes)) == num, transfer
        self._check_ends(transfer)
        self._check_source(transfer)
        for block in transfer.device_blocks if kind is TransferKind.LOAD else ():
            self._device[block] = self._poison()
        for slot in transfer.host_slots if kind in TO_SLOT else ():
            self._slots[slot] = None
            self._flipped.discard(slot)
        self.flights[transfer.transfer_id] = Flight(transfer, end_s, outcomes)

    def _check_ends(self, new: KVTransfer) -> None:
        """No other copy writes to its ends, and it writes to none of theirs."""
        for flight in self.flights.values():
            old = flight.transfer
            both_read = new.kind in FROM_DEVICE and old.kind in FROM_DEVICE
            shared = set(new.device_blocks) & set(old.device_blocks)
            assert not shared or both_read, f"block {shared} is an end of {old} and of {new}"
            both_read = new.kind in FROM_SLOT and old.kind in FROM_SLOT
            shared = set(new.host_slots) & set(old.host_slots)
            assert not shared or both_read, f"slot {shared} is an end of {old} and of {new}"
            if new.kind in TO_SLOT and old.kind in TO_SLOT:
                twice = set(new.block_hashes) & set(old.block_hashes)
                assert not twice, f"{twice} come to the host by {old} and by {new}"
            if new.kind in ON_DISK and old.kind in ON_DISK:
                files = set(new.block_hashes) & set(old.block_hashes)
                assert not files, f"file {files} is used by {old} and by {new}"

    def _check_source(self, transfer: KVTransfer) -> None:
        """It copies what its hashes say."""
        for index, block_hash in enumerate(transfer.block_hashes):
            wanted = self.truth.content(block_hash)
            if transfer.positions:
                assert transfer.positions[index] == self.truth.position(block_hash), f"{transfer}: a wrong position"
            if transfer.kind in FROM_DEVICE:
                held = tuple(self._device[transfer.device_blocks[index]])
                assert held == wanted, f"{transfer} stores other tokens' KV under {block_hash!r}: {held}"
            elif transfer.kind in FROM_SLOT:
                slot = transfer.host_slots[index]
                assert self._slots[slot] == wanted or slot in self._flipped, f"slot {slot}: not what {transfer} says"

    def advance(self, now_s: float) -> None:
        """End what ends until then."""
        for flight in sorted(self.flights.values(), key=lambda f: f.end_s):
            if flight.end_s <= now_s:
                self.finish(flight)

    def finish(self, flight: Flight) -> None:
        """Its bytes arrive, or not, as far as that is known."""
        if flight.has_ended:
            return
        flight.has_ended = True
        self._check_source(flight.transfer)
        if flight.transfer.kind is TransferKind.TOUCH:
            self._touch(flight)
        moved = zip(range(len(flight.outcomes)), flight.outcomes, strict=True)
        flight.outcomes = tuple(self._move(flight.transfer, index, outcome) for index, outcome in moved)

    def _move(self, transfer: KVTransfer, index: int, outcome: BlockOutcome) -> BlockOutcome:
        """One block of a copy; how it really ends."""
        block_hash = transfer.block_hashes[index]
        if transfer.kind is TransferKind.STORE:
            return self._store(transfer.device_blocks[index], transfer.host_slots[index], outcome)
        if transfer.kind is TransferKind.LOAD:
            return self._load(transfer.device_blocks[index], transfer.host_slots[index], outcome)
        if transfer.kind is TransferKind.READ:
            return self._read(block_hash, transfer.host_slots[index], outcome)
        if transfer.kind is TransferKind.WRITE:
            return self._write(block_hash, transfer.host_slots[index], outcome)
        if transfer.kind is TransferKind.TOUCH:
            return outcome  # as `_touch` did
        if outcome in (BlockOutcome.DONE, BlockOutcome.ABSENT):
            self.disk.pop(block_hash, None)
        return outcome

    def _touch(self, flight: Flight) -> None:
        """Files of it are used last, the first of the prefix most."""
        ends = zip(flight.transfer.positions, flight.transfer.block_hashes, flight.outcomes, strict=True)
        for _, block_hash, outcome in sorted(ends, key=lambda end: end[0], reverse=True):
            if outcome is BlockOutcome.DONE and block_hash in self.disk:
                self.disk[block_hash] = self.disk.pop(block_hash)

    def _store(self, block: int, slot: int, outcome: BlockOutcome) -> BlockOutcome:
        if outcome is BlockOutcome.DONE:
            self._slots[slot] = tuple(self._device[block])
        return outcome

    def _load(self, block: int, slot: int, outcome: BlockOutcome) -> BlockOutcome:
        if outcome is BlockOutcome.CORRUPT:
            self.flip(slot)
        content = self._slots[slot]
        if content is None:
            return BlockOutcome.CORRUPT  # its checksum says so
        if outcome is BlockOutcome.DONE:
            self._device[block] = list(content)
        return outcome

    def _read(self, block_hash: BlockHash, slot: int, outcome: BlockOutcome) -> BlockOutcome:
        if outcome is BlockOutcome.ABSENT:
            self.disk.pop(block_hash, None)
        if block_hash not in self.disk:
            return BlockOutcome.ABSENT
        if outcome is BlockOutcome.CORRUPT:
            self.disk[block_hash] = None
        content = self.disk[block_hash]
        if content is None:
            return BlockOutcome.CORRUPT
        if outcome is BlockOutcome.DONE:
            self._slots[slot] = content
        return outcome

    def _write(self, block_hash: BlockHash, slot: int, outcome: BlockOutcome) -> BlockOutcome:
        others = len(self.disk) - (block_hash in self.disk)
        if outcome is BlockOutcome.DONE and self.disk_room is not None and others >= self.disk_room:
            return BlockOutcome.FULL
        if outcome is BlockOutcome.DONE:
            self.disk.pop(block_hash, None)
            self.disk[block_hash] = self._slots[slot]  # of flipped bytes a corrupt file
        return outcome

    def take(self, transfer_id: int) -> Flight:
        """Hand over its result: its ends are given back."""
        return self.flights.pop(transfer_id)

    # Computing.

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Within the device, before the step computes."""
        leases = self.leases()
        for copy in copies:
            assert not leases[copy.target], f"block {copy.target} is an end of a transfer and overwritten"
            self._device[copy.target] = self._device[copy.source].copy()

    def write(self, block: int, offset: int, value: int) -> None:
        """A position of a block that no copy holds."""
        self._device[block][offset] = value

    def holds(self, block: int, content: list[int]) -> bool:
        """Whether the first positions of a block hold that."""
        return self._device[block][: len(content)] == content

    def forget(self, blocks: Collection[int]) -> None:
        """Nobody uses these any more: whoever does so all the same reads poison."""
        for block in blocks:
            self._device[block] = self._poison()
