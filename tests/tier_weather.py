"""How copies of blocks fare in a test: how long they take, and which of them fail in what way."""

from __future__ import annotations

import dataclasses
import random

from scheduler.kv_transfer import BlockOutcome, KVTransfer, TransferKind

FAILURES: dict[TransferKind, tuple[BlockOutcome, ...]] = {
    TransferKind.STORE: (BlockOutcome.FAILED,),
    TransferKind.LOAD: (BlockOutcome.FAILED, BlockOutcome.CORRUPT),
    TransferKind.READ: (BlockOutcome.FAILED, BlockOutcome.CORRUPT, BlockOutcome.ABSENT),
    TransferKind.WRITE: (BlockOutcome.FAILED, BlockOutcome.FULL),
    TransferKind.DELETE: (BlockOutcome.FAILED, BlockOutcome.ABSENT),
    TransferKind.TOUCH: (BlockOutcome.FAILED,),
}
"""What each kind can come to beside its success."""

ANY_FAILURE: dict[TransferKind, tuple[BlockOutcome, ...]] = dict.fromkeys(
    TransferKind, tuple(outcome for outcome in BlockOutcome if outcome is not BlockOutcome.DONE)
)
"""And beyond: whatever the record can say."""


@dataclasses.dataclass
class Weather:
    """Of the moment; tests change it while copies fly."""

    rng: random.Random
    longest_s: float = 0.0
    """A copy takes up to so long, all lengths alike; 0: it is over when its step is."""
    failing: dict[TransferKind, float] = dataclasses.field(default_factory=dict)
    """Share of the copies of a kind of which a block fails."""
    failures: dict[TransferKind, tuple[BlockOutcome, ...]] = dataclasses.field(default_factory=lambda: dict(FAILURES))

    def fate(self, transfer: KVTransfer) -> tuple[float, tuple[BlockOutcome, ...]]:
        """Seconds that it takes, and how each of its blocks ends."""
        num = len(transfer.block_hashes)
        outcomes = [BlockOutcome.DONE] * num
        if self.rng.random() < self.failing.get(transfer.kind, 0.0):
            failures = self.failures[transfer.kind]
            for index in {self.rng.randrange(num), *(i for i in range(num) if self.rng.random() < 0.3)}:
                outcomes[index] = self.rng.choice(failures)
        return self.rng.uniform(0.0, self.longest_s), tuple(outcomes)
