"""Counters of the engine since it started, and the record of one step made from them."""

from __future__ import annotations

import dataclasses
import logging

from scheduler.scheduler import SchedulerStats

from engine.live_group import LiveChoice
from engine.messages import StepStats
from scheduler.output import ScheduledRequest, SchedulerOutput

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class EngineCounters:
    """Sums over all steps; in tokens where nothing else is said."""

    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    recomputed_tokens: int = 0
    generation_tokens: int = 0
    wasted_tokens: int = 0
    num_preemptions: int = 0
    """Requests."""
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0

    def count_computed(self, choice: LiveChoice, scheduled: ScheduledRequest) -> None:
        """Count the tokens of one request in a step that succeeded."""
        start = scheduled.num_computed_tokens
        end = start + scheduled.num_tokens
        known = choice.max_computed_tokens
        if start < known:
            self.recomputed_tokens += min(end, known) - start
            start = known
        num_prompt_tokens = choice.sequence.num_prompt_tokens
        if start < num_prompt_tokens:
            self.prompt_tokens_computed += max(min(end, num_prompt_tokens) - start, 0)
        choice.max_computed_tokens = max(known, end)

    def count_admission(self, choice: LiveChoice, num_cached_tokens: int) -> None:
        """Count the first start of a choice that looks its prompt up itself."""
        self.prompt_tokens_cached += num_cached_tokens
        if choice.sequence.sampling.num_prompt_logprobs is None:
            self.prefix_cache_queries += choice.sequence.num_prompt_tokens
            self.prefix_cache_hits += num_cached_tokens

    def step_stats(
        self, output: SchedulerOutput, scheduler: SchedulerStats, step_s: float, overhead_s: float
    ) -> StepStats:
        """The record of a step that just ended."""
        return StepStats(
            step_id=output.step_id,
            step_s=step_s,
            overhead_s=overhead_s,
            predicted_s=output.predicted_s,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_waiting_by_class=scheduler.num_waiting_by_class,
            num_blocks_used=scheduler.num_blocks_used,
            num_blocks=scheduler.num_blocks,
            num_cached_blocks=scheduler.num_cached_blocks,
            prompt_tokens_computed=self.prompt_tokens_computed,
            prompt_tokens_cached=self.prompt_tokens_cached,
            recomputed_tokens=self.recomputed_tokens,
            generation_tokens=self.generation_tokens,
            wasted_tokens=self.wasted_tokens,
            num_preemptions=self.num_preemptions,
            prefix_cache_queries=self.prefix_cache_queries,
            prefix_cache_hits=self.prefix_cache_hits,
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
