"""Who gives up its blocks when another lacks some. All or nothing: either enough becomes free, or nobody yields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from scheduler.block_pool import ReleasePreview
from scheduler.config import SchedulerConfig
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.request import Request
from scheduler.running_set import RunningSet


class Preemption:
    """Chooses victims; changes nothing. Whoever was preempted `max_preemptions` times is pinned, and never chosen."""

    def __init__(self, config: SchedulerConfig, running: RunningSet, kv: KVCacheManager, watermark_blocks: int) -> None:
        self._config = config
        self._running = running
        self._kv = kv
        self._watermark_blocks = watermark_blocks

    def victims_for_head(
        self, head: Request, num_blocks: int, shared_blocks: Collection[int], max_victims: int
    ) -> list[Request]:
        """Running requests of strictly lower classes that leave so that a waiting one can start in this step.

        Args:
            num_blocks: how many it lacks; negative: how many are to spare. What those who stay take in this step, and
                the watermark, come on top.
            shared_blocks: blocks it shares with others: a victim's reference to one frees nothing for it.

        Returns:
            Empty where it lacks nothing, or no choice of at most `max_victims` is enough.
        """
        if self._num_tokens_before(head) >= self._config.max_num_batched_tokens:
            return []
        num_seats = len(self._running) + 1 - self._config.max_num_seqs
        num_blocks += sum(map(self._num_blocks_for_token, self._running))
        if num_seats <= 0 and num_blocks + self._watermark_blocks <= 0:
            return []
        preview = ReleasePreview(self._kv.pool, shared_blocks)
        victims: list[Request] = []
        for victim in self._unpinned(self._running.below(head.rank)):
            if len(victims) == max_victims:
                break
            victims.append(victim)
            num_blocks -= preview.drop(victim.block_ids) + self._num_blocks_for_token(victim)
            num_watermark_blocks = self._watermark_blocks if len(victims) < len(self._running) else 0
            if num_blocks + num_watermark_blocks <= 0 and len(victims) >= num_seats:
                return victims
        return []

    def victims_for_block(self, request: Request, num_blocks: int, max_victims: int) -> list[Request]:
        """Running requests that leave so that a running one can go on: lower classes first, in its own the newest.

        Returns:
            Empty where no choice of at most `max_victims` is enough; the request is the one to yield then.
        """
        preview = ReleasePreview(self._kv.pool)
        victims: list[Request] = []
        for victim in self._unpinned(self._running.juniors(request)):
            if len(victims) == max_victims:
                break
            victims.append(victim)
            num_blocks -= preview.drop(victim.block_ids)
            if num_blocks <= 0:
                return victims
        return []

    def _unpinned(self, candidates: Iterable[Request]) -> Iterator[Request]:
        return (r for r in candidates if r.num_preemptions < self._config.max_preemptions)

    def _num_blocks_for_token(self, request: Request) -> int:
        """Blocks that a running request takes in this step; prefills have theirs."""
        if request.num_tokens_to_compute != 1:
            return 0
        return self._kv.num_blocks_to_take(request, request.position + 1)

    def _num_tokens_before(self, head: Request) -> int:
        """Tokens of the step that running requests get before a waiting one: decodes, and prefills due earlier."""
        wanted = ((r, r.num_tokens_to_compute) for r in self._running)
        return sum(n for r, n in wanted if n == 1 or r.order < head.order)
