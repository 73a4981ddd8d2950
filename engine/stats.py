"""The record of one step, and the line of statistics in the log."""

from __future__ import annotations

import logging

from engine.messages import OffloadStats, StepStats
from scheduler.output import SchedulerOutput
from scheduler.stats import SchedulerStats

logger = logging.getLogger(__name__)


def step_stats(
    output: SchedulerOutput,
    scheduler: SchedulerStats,
    *,
    step_s: float,
    overhead_s: float,
    num_dropped_tokens: int,
    offload: OffloadStats | None = None,
) -> StepStats:
    """The record of a step that just ended.

    Args:
        num_dropped_tokens: output of aborted choices that the server did not use, since the engine started.
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
            "running %d, waiting %d, prompt %.0f tokens/s, generation %.0f tokens/s, KV blocks %d/%d, preemptions %d",
            stats.num_running,
            stats.num_waiting,
            (stats.prompt_tokens_computed - self._last_prompt_tokens) / elapsed_s,
            (stats.generation_tokens - self._last_generation_tokens) / elapsed_s,
            stats.num_blocks_used,
            stats.num_blocks,
            stats.num_preemptions,
        )
        self._last_s = now_s
        self._last_generation_tokens = stats.generation_tokens
        self._last_prompt_tokens = stats.prompt_tokens_computed
