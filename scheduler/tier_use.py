"""What is counted of cheaper tiers while requests use them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from scheduler.kv_transfer import BlockOutcome, Tier, TransferKind


class TierUse:
    """Totals since the scheduler was made."""

    def __init__(self) -> None:
        self.hit_tokens: Counter[Tier] = Counter()
        """Prompt tokens found at first starts."""
        self.num_preemptions: Counter[str] = Counter()
        """By what brings the blocks back: swap, free or recompute."""
        self.num_loads = 0
        self.num_recompute_choices = 0
        self.num_failed_loads = 0
        self._transfers: defaultdict[TransferKind, Counter[BlockOutcome]] = defaultdict(Counter)

    def count_transfer(self, kind: TransferKind, outcomes: Sequence[BlockOutcome]) -> None:
        """A transfer has ended."""
        self._transfers[kind].update(outcomes)
        if kind is TransferKind.LOAD and any(outcome is not BlockOutcome.DONE for outcome in outcomes):
            self.num_failed_loads += 1

    @property
    def num_loaded_blocks(self) -> int:
        return self._transfers[TransferKind.LOAD][BlockOutcome.DONE]

    @property
    def num_transfers(self) -> dict[str, dict[str, int]]:
        """Blocks by kind and outcome, in their names."""
        return {
            kind.value: {outcome.value: count for outcome, count in counts.items()}
            for kind, counts in self._transfers.items()
        }
