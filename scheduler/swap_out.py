"""What a victim's blocks are worth on the host: saved before, saved now, or left to be computed again.

A victim's full blocks are stored under the hashes of their content and found again by them at its restart, in this tier
or another. Its last block, if it is not full, is computed again. The blocks to be stored are free once they have left:
whoever needs some now gets those at the end, which are not stored then.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from scheduler.kv_cache_manager import KVCacheManager
from scheduler.kv_transfer import Purpose
from scheduler.request import BlockHash, Request
from scheduler.restore_price import RestorePrices

PreemptionMode = Literal["auto", "swap", "recompute"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Unsaved:
    """The full blocks of a victim that nobody else uses and the host does not have."""

    num_full: int
    num_kept: int
    """Leading blocks before the first of them."""
    blocks: list[tuple[BlockHash, int, int, int]]
    """As `KVTiers.store` takes them."""


class SwapOut:
    """Decides at a preemption; owns nothing."""

    def __init__(self, kv: KVCacheManager, prices: RestorePrices, mode: PreemptionMode) -> None:
        """
        Args:
            mode: auto: whatever is priced lower.
        """
        self._kv = kv
        self._prices = prices
        self._mode = mode

    def is_worth(self, victim: Request) -> bool:
        """Whether its blocks would be stored if it yielded and they could wait for it."""
        return self._should_store(self._unsaved(victim))

    def begin(self, victim: Request, num_wanted: int) -> None:
        """It yields: store what is worth it, but leave free at once what is wanted at once, as far as that goes.

        To be called while it holds its table.

        Args:
            num_wanted: blocks that others need in this step.
        """
        tiers = self._kv.tiers
        if not tiers.is_on:
            return
        unsaved, counts = self._unsaved(victim), tiers.use.num_preemptions
        if not unsaved.blocks and victim.spec.reads_prefix_cache:
            counts["free"] += 1
            return
        if not self._should_store(unsaved) or not victim.spec.reads_prefix_cache:
            counts["recompute"] += 1
            return
        num_own = sum(self._kv.pool.num_references(block_id) == 1 for block_id in victim.block_ids)
        num_to_store = min(len(unsaved.blocks), max(0, num_own - num_wanted))
        num_stored = tiers.store(unsaved.blocks[:num_to_store], Purpose.FREES_BLOCKS)
        counts["swap" if num_stored else "recompute"] += 1

    def _should_store(self, unsaved: _Unsaved) -> bool:
        if not unsaved.blocks or self._mode == "recompute" or not self._kv.tiers.directory.is_host_on:
            return False
        return self._mode == "swap" or self._prices.worth_storing(unsaved.num_kept, unsaved.num_full)

    def _unsaved(self, victim: Request) -> _Unsaved:
        kv, directory = self._kv, self._kv.tiers.directory
        num_full = min(victim.num_computed_tokens // kv.block_size, len(victim.block_hashes))
        blocks = []
        num_kept = num_full
        for index in range(num_full):
            block_hash, block_id = victim.block_hashes[index], victim.block_ids[index]
            if kv.pool.num_references(block_id) == 1 and not directory.is_known(block_hash):
                num_kept = min(num_kept, index)
                blocks.append((block_hash, block_id, kv.retention(victim, index), index))
        return _Unsaved(num_full, num_kept, blocks)
