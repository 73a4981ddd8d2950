"""The directory of host and disk blocks beside its plain model: each call goes to both, and they must agree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from scheduler.kv_transfer import BlockOutcome, Tier, TierConfig, TransferKind
from scheduler.request import BlockHash
from scheduler.tier_directory import Presence, TierDirectory
from tests.tier_model import TierModel

Operation = tuple[TransferKind, BlockHash]


class TierPair:
    """Lists what is under way; each operation that began is ended once, in any order."""

    def __init__(self, config: TierConfig, hashes: Sequence[BlockHash]) -> None:
        self.hashes = hashes
        self.num_slots = config.num_host_slots
        self.directory, self.model = TierDirectory(config), TierModel(config)
        self.slots: dict[BlockHash, int] = {}
        self.under_way: list[Operation] = []
        self.failures: Counter[tuple[Tier, BlockOutcome]] = Counter()
        self.num_ended: Counter[tuple[TransferKind, BlockOutcome]] = Counter()
        self.seen: Counter[str] = Counter()
        """Calls after which the tiers were in these states."""

    def present(self, presence: str) -> list[BlockHash]:
        return [block_hash for block_hash in self.hashes if self.model.presence(block_hash) == presence]

    def observe(self, seconds: float) -> None:
        self.model.observe(self.model.now + seconds)
        self.directory.observe(self.model.now)

    def touch(self, prefix: Sequence[BlockHash], priority: int) -> None:
        self.directory.touch(prefix, priority)
        self.model.touch(prefix, priority)

    def begin_store(self, block_hash: BlockHash, priority: int) -> None:
        slot = self.directory.begin_store(block_hash, priority)
        self._took(TransferKind.STORE, block_hash, slot, self.model.begin_store(block_hash, priority))

    def begin_read(self, block_hash: BlockHash, priority: int) -> None:
        slot = self.directory.begin_read(block_hash, priority)
        self._took(TransferKind.READ, block_hash, slot, self.model.begin_read(block_hash, priority))

    def _took(self, kind: TransferKind, block_hash: BlockHash, slot: int | None, is_taken: bool) -> None:
        assert (slot is not None) == is_taken
        if slot is None:
            return
        self.slots = {h: s for h, s in self.slots.items() if h in self.model.host and h != block_hash}
        assert 0 <= slot < self.num_slots and slot not in self.slots.values(), "a slot that is in use"
        self.slots[block_hash] = slot
        self.under_way.append((kind, block_hash))

    def begin_load(self, block_hash: BlockHash) -> None:
        if self.model.presence(block_hash) != "host":
            with pytest.raises(ValueError, match="can be loaded"):
                self.directory.begin_load(block_hash)
            return
        assert self.directory.begin_load(block_hash) == self.slots[block_hash]
        self.model.begin_load(block_hash)
        self.under_way.append((TransferKind.LOAD, block_hash))

    def next_writes(self, max_blocks: int) -> None:
        begun = self.directory.next_writes(max_blocks)
        assert [block_hash for block_hash, _ in begun] == self.model.next_writes(max_blocks)
        assert all(slot == self.slots[block_hash] for block_hash, slot in begun)
        self.under_way += [(TransferKind.WRITE, block_hash) for block_hash, _ in begun]

    def take_deletions(self) -> None:
        taken = self.directory.take_deletions()
        assert list(taken) == self.model.take_deletions()
        self.under_way += [(TransferKind.DELETE, block_hash) for block_hash in taken]

    def end(self, operation: Operation, outcome: BlockOutcome) -> None:
        self.under_way.remove(operation)
        kind, block_hash = operation
        for side in (self.directory, self.model):
            getattr(side, f"end_{kind.value}")(block_hash, outcome)
        self.num_ended[kind, outcome] += 1
        if outcome is not BlockOutcome.DONE:
            is_host = kind in (TransferKind.STORE, TransferKind.LOAD)
            self.failures[Tier.HOST if is_host else Tier.DISK, outcome] += 1

    def act(self, source: random.Random, fault_rate: float, faults: Sequence[BlockOutcome]) -> None:
        """One random call; an end is one of the faults at that rate."""
        block_hash, priority = source.choice(self.hashes), source.randrange(3)
        match source.randrange(12):
            case 0:
                self.observe(source.choice([0.0, 1.0, 9.0, 31.0, 300.0]))
            case 1:
                self.touch(source.sample(self.hashes, source.randint(1, 4)), priority)
            case 2 | 3:
                self.begin_store(block_hash, priority)
            case 4:
                self.begin_load(source.choice(self.present("host") or [block_hash]))
            case 5:
                self.begin_read(source.choice(self.present("disk") or [block_hash]), priority)
            case 6:
                self.next_writes(source.randint(0, 4))
            case 7:
                self.take_deletions()
            case _ if self.under_way:
                is_faulty = source.random() < fault_rate
                outcome = source.choice(faults) if is_faulty else BlockOutcome.DONE
                self.end(source.choice(self.under_way), outcome)

    def agree(self) -> None:
        """Assert that both say the same of everything, and that the directory agrees with itself."""
        directory, model = self.directory, self.model
        directory.check()
        for block_hash in self.hashes:
            presence = model.presence(block_hash)
            assert directory.presence(block_hash) is Presence(presence)
            block = model.host.get(block_hash)
            assert directory.is_known(block_hash) == (block is not None and not block.is_lost)
            if presence == "host":
                assert directory.host_slot(block_hash) == self.slots[block_hash]
        assert directory.num_host_used == len(model.host)
        assert directory.num_host_ready == len(model.readable)
        assert directory.num_disk_blocks == sum(map(model.is_on_disk, model.disk))
        assert directory.num_unwritten == len(model.queue)
        assert directory.num_deletions_due == len(model.due)
        assert directory.disk_capacity == model.capacity
        assert directory.is_host_on == model.host_breaker.is_on
        assert directory.can_store == model.host_breaker.may_begin(model.now)
        assert directory.is_disk_on == (model.has_disk and model.disk_breaker.is_on)
        assert directory.is_disk_writable == model.is_writable
        counters = directory.counters
        assert counters.failures == self.failures
        assert counters.evictions[Tier.HOST] == model.num_host_evictions
        assert counters.evictions[Tier.DISK] == model.num_disk_counted
        assert counters.num_vanished == model.num_vanished
        self.seen[f"room {model.room}"] += 1
        self.seen[f"host {'on' if model.host_breaker.is_on else 'off'}"] += 1
        self.seen[f"disk {'on' if model.disk_breaker.is_on else 'off'}"] += 1
        self.seen["lost while written"] += any(b.is_lost and b.is_written for b in model.host.values())
        self.seen["stuck file"] += any(entry.state == "stuck" for entry in model.disk.values())
        self.seen["several loads"] += any(b.loads > 1 for b in model.host.values())
        self.seen["disk trial"] += model.disk_breaker.trial is not None
        self.seen["grown"] += model.num_grown > 0
        self.seen["grown in vain"] += model.num_grown_in_vain > 0
        self.seen["host trial"] += model.host_breaker.trial is not None
