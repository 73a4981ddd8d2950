"""What a waiting request needs in order to run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from scheduler.kv_cache_manager import KVCacheManager
from scheduler.request import Request, RequestStatus
from scheduler.restore_price import RestorePrices


@dataclasses.dataclass(frozen=True, slots=True)
class StartNeeds:
    """Of one request, at one moment."""

    leader: Request | None
    """Hands over the prompt it computed; None: the start is from the prefix cache."""
    computed_blocks: tuple[int | None, ...]
    """Device blocks with its prefix; None: one to be loaded from the host."""
    num_slots: int
    """Tokens to have room for."""
    num_free_blocks: int
    """Free blocks it uses up."""
    is_loading: bool = False
    """Some of its prefix is, or will be, on its way to the device."""
    is_trimmed: bool = False
    """More of its prefix was found in a cheaper tier, and is sooner computed than loaded."""

    @property
    def shared_blocks(self) -> frozenset[int]:
        """Those it takes over from others."""
        return frozenset(block_id for block_id in self.computed_blocks if block_id is not None)


class StartPlanner:
    """Looks at live requests and blocks; changes nothing."""

    def __init__(
        self, requests: Mapping[str, Request], kv: KVCacheManager, max_preemptions: int, prices: RestorePrices
    ) -> None:
        """
        Args:
            requests: the live ones, by id; owned by the scheduler.
        """
        self._requests = requests
        self._kv = kv
        self._prices = prices
        self._max_preemptions = max_preemptions

    def leader_of(self, request: Request) -> Request | None:
        """The running request whose prompt this one takes over; None: it computes its own."""
        if request.spec.leader_id is None or request.num_lives > 0:
            return None
        leader = self._requests.get(request.spec.leader_id)
        return leader if leader is not None and leader.status is RequestStatus.RUNNING else None

    def needs_of(self, request: Request, *, others_leave: bool = False) -> StartNeeds:
        """What it would need now. A pinned request gets all it may ever need, so that it never lacks a block.

        Args:
            others_leave: for it. Of the prefix that it finds, what lies beyond the border goes with them: count as far
                as that.
        """
        if (leader := self.leader_of(request)) is not None:
            return StartNeeds(leader, (), request.num_tokens, 1)
        is_pinned = request.num_preemptions >= self._max_preemptions
        num_slots = request.spec.num_kv_tokens if is_pinned else request.num_tokens
        found = self._kv.get_computed_blocks(request)
        if not found:
            return StartNeeds(None, (), num_slots, self._kv.num_blocks_to_take(request, num_slots))
        computed_blocks = self._prices.worth_loading(found)
        if others_leave:
            limit = self._kv.pool.limit
            computed_blocks = tuple(itertools.takewhile(lambda b: b is None or b < limit, computed_blocks))
        num_free_blocks = self._kv.num_blocks_to_take(request, num_slots, computed_blocks)
        return StartNeeds(
            None,
            computed_blocks,
            num_slots,
            num_free_blocks,
            is_loading=self._is_loading(request, computed_blocks),
            is_trimmed=len(computed_blocks) < len(found),
        )

    def _is_loading(self, request: Request, computed_blocks: tuple[int | None, ...]) -> bool:
        tiers = self._kv.tiers
        if not tiers.is_on:
            return False
        return None in computed_blocks or bool(tiers.load_ids(request.block_hashes[: len(computed_blocks)]))
