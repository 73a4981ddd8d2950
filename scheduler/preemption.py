"""Who gives up its blocks when another lacks some. All or nothing: either enough becomes free, or nobody yields."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler.block_pool import BlockPool, ReleasePreview
from scheduler.config import SchedulerConfig
from scheduler.request import Request
from scheduler.running_set import RunningSet


class Preemption:
    """Chooses victims; changes nothing. Whoever was preempted `max_preemptions` times is pinned, and never chosen."""

    def __init__(self, config: SchedulerConfig, running: RunningSet, pool: BlockPool, watermark_blocks: int) -> None:
        self._config = config
        self._running = running
        self._pool = pool
        self._watermark_blocks = watermark_blocks

    def victims_for_head(
        self, head: Request, num_blocks: int, shared_blocks: Collection[int], max_victims: int
    ) -> list[Request]:
        """Running requests of strictly lower classes that leave so that a waiting one can start.

        Args:
            num_blocks: how many it lacks, the watermark apart; negative: how many are to spare.
            shared_blocks: blocks it shares with others: a victim's reference to one frees nothing for it.

        Returns:
            Empty where it lacks nothing or no choice of at most `max_victims` is enough.
        """
        num_seats = len(self._running) + 1 - self._config.max_num_seqs
        if num_seats <= 0 and num_blocks + self._watermark_blocks <= 0:
            return []
        return self._choose(
            self._running.below(head.rank), num_blocks, num_seats, self._watermark_blocks, shared_blocks, max_victims
        )

    def victims_for_block(self, request: Request, num_blocks: int, max_victims: int) -> list[Request]:
        """Running requests that leave so that a running one can go on: lower classes first, in its own the newest.

        Returns:
            Empty where no choice of at most `max_victims` is enough; the request is the one to yield then.
        """
        return self._choose(self._running.juniors(request), num_blocks, 0, 0, (), max_victims)

    def _choose(
        self,
        candidates: Iterable[Request],
        num_blocks: int,
        num_seats: int,
        num_watermark_blocks: int,
        shared_blocks: Collection[int],
        max_victims: int,
    ) -> list[Request]:
        """The fewest candidates, in their order, that free enough. The watermark is for whoever is left running."""
        preview = ReleasePreview(self._pool, shared_blocks)
        victims: list[Request] = []
        num_freed = 0
        for candidate in candidates:
            if len(victims) == max_victims:
                break
            if candidate.num_preemptions >= self._config.max_preemptions:
                continue
            victims.append(candidate)
            num_freed += preview.drop(candidate.block_ids)
            num_wanted = num_blocks + (num_watermark_blocks if len(victims) < len(self._running) else 0)
            if num_freed >= num_wanted and len(victims) >= num_seats:
                return victims
        return []
