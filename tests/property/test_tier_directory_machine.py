"""The directory of host and disk blocks against a plain model, over every call, outcome and small capacity."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.kv_transfer import BlockOutcome, TierConfig, TransferKind
from tests.tier_pair import TierPair

HASHES = [bytes([65 + i]) for i in range(9)]
hashes = st.sampled_from(HASHES)
priorities = st.integers(0, 2)
outcomes = st.sampled_from(list(BlockOutcome))


class TierDirectoryMachine(RuleBasedStateMachine):
    @initialize(num_slots=st.integers(1, 4), num_disk=st.integers(0, 5), kept=st.lists(hashes, unique=True, max_size=7))
    def make(self, num_slots, num_disk, kept):
        config = TierConfig(num_slots, num_disk, block_bytes=1, disk_hashes=tuple(kept) if num_disk else ())
        self.pair = TierPair(config, HASHES)

    @rule(seconds=st.sampled_from([0.0, 9.0, 31.0, 700.0]))
    def observe(self, seconds):
        self.pair.observe(seconds)

    @rule(prefix=st.lists(hashes, unique=True, min_size=1, max_size=4), priority=priorities)
    def touch(self, prefix, priority):
        self.pair.touch(prefix, priority)

    @rule(block_hash=hashes, priority=priorities)
    def store(self, block_hash, priority):
        self.pair.begin_store(block_hash, priority)

    @rule(prefix=st.lists(hashes, unique=True, min_size=1, max_size=4), priority=priorities)
    def store_and_end(self, prefix, priority):
        for block_hash in prefix:
            self.pair.begin_store(block_hash, priority)
            if (TransferKind.STORE, block_hash) in self.pair.under_way:
                self.pair.end((TransferKind.STORE, block_hash), BlockOutcome.DONE)

    @rule(block_hash=hashes)
    def load(self, block_hash):
        self.pair.begin_load(block_hash)

    @rule(block_hash=hashes, priority=priorities)
    def read(self, block_hash, priority):
        self.pair.begin_read(block_hash, priority)

    @rule(max_blocks=st.integers(0, 4))
    def write(self, max_blocks):
        self.pair.next_writes(max_blocks)

    @rule()
    def delete(self):
        self.pair.take_deletions()

    @precondition(lambda self: self.pair.under_way)
    @rule(data=st.data(), outcome=outcomes)
    def end(self, data, outcome):
        self.pair.end(data.draw(st.sampled_from(self.pair.under_way)), outcome)

    @rule(outcome=outcomes)
    def end_all(self, outcome):
        for operation in list(self.pair.under_way):
            self.pair.end(operation, outcome)

    @rule(block_hash=hashes)
    def fail_stores_in_a_row(self, block_hash):
        """Rare by chance alone."""
        for _ in range(8):
            self.pair.begin_store(block_hash, 0)
            if (TransferKind.STORE, block_hash) not in self.pair.under_way:
                return
            self.pair.end((TransferKind.STORE, block_hash), BlockOutcome.FAILED)

    @invariant()
    def agree(self):
        if hasattr(self, "pair"):
            self.pair.agree()


TestTierDirectory = TierDirectoryMachine.TestCase
TestTierDirectory.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


def live(seed: int, num_calls: int) -> TierPair:
    """A long random life. The weather changes: faults are rare, common or the rule for a while, of all kinds or one."""
    source = random.Random(seed)
    num_disk = source.choice([0, 1, 3, 8, 20])
    kept = source.sample(HASHES, min(num_disk, 5)) if source.random() < 0.5 else []
    hashes = HASHES if source.random() < 0.5 else [bytes([i]) for i in range(40)]
    pair = TierPair(TierConfig(source.choice([1, 2, 6, 15]), num_disk, 1, 1, tuple(kept)), hashes)
    fault_rate, faults = 0.0, list(BlockOutcome)
    for _ in range(num_calls):
        if source.random() < 0.02:
            fault_rate = source.choice([0.0, 0.05, 0.5, 1.0])
            faults = source.choice([list(BlockOutcome), [BlockOutcome.FAILED], [BlockOutcome.FULL]])
        pair.act(source, fault_rate, faults)
        pair.agree()
    return pair


def test_long_random_lives_agree_with_the_model() -> None:
    seen: Counter[str] = Counter()
    ended: Counter[tuple[TransferKind, BlockOutcome]] = Counter()
    for seed in range(40):
        pair = live(seed, 600)
        seen += pair.seen
        ended += pair.num_ended
    kinds = set(TransferKind) - {TransferKind.TOUCH}  # nothing of which the directory knows
    missing = {(kind, outcome) for kind in kinds for outcome in BlockOutcome} - ended.keys()
    assert not missing, "a way to end that no life took"
    assert {f"room {state}" for state in ("open", "paused", "trying", "closed")} <= seen.keys()
    assert {f"{tier} {word}" for tier in ("host", "disk") for word in ("on", "off", "trial")} <= seen.keys()
    assert {"lost while written", "several loads", "stuck file", "grown", "grown in vain"} <= seen.keys()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_very_long_random_lives_agree_with_the_model(seed: int) -> None:
    live(seed, 100_000)
