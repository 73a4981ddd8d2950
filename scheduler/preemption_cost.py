"""What a preemption costs: how long the victim takes to be where it was, and what is left of its slack then.

Source: the order of victims is that of QoS-aware schedulers with recomputation (Niyama, Goel et al., 2025; ConServe,
Qiao et al., 2024), with the slack that is left in place of a fixed priority.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import Protocol

from scheduler.block_pool import BlockPool
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkSnapshot
from scheduler.request import BlockHash, Request
from scheduler.step_features import StepFeatures

CostKey = tuple[bool, float, int]
"""Whether its promise may still be kept, seconds it would be late by (negative: slack that is left), blocks of its own:
the smaller, the cheaper."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecomputeCost:
    """By computing the tokens again, in full chunks that have their steps to themselves."""

    s_per_token: float
    s_per_pair: float
    """Of a query and a key."""

    @staticmethod
    def of(model: LatencyModel, link: LinkSnapshot, chunk_tokens: int) -> RecomputeCost:
        """As the model predicts at the mean, for chunks of that many tokens."""
        first_s, second_s = (
            model.mean_s(StepFeatures().with_chunk(chunk_tokens, prefix, samples=False), link)
            for prefix in (0, chunk_tokens)
        )
        s_per_pair = (second_s - first_s) / chunk_tokens**2  # the second chunk has so many pairs more
        return RecomputeCost(first_s / chunk_tokens - s_per_pair * chunk_tokens / 2, s_per_pair)

    def restore_s(self, num_kept_tokens: int, num_tokens: int) -> float:
        """Seconds until `num_tokens` tokens have their keys and values, where the first ones still have them."""
        num_lost = num_tokens - num_kept_tokens
        return num_lost * (self.s_per_token + self.s_per_pair * (num_kept_tokens + num_lost / 2))


class RestoreCost(Protocol):
    """What it takes to bring a victim back."""

    def restore_s(self, num_kept: int, num_saved: int, num_tokens: int) -> float:
        """Seconds from a restart until `num_tokens` tokens have their keys and values.

        Args:
            num_kept: leading blocks that stay on the device.
            num_saved: leading blocks that are there or in a cheaper tier.
        """


class VictimCosts:
    """Of the running requests, at one moment. Changes nothing."""

    def __init__(
        self,
        restore: RestoreCost,
        pool: BlockPool,
        now_s: float,
        *,
        has_cache: bool,
        is_saved: Callable[[BlockHash], bool] | None = None,
    ) -> None:
        """
        Args:
            has_cache: whether a restart finds the blocks that others still use.
            is_saved: whether the host has a block; None: there is no host.
        """
        self._restore = restore
        self._pool = pool
        self._now_s = now_s
        self._has_cache = has_cache
        self._is_saved = is_saved

    def key(self, request: Request) -> CostKey:
        """What is given up if it yields: first the broken promises, then the largest slack."""
        num_shared = num_shared_blocks(request, self._pool)
        can_share = self._has_cache and request.spec.reads_prefix_cache
        num_kept = num_shared if can_share else 0
        num_saved = self._num_saved(request, num_kept) if can_share else 0
        deadlines = request.deadlines
        late_s = self._now_s + self._restore.restore_s(num_kept, num_saved, request.num_tokens) - deadlines.next_s
        is_kept = request.is_protected and not request.is_relegated and not deadlines.is_lost
        return is_kept, late_s, len(request.block_ids) - num_shared

    def _num_saved(self, request: Request, num_kept: int) -> int:
        """Leading blocks that need not be computed again. Saving is from the front: the first that is not ends it."""
        is_saved, hashes = self._is_saved, request.block_hashes
        if is_saved is None:
            return num_kept
        return bisect.bisect_left(hashes, True, lo=min(num_kept, len(hashes)), key=lambda each: not is_saved(each))


def num_shared_blocks(request: Request, pool: BlockPool) -> int:
    """Leading blocks that others use too. Sharing is of prefixes: the first block of its own ends it."""
    block_ids = request.block_ids
    if not block_ids or pool.num_references(block_ids[0]) == 1:
        return 0
    return bisect.bisect_left(block_ids, True, key=lambda block_id: pool.num_references(block_id) == 1)
