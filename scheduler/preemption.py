"""Who gives up its blocks when another lacks some. All or nothing: either enough becomes free, or nobody yields.

Victims are taken by what their preemption costs: first those whose promise is broken or was never one, then those with
the most slack left after they are restored, with the fewest blocks of their own, the newest. Without a latency model
nothing is known of that, and the newest of the lowest class goes first.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence

from scheduler.block_pool import ReleasePreview
from scheduler.config import SchedulerConfig
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.preemption_cost import CostKey, VictimCosts, num_shared_blocks
from scheduler.request import Request
from scheduler.restore_price import RestorePrices
from scheduler.running_set import RunningSet

NEAR_END_BLOCKS = 1
"""A request this close to its last token is spared: it gives everything back soon, and takes one block at most."""
RESUMED_BLOCKS = 2
"""A request that was preempted is spared until it has come this much further than before..."""
RESUMED_S = 1.0
"""... and for so long after its restart: no ping-pong."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Need:
    """What a choice of victims must bring."""

    num_blocks: int
    num_seats: int
    max_victims: int
    keep: frozenset[int] = frozenset()
    """Blocks that are of no use if they become free."""
    counts_tokens: bool = False
    """Whether a block that a victim does not take in this step counts too."""
    num_blocks_if_all: int = 0
    """That many fewer will do if nobody stays."""


class Preemption:
    """Chooses victims; changes nothing. Whoever was preempted `max_preemptions` times is pinned, and never chosen."""

    def __init__(
        self,
        config: SchedulerConfig,
        running: RunningSet,
        kv: KVCacheManager,
        watermark_blocks: int,
        prices: RestorePrices | None = None,
    ) -> None:
        """
        Args:
            prices: what restoring a victim takes; None: nobody knows, and the order is by seniority.
        """
        self._config = config
        self._running = running
        self._kv = kv
        self._watermark_blocks = watermark_blocks
        self._prices = prices

    def victims_for_head(
        self,
        head: Request,
        num_blocks: int,
        shared_blocks: Collection[int],
        max_victims: int,
        now_s: float,
    ) -> list[Request]:
        """Running requests of strictly lower classes that leave so that a waiting one can start in this step.

        Args:
            num_blocks: how many it lacks; negative: how many are to spare. What those who stay take in this step, and
                the watermark, come on top.
            shared_blocks: blocks it shares with others: a victim's reference to one frees nothing for it.

        Returns:
            The cheapest first. Empty where it lacks nothing, or no choice of at most `max_victims` is enough.
        """
        num_running = len(self._running)
        num_seats = num_running + 1 - self._config.max_num_seqs
        # At most one block for each that decodes: where that is there anyway, nobody is looked at.
        if num_seats <= 0 and num_blocks + self._watermark_blocks + num_running <= 0:
            return []
        num_tokens, num_token_blocks = self._taken_before(head)
        num_blocks += num_token_blocks + self._watermark_blocks
        if (num_seats <= 0 and num_blocks <= 0) or num_tokens >= self._config.max_num_batched_tokens:
            return []
        candidates = [r for r in self._eligible(self._running.below(head.rank)) if not self._is_spared(r, now_s)]
        most = heapq.nlargest(max_victims, [len(r.block_ids) + 1 for r in candidates])
        if sum(most) + self._watermark_blocks < num_blocks:
            return []  # whatever they share: before anything is counted block by block
        need = _Need(
            num_blocks, num_seats, max_victims, frozenset(shared_blocks),
            counts_tokens=True, num_blocks_if_all=self._watermark_blocks,
        )  # fmt: skip
        return self._choose(self._by_cost(candidates, now_s), need)

    def victims_for_block(self, request: Request, num_blocks: int, max_victims: int, now_s: float) -> list[Request]:
        """Running requests that leave so that a running one can go on: lower classes by cost, in its own the newest.

        Those that are to be spared come last among their equals, but they come: nobody yields to its junior.

        Returns:
            Empty where no choice of at most `max_victims` is enough; the request is the one to yield then.
        """
        equals: list[Request] = []
        lower: list[Request] = []
        for junior in self._eligible(self._running.juniors(request)):
            (lower if junior.rank > request.rank else equals).append(junior)
        parts = (self._by_cost(lower, now_s), equals)
        ordered = [r for part in parts for r in sorted(part, key=lambda r: self._is_spared(r, now_s))]
        return self._choose(ordered, _Need(num_blocks, 0, max_victims))

    def _eligible(self, candidates: Iterable[Request]) -> Iterator[Request]:
        """Those that may yield, and would give something."""
        pool, max_preemptions = self._kv.pool, self._config.max_preemptions
        for request in candidates:
            is_pinned = request.num_preemptions >= max_preemptions
            if not is_pinned and num_shared_blocks(request, pool) < len(request.block_ids):
                yield request

    def _is_spared(self, request: Request, now_s: float) -> bool:
        """Whether it is nearly done, or came back a moment ago."""
        block_size = self._config.block_size
        num_left = request.num_kv_tokens - request.num_computed_tokens - request.num_scheduled_tokens
        if num_left <= NEAR_END_BLOCKS * block_size:
            return True
        if not request.num_preemptions:
            return False
        if request.num_computed_tokens - request.num_lost_tokens < RESUMED_BLOCKS * block_size:
            return True
        return request.started_s is not None and now_s - request.started_s < RESUMED_S

    def _by_cost(self, candidates: list[Request], now_s: float) -> list[Request]:
        """The cheapest first; what costs the same stays in the order it had."""
        if self._prices is None or len(candidates) < 2:
            return candidates
        tiers = self._kv.tiers
        costs = VictimCosts(
            self._prices,
            self._kv.pool,
            now_s,
            has_cache=self._config.enable_prefix_caching,
            is_saved=tiers.is_on_host if tiers.is_on else None,
        )
        key: dict[Request, CostKey] = {request: costs.key(request) for request in candidates}
        return sorted(candidates, key=key.__getitem__)

    def _choose(self, ordered: Sequence[Request], need: _Need) -> list[Request]:
        return self._cheapest(ordered, need) or self._first_together(ordered, need)

    def _cheapest(self, ordered: Sequence[Request], need: _Need) -> list[Request]:
        """Of all choices that are enough, the one whose costliest victim is cheapest, then the next costliest, ...

        Each victim counts for the blocks that it frees alone; those that only several free together come on top.

        Returns:
            The cheapest first; empty: no choice is enough.
        """
        counts: list[int] = []  # of the first ones, as far as they are needed

        def counted() -> Iterator[int]:
            for victim in ordered:
                counts.append(self._num_freed(victim, ReleasePreview(self._kv.pool, need.keep), need))
                yield counts[-1]

        chosen: list[Request] = []
        num_blocks = need.num_blocks
        end = _num_until_enough(counted(), num_blocks, need.max_victims)
        while end is not None and (num_blocks > 0 or len(chosen) < need.num_seats):
            chosen.append(ordered[end - 1])
            num_blocks -= counts[end - 1]
            end = _num_until_enough(counts[: end - 1], num_blocks, need.max_victims - len(chosen))
        return chosen[::-1] if num_blocks <= 0 and len(chosen) >= need.num_seats else []

    def _first_together(self, ordered: Sequence[Request], need: _Need) -> list[Request]:
        """The first ones in their order, with the blocks that they free only together; empty: they are not enough."""
        preview = ReleasePreview(self._kv.pool, need.keep)
        num_blocks = need.num_blocks
        for num_victims, victim in enumerate(ordered[: need.max_victims], start=1):
            num_blocks -= self._num_freed(victim, preview, need)
            num_spare = need.num_blocks_if_all if num_victims == len(self._running) else 0
            if num_blocks <= num_spare and num_victims >= need.num_seats:
                return list(ordered[:num_victims])
        return []

    def _num_freed(self, victim: Request, preview: ReleasePreview, need: _Need) -> int:
        """Blocks that are there for others if it leaves too: its own, and the one it does not take in this step."""
        return preview.drop(victim.block_ids) + (self._num_blocks_for_token(victim) if need.counts_tokens else 0)

    def _num_blocks_for_token(self, request: Request) -> int:
        """Blocks that a running request takes in this step; prefills have theirs."""
        if request.num_tokens_to_compute != 1:
            return 0
        return self._kv.num_blocks_to_take(request, request.position + 1)

    def _taken_before(self, head: Request) -> tuple[int, int]:
        """What running requests take of the step before a waiting one: tokens of decodes and of prefills due earlier,
        and blocks of decodes.
        """
        num_tokens = num_blocks = 0
        block_size = self._config.block_size
        for request in self._running:
            wanted = request.num_tokens_to_compute
            if wanted == 1:
                num_tokens += 1
                if request.num_computed_tokens + request.num_scheduled_tokens >= len(request.block_ids) * block_size:
                    num_blocks += self._kv.num_blocks_to_take(request, request.position + 1)
            elif request.order < head.order:
                num_tokens += wanted
        return num_tokens, num_blocks


def _num_until_enough(counts: Iterable[int], num_blocks: int, num_victims: int) -> int | None:
    """How many of the counts it takes until the largest `num_victims` of them add up; None: all are not enough."""
    largest: list[int] = []  # a heap
    total = 0
    for index, count in enumerate(counts):
        heapq.heappush(largest, count)
        total += count
        if len(largest) > num_victims:
            total -= heapq.heappop(largest)
        if total >= num_blocks and largest:
            return index + 1
    return None
