"""The directory of host and disk blocks through a million operations: no slot leaks, no table grows, hits stay."""

from __future__ import annotations

import gc
import random
from collections import Counter, deque

import psutil
import pytest

from scheduler.kv_transfer import BlockOutcome, Tier, TierConfig, TransferKind
from scheduler.tier_directory import Presence, TierDirectory

NUM_SLOTS = 256
NUM_DISK = 1024
NUM_CONVERSATIONS = 400
BLOCKS_EACH = 12
MAX_UNDER_WAY = 64
MAX_GROWTH_BYTES = 4 * 2**20
FAULTS = (BlockOutcome.FAILED, BlockOutcome.CORRUPT, BlockOutcome.ABSENT)


class Traffic:
    """Conversations come back, the popular ones more often: what is there is loaded, the rest is stored."""

    def __init__(self, seed: int, fault_rate: float, full_rate: float) -> None:
        self.source = random.Random(seed)
        self.fault_rate, self.full_rate = fault_rate, full_rate
        self.directory = TierDirectory(TierConfig(NUM_SLOTS, NUM_DISK, block_bytes=1))
        self.under_way: deque[tuple[TransferKind, bytes]] = deque()
        self.found: Counter[str] = Counter()
        self.num_operations = 0
        self.now_s = 0.0
        self.is_outage = False

    def visit(self) -> None:
        """One step: a conversation is looked up, its blocks move, and some of what is under way ends."""
        directory, source = self.directory, self.source
        self.now_s += source.choice([0.01, 0.1])
        directory.observe(self.now_s)
        conversation = min(int(source.paretovariate(0.6)), NUM_CONVERSATIONS)
        length = source.randint(1, BLOCKS_EACH)
        prefix = [conversation.to_bytes(2, "big") + bytes([index]) for index in range(length)]
        directory.touch(prefix, 1)
        for index, block_hash in enumerate(prefix):
            presence = directory.presence(block_hash)
            self.found[presence.value] += 1
            if presence is Presence.HOST:
                directory.begin_load(block_hash)
                self.under_way.append((TransferKind.LOAD, block_hash))
            elif presence is Presence.DISK:
                self._began(TransferKind.READ, block_hash, directory.begin_read(block_hash, 1))
            elif presence is Presence.ABSENT:
                slot = directory.begin_store(block_hash, int(index < BLOCKS_EACH // 2))
                self._began(TransferKind.STORE, block_hash, slot)
        self.under_way.extend((TransferKind.WRITE, block_hash) for block_hash, _ in directory.next_writes(4))
        self.under_way.extend((TransferKind.DELETE, block_hash) for block_hash in directory.take_deletions())
        self.num_operations += 2 * length + 4
        while len(self.under_way) > source.randint(0, MAX_UNDER_WAY):
            self.end_one()

    def _began(self, kind: TransferKind, block_hash: bytes, slot: int | None) -> None:
        if slot is not None:
            self.under_way.append((kind, block_hash))

    def end_one(self) -> None:
        self.under_way.rotate(self.source.randint(0, 3))
        kind, block_hash = self.under_way.popleft()
        outcome = BlockOutcome.DONE
        if self.is_outage or self.source.random() < self.fault_rate:
            outcome = BlockOutcome.FAILED if self.is_outage else self.source.choice(FAULTS)
        elif kind is TransferKind.WRITE and self.source.random() < self.full_rate:
            outcome = BlockOutcome.FULL
        getattr(self.directory, f"end_{kind.value}")(block_hash, outcome)
        self.num_operations += 1

    def drain(self) -> None:
        while self.under_way:
            self.end_one()

    def check(self) -> None:
        directory = self.directory
        directory.check()
        assert directory.num_host_used <= NUM_SLOTS and directory.num_unwritten <= NUM_SLOTS
        assert len(directory._host._order) <= NUM_SLOTS and len(directory._disk._order) <= NUM_DISK
        assert len(directory._disk._blocks) <= NUM_DISK
        num_held = sum(directory._host.get(h) is not None for h in {h for _, h in self.under_way})
        assert directory.num_host_used - len(directory._host._order) <= num_held, "a slot is held by nobody"

    def hit_rate(self) -> float:
        """Of the lookups since the last call."""
        found, self.found = self.found, Counter()
        return 1 - found["absent"] / found.total()


def run(traffic: Traffic, num_operations: int, num_checks: int, outage_every: int = 0) -> list[float]:
    """The hit rate of each of `num_checks` stretches."""
    rates = []
    for stretch in range(1, num_checks + 1):
        traffic.is_outage = outage_every > 0 and stretch % outage_every == 0
        while traffic.num_operations < num_operations * stretch // num_checks:
            traffic.visit()
        traffic.check()
        rates.append(traffic.hit_rate())
    traffic.is_outage = False
    return rates


def assert_no_slot_leaks(traffic: Traffic) -> None:
    """Once nothing is under way every slot can be had again."""
    directory = traffic.directory
    traffic.drain()
    directory.observe(traffic.now_s + 10_000.0)
    while not directory.is_host_on:
        assert directory.begin_store(b"trial", 0) is not None
        directory.end_store(b"trial", BlockOutcome.DONE)
    slots = {directory.begin_store(number.to_bytes(4, "big"), 0) for number in range(NUM_SLOTS)}
    assert slots == set(range(NUM_SLOTS))
    directory.check()


@pytest.mark.parametrize("fault_rate", [0.0, 0.02])
def test_ten_thousands_of_operations_leak_nothing(fault_rate: float) -> None:
    traffic = Traffic(1, fault_rate, full_rate=0.0)
    run(traffic, 30_000, 10)
    assert traffic.directory.counters.evictions[Tier.HOST] > NUM_SLOTS
    assert_no_slot_leaks(traffic)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault_rate", [0.0, 0.02])
def test_hits_stay_through_a_million_operations(fault_rate: float) -> None:
    traffic, process = Traffic(2, fault_rate, full_rate=0.0), psutil.Process()
    run(traffic, 100_000, 10)
    gc.collect()
    early_bytes = process.memory_info().rss
    traffic.num_operations = 0
    rates = run(traffic, 1_000_000, 20)
    early, late = sum(rates[:5]) / 5, sum(rates[-5:]) / 5
    assert early > 0.3 and abs(late - early) < 0.03, f"hit rates {rates}"
    gc.collect()
    assert process.memory_info().rss - early_bytes < MAX_GROWTH_BYTES
    assert traffic.directory.counters.evictions[Tier.DISK] > 5 * NUM_DISK
    assert_no_slot_leaks(traffic)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("full_rate", [0.0, 0.001])
def test_a_million_operations_with_outages_and_a_full_disk(full_rate: float) -> None:
    traffic = Traffic(3, 0.02, full_rate)
    rates = run(traffic, 1_000_000, 50, outage_every=10)
    assert traffic.directory.disk_capacity >= 1
    assert max(rates[-9:]) > 0.3, "it came back"
    assert_no_slot_leaks(traffic)
