"""Which blocks are copied to the host while nobody waits for the link: what was used again, prompts, then output.

Source: stores of completed blocks while the link is idle, so that a preemption finds its victim's work saved (ConServe,
Qiao et al., 2024), prompts first (the KV offloading of vLLM).
"""

from __future__ import annotations

from collections import OrderedDict

from scheduler.request import BlockHash

REUSED = 3
"""Above every priority of retention: a prefix that was found again goes first."""


class WriteBehind:
    """Full blocks on the device that the host may not have. Who is gone by its turn is passed over by the caller."""

    def __init__(self) -> None:
        self._by_priority: tuple[OrderedDict[BlockHash, tuple[int, int]], ...] = tuple(
            OrderedDict() for _ in range(REUSED + 1)
        )
        """By urgency: hash to its priority of retention and its position; oldest first."""
        self._urgency_of: dict[BlockHash, int] = {}

    def __len__(self) -> int:
        return len(self._urgency_of)

    def add(self, block_hash: BlockHash, priority: int, position: int) -> None:
        """A block became full, of which there are `position` before it in its prefix. Once more: nothing changes."""
        if block_hash not in self._urgency_of:
            self._urgency_of[block_hash] = priority
            self._by_priority[priority][block_hash] = (priority, position)

    def used(self, block_hash: BlockHash) -> None:
        """It was found by another request; a block that is not here is none of ours."""
        urgency = self._urgency_of.get(block_hash)
        if urgency is not None and urgency != REUSED:
            entry = self._by_priority[urgency].pop(block_hash)
            self._urgency_of[block_hash] = REUSED
            self._by_priority[REUSED][block_hash] = entry

    def drop(self, block_hash: BlockHash) -> None:
        """It is saved, or its content is gone."""
        urgency = self._urgency_of.pop(block_hash, None)
        if urgency is not None:
            del self._by_priority[urgency][block_hash]

    def pop(self) -> tuple[BlockHash, int, int] | None:
        """The next one, its priority of retention and its position; None: there is none."""
        for waiting in reversed(self._by_priority):
            if waiting:
                block_hash, (priority, position) = waiting.popitem(last=False)
                del self._urgency_of[block_hash]
                return block_hash, priority, position
        return None

    def check(self) -> None:
        """Assert that each block waits in one place."""
        waiting = {block_hash: urgency for urgency, each in enumerate(self._by_priority) for block_hash in each}
        assert waiting == self._urgency_of
