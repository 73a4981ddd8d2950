"""What the scheduler counts: gauges of the moment and totals since it was made."""

from __future__ import annotations

import dataclasses

from scheduler.kv_cache_manager import KVCacheManager
from scheduler.waiting_queue import WaitingQueue


@dataclasses.dataclass(frozen=True, slots=True)
class PromiseStats:
    """How promises are kept, on the scheduler's own clock."""

    margin: float | None = None
    """Share of the time that they leave unused; None: none are made."""
    num_kept: int = 0
    num_broken: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TierStats:
    """KV blocks beside the device: gauges of now and totals since the scheduler was made.

    Keys of the dictionaries are the values of `scheduler.kv_transfer`'s enums; what never happened may be absent.
    """

    num_host_slots: int = 0
    num_host_used: int = 0
    num_disk_blocks: int = 0
    """How many the disk may hold: fewer than were asked for where it was found full; 0: there is no disk."""
    num_disk_used: int = 0
    is_host_on: bool = False
    """False: there is none, or its failures turned it off for a while."""
    is_disk_on: bool = False
    is_disk_writable: bool = False
    """False with `is_disk_on`: a full disk is read only."""
    hit_tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    """Prompt tokens found in the prefix cache, by tier ("device", "host", "disk"); their sum is the cache's hits."""
    num_evictions: dict[str, int] = dataclasses.field(default_factory=dict)
    """Blocks that made room for others, by tier ("host", "disk")."""
    num_preemptions: dict[str, int] = dataclasses.field(default_factory=dict)
    """By what brings the blocks back: "swap" (stored because of it), "free" (they were stored before) or "recompute".
    Counted when they are taken away."""
    num_loads: int = 0
    """Loads from the host to the device that requests asked for."""
    num_load_tokens: int = 0
    num_recompute_choices: int = 0
    """Prefixes found in a cheaper tier that were computed again, because that was faster than to load them."""
    num_failed_loads: int = 0
    """Loads of which a block did not arrive: what was left was computed."""
    num_transfers: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    """Blocks, by kind of their transfer ("store", "load", "write", "read", "delete",
    "touch") and by outcome."""


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Taken after a step. Tokens of the prompt: computed + cached + shared, each once, whatever was preempted."""

    num_running: int
    num_waiting: int
    num_waiting_by_class: dict[str, int]
    """By granted class; every class is there."""
    num_blocks: int
    num_blocks_used: int
    num_cached_blocks: int
    """Free blocks that still hold a prefix."""
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    """Found in the prefix cache at the first start; those are `prefix_cache_hits`."""
    prompt_tokens_shared: int
    """Taken over from the leader of the same group."""
    recomputed_tokens: int
    """Computed again after a preemption."""
    generation_tokens: int
    discarded_tokens: int
    """Sampled for a request that had finished or lost its blocks meanwhile."""
    num_preemptions: int
    num_expired: int
    """Choices that expired before they started."""
    prefix_cache_queries: int
    prefix_cache_hits: int
    """Both in tokens."""
    promises: PromiseStats = PromiseStats()
    tiers: TierStats | None = None
    """None: there is no tier beside the device."""


@dataclasses.dataclass(slots=True)
class SchedulerCounters:
    """The totals, while they grow."""

    prompt_tokens_computed: int = 0
    prompt_tokens_shared: int = 0
    recomputed_tokens: int = 0
    generation_tokens: int = 0
    discarded_tokens: int = 0
    num_preemptions: int = 0
    num_expired: int = 0

    def count_computed(self, start: int, end: int, num_lost_tokens: int, num_prompt_tokens: int) -> None:
        """Tokens start..end-1 of a request were computed; those below `num_lost_tokens` not for the first time."""
        first_new = min(max(start, num_lost_tokens), end)
        self.recomputed_tokens += first_new - start
        self.prompt_tokens_computed += max(0, min(end, num_prompt_tokens) - first_new)

    def snapshot(
        self,
        num_running: int,
        queue: WaitingQueue,
        kv: KVCacheManager,
        promises: PromiseStats,
        tiers: TierStats | None = None,
    ) -> SchedulerStats:
        """The totals so far with the gauges of now."""
        return SchedulerStats(
            num_running=num_running,
            num_waiting=queue.num_requests,
            num_waiting_by_class=dict(queue.num_requests_by_class),
            num_blocks=kv.pool.limit,
            num_blocks_used=kv.pool.num_used_blocks,
            num_cached_blocks=kv.pool.num_cached_blocks,
            prompt_tokens_computed=self.prompt_tokens_computed,
            prompt_tokens_cached=kv.num_hit_tokens,
            prompt_tokens_shared=self.prompt_tokens_shared,
            recomputed_tokens=self.recomputed_tokens,
            generation_tokens=self.generation_tokens,
            discarded_tokens=self.discarded_tokens,
            num_preemptions=self.num_preemptions,
            num_expired=self.num_expired,
            prefix_cache_queries=kv.num_queried_tokens,
            prefix_cache_hits=kv.num_hit_tokens,
            promises=promises,
            tiers=tiers,
        )
