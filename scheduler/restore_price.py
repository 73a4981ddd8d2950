"""What it takes to have a request's keys and values back: to load them from the host, or to compute them again.

Both are priced at the load of the moment: a load waits for the loads before it and gets what weights leave of the link,
computing gets what the running requests leave of the device.

Source: load against recomputation by predicted time (KV offloading surveys; HCache, Gao et al., EuroSys 2025, for how
often loading wins), with the link's queue and the pace of prefill in place of constants.
"""

from __future__ import annotations

from scheduler.kv_tiers import KVTiers, first_missing
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.preemption_cost import RecomputeCost


class RestorePrices:
    """Of one step. Without a latency model nothing is known of computing, and what can be loaded is loaded."""

    def __init__(self, tiers: KVTiers, model: LatencyModel | None, block_size: int, chunk_tokens: int) -> None:
        """
        Args:
            chunk_tokens: in which prompts are computed.
        """
        self._tiers = tiers
        self._model = model
        self._block_size = block_size
        self._chunk_tokens = chunk_tokens
        self._link: LinkSnapshot = NO_LINK
        self._pace_s_per_token: float | None = None
        self._recompute: RecomputeCost | None = None

    def observe(self, link: LinkSnapshot, pace_s_per_token: float | None) -> None:
        """At the start of a step.

        Args:
            pace_s_per_token: how fast prompts are worked off beside what else runs; None: nothing is known.
        """
        self._link, self._pace_s_per_token, self._recompute = link, pace_s_per_token, None

    def recompute_s(self, num_kept_tokens: int, num_tokens: int) -> float | None:
        """Of the tokens behind the kept ones; None: nobody knows."""
        if self._model is None:
            return None
        if self._recompute is None:
            self._recompute = RecomputeCost.of(self._model, self._link, self._chunk_tokens)
        alone_s = self._recompute.restore_s(num_kept_tokens, num_tokens)
        pace_s = (self._pace_s_per_token or 0.0) * (num_tokens - num_kept_tokens)
        return max(alone_s, pace_s)

    def worth_loading(self, blocks: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """A prefix found in several tiers, without what is sooner computed again than loaded.

        Args:
            blocks: device blocks; None: one to be loaded from the host.
        """
        num_loads = blocks.count(None)
        if not num_loads:
            return blocks
        first = first_missing(blocks)
        recompute_s = self.recompute_s(first * self._block_size, len(blocks) * self._block_size)
        if recompute_s is None or self._tiers.quote.load_s(num_loads) <= recompute_s:
            return blocks
        return blocks[:first]

    def worth_reading(self, num_kept_blocks: int, num_blocks: int) -> bool:
        """Whether blocks behind the kept ones are sooner read from the disk, and loaded, than computed."""
        num_reads = num_blocks - num_kept_blocks
        recompute_s = self.recompute_s(num_kept_blocks * self._block_size, num_blocks * self._block_size)
        quote = self._tiers.quote
        return recompute_s is None or quote.read_s(num_reads) + quote.load_s(num_reads) <= recompute_s

    def worth_storing(self, num_kept_blocks: int, num_blocks: int) -> bool:
        """Whether blocks behind the kept ones are sooner stored and loaded again than computed."""
        num_stores = num_blocks - num_kept_blocks
        recompute_s = self.recompute_s(num_kept_blocks * self._block_size, num_blocks * self._block_size)
        quote = self._tiers.quote
        return recompute_s is None or quote.store_s(num_stores) + quote.load_s(num_stores) <= recompute_s

    def restore_s(self, num_kept: int, num_saved: int, num_tokens: int) -> float:
        """Seconds until `num_tokens` tokens have their keys and values.

        Args:
            num_kept: leading blocks that stay on the device.
            num_saved: leading blocks that are there or on the host.
        """
        num_kept_tokens = min(num_kept * self._block_size, num_tokens - 1)
        computed_s = self.recompute_s(num_kept_tokens, num_tokens) or 0.0
        if num_saved <= num_kept:
            return computed_s
        num_saved_tokens = min(num_saved * self._block_size, num_tokens - 1)
        load_s = self._tiers.quote.load_s(num_saved - num_kept)
        return min(computed_s, load_s + (self.recompute_s(num_saved_tokens, num_tokens) or 0.0))
