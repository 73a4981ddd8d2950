"""The record of one step, and the line of statistics in the log."""

from __future__ import annotations

import logging

from engine.kv_bytes import KVBytes
from engine.messages import KVTierStats, OffloadStats, StepStats
from scheduler.output import SchedulerOutput
from scheduler.stats import SchedulerStats, TierStats

logger = logging.getLogger(__name__)


def step_stats(
    output: SchedulerOutput,
    scheduler: SchedulerStats,
    *,
    step_s: float,
    overhead_s: float,
    num_dropped_tokens: int,
    offload: OffloadStats | None = None,
    kv_bytes: KVBytes | None = None,
) -> StepStats:
    """The record of a step that just ended.

    Args:
        num_dropped_tokens: output of aborted choices that the server did not use, since the engine started.
        kv_bytes: what the transfers of KV blocks moved; has a meaning only where the scheduler has tiers.
    """
    return StepStats(
        step_id=output.step_id,
        step_s=step_s,
        overhead_s=overhead_s,
        predicted_s=output.predicted_s,
        budget_s=output.budget_s,
        reasons=output.reasons,
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_waiting_by_class=scheduler.num_waiting_by_class,
        num_blocks_used=scheduler.num_blocks_used,
        num_blocks=scheduler.num_blocks,
        num_cached_blocks=scheduler.num_cached_blocks,
        prompt_tokens_computed=scheduler.prompt_tokens_computed,
        prompt_tokens_cached=scheduler.prompt_tokens_cached,
        recomputed_tokens=scheduler.recomputed_tokens,
        generation_tokens=scheduler.generation_tokens,
        wasted_tokens=scheduler.discarded_tokens + num_dropped_tokens,
        num_preemptions=scheduler.num_preemptions,
        prefix_cache_queries=scheduler.prefix_cache_queries,
        prefix_cache_hits=scheduler.prefix_cache_hits,
        promise_margin=scheduler.promises.margin,
        num_promises_kept=scheduler.promises.num_kept,
        num_promises_broken=scheduler.promises.num_broken,
        offload=offload,
        kv_tiers=None if scheduler.tiers is None else kv_tier_stats(scheduler.tiers, kv_bytes or KVBytes()),
    )


def kv_tier_stats(tiers: TierStats, kv_bytes: KVBytes) -> KVTierStats:
    """The record of the tiers: what the scheduler counts, and what their bytes came to."""
    return KVTierStats(
        num_host_slots=tiers.num_host_slots,
        num_host_used=tiers.num_host_used,
        num_disk_blocks=tiers.num_disk_blocks,
        num_disk_used=tiers.num_disk_used,
        is_host_on=tiers.is_host_on,
        is_disk_on=tiers.is_disk_on,
        is_disk_writable=tiers.is_disk_writable,
        hit_tokens=tiers.hit_tokens,
        num_evictions=tiers.num_evictions,
        num_preemptions=tiers.num_preemptions,
        num_loads=tiers.num_loads,
        num_load_tokens=tiers.num_load_tokens,
        num_recompute_choices=tiers.num_recompute_choices,
        num_failed_loads=tiers.num_failed_loads,
        num_transfers=tiers.num_transfers,
        block_bytes=kv_bytes.block_bytes,
        num_bytes=kv_bytes.num_bytes,
        busy_s=kv_bytes.busy_s,
        num_verified_blocks=kv_bytes.num_verified_blocks,
        disk_read_bytes_per_s=kv_bytes.disk_read_bytes_per_s,
        disk_write_bytes_per_s=kv_bytes.disk_write_bytes_per_s,
    )


class StatsLine:
    """Logs one line of statistics at most every `interval_s` seconds, while there are steps."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._last_s: float | None = None
        self._last_generation_tokens = 0
        self._last_prompt_tokens = 0

    def observe(self, stats: StepStats, now_s: float) -> None:
        """Note a step that ended at `now_s`."""
        if self._last_s is None:
            self._last_s = now_s
        elapsed_s = now_s - self._last_s
        if elapsed_s < self._interval_s:
            return
        logger.info(
            "running %d, waiting %d, prompt %.0f tokens/s, generation %.0f tokens/s, KV blocks %d/%d%s, preemptions %d",
            stats.num_running,
            stats.num_waiting,
            (stats.prompt_tokens_computed - self._last_prompt_tokens) / elapsed_s,
            (stats.generation_tokens - self._last_generation_tokens) / elapsed_s,
            stats.num_blocks_used,
            stats.num_blocks,
            "" if stats.kv_tiers is None else _tier_text(stats.kv_tiers),
            stats.num_preemptions,
        )
        self._last_s = now_s
        self._last_generation_tokens = stats.generation_tokens
        self._last_prompt_tokens = stats.prompt_tokens_computed


class DiskRoomLog:
    """Warns once of each change of what the disk may hold: a smaller cache is slower, and nothing else says why."""

    def __init__(self) -> None:
        self._last: KVTierStats | None = None

    def observe(self, tiers: KVTierStats | None) -> None:
        """Note a step; None: there are no tiers."""
        last, self._last = self._last, tiers
        if last is None or tiers is None:
            return
        before, now = last.num_disk_blocks, tiers.num_disk_blocks
        mib = now * tiers.block_bytes / 2**20
        if last.is_disk_writable and not tiers.is_disk_writable:
            logger.warning(
                "the disk was full again after KV blocks were deleted: it is read only until the server starts again, "
                "with %d blocks (room for %d, %.1f MiB); free space there, or lower --disk-size",
                tiers.num_disk_used, now, mib,
            )  # fmt: skip
        elif now < before:
            logger.warning(
                "the disk is full: room for %d KV blocks there, %.1f MiB, instead of %d; more is tried later", now, mib,
                before,
            )  # fmt: skip
        elif now > before:
            logger.warning("the disk may hold more again: %d KV blocks, %.1f MiB, instead of %d", now, mib, before)


def _tier_text(tiers: KVTierStats) -> str:
    """How full each tier is, and what is wrong with it."""
    host = f" + host {tiers.num_host_used}/{tiers.num_host_slots}{'' if tiers.is_host_on else ' (off)'}"
    if not tiers.num_disk_blocks:
        return host
    trouble = " (off)" if not tiers.is_disk_on else "" if tiers.is_disk_writable else " (read only)"
    return f"{host} + disk {tiers.num_disk_used}/{tiers.num_disk_blocks}{trouble}"
