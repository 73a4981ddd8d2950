"""Requests that wait for blocks from the disk before their turn comes. They hold no device block meanwhile.

A request fetches once before each start: what has been evicted again by its turn is computed. It never waits for
longer than a slow disk would be worth.

Source: prefetching from the slowest tier while a request is queued, with a timeout from the time that it saves (the
policies of SGLang's HiCache).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection

from scheduler.kv_cache_manager import KVCacheManager
from scheduler.request import BlockHash, Request, RequestStatus
from scheduler.restore_price import RestorePrices
from scheduler.tier_directory import Presence
from scheduler.waiting_queue import WaitingQueue

SLOWNESS = 2.0
"""A disk may take so many times as long as expected..."""
MAX_FETCHES = 16
"""Requests that are fetched for before they come to the head of their class."""
UNKNOWN_S = 1.0
"""... or so long, where neither its speed nor that of computing is known."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Fetch:
    """What one request waits for."""

    request: Request
    transfer_ids: set[int]
    give_up_s: float


class DiskFetch:
    """Owns who waits for which reads; parks them in the queue, and lets them take their turn again."""

    def __init__(self, kv: KVCacheManager, prices: RestorePrices, queue: WaitingQueue) -> None:
        self._kv = kv
        self._prices = prices
        self._queue = queue
        self._fetches: dict[str, _Fetch] = {}
        self._arrived: list[Request] = []
        """Since the last step."""

    def arrived(self, request: Request) -> None:
        """It is new in the queue."""
        if self._kv.tiers.is_on:
            self._arrived.append(request)

    def run(self, now_s: float) -> None:
        """Once a step: whoever has waited for too long takes its turn without; those who arrived are fetched for."""
        for fetch in tuple(self._fetches.values()):
            if fetch.give_up_s <= now_s:
                self._resume(fetch)
        arrived, self._arrived = self._arrived, []
        for request in arrived:
            if len(self._fetches) < MAX_FETCHES and request.status is RequestStatus.WAITING:
                self.begin(request, now_s)

    def begin(self, request: Request, now_s: float) -> bool:
        """Fetch what the disk has of a waiting request's prefix, and park it. False: there is nothing to wait for."""
        tiers = self._kv.tiers
        if not tiers.is_on or request.has_read_disk or not request.trusts_tiers or not request.spec.reads_prefix_cache:
            return False
        hashes = self._kv.hashes_to_find(request)
        num_found = len(self._kv.get_computed_blocks(request))
        num_fetched = sum(1 for _ in itertools.takewhile(self._is_somewhere, hashes[num_found:]))
        if not num_fetched or not self._prices.worth_reading(num_found, num_found + num_fetched):
            return False
        tiers.directory.touch(hashes[:num_found], request.spec.retention)
        fetched = range(num_found, num_found + num_fetched)
        wanted = [(hashes[index], index) for index in fetched if self._is_to_come(hashes[index])]
        transfer_ids = tiers.read(wanted, request.spec.retention)
        if not transfer_ids:
            return False
        request.has_read_disk = True
        request.num_read_tokens = len(wanted) * self._kv.block_size
        self._fetches[request.request_id] = _Fetch(
            request, transfer_ids, now_s + self._patience_s(num_found, num_fetched)
        )
        self._queue.remove(request)
        self._queue.park(request, _key(request))
        return True

    def ended(self, transfer_ids: Collection[int]) -> None:
        """These have ended: whoever waits for nothing else has a turn again."""
        for fetch in tuple(self._fetches.values()):
            fetch.transfer_ids.difference_update(transfer_ids)
            if not fetch.transfer_ids:
                self._resume(fetch)

    def forget(self, request: Request) -> None:
        """It left the queue."""
        self._fetches.pop(request.request_id, None)

    def next_wakeup_s(self) -> float | None:
        """When the first of them has waited for too long."""
        return min((fetch.give_up_s for fetch in self._fetches.values()), default=None)

    def check(self) -> None:
        """Assert that each of them is parked and waits for something."""
        parked = {request.request_id for request in self._queue.parked()}
        assert parked >= self._fetches.keys(), "one that fetches has a turn"
        assert all(fetch.transfer_ids for fetch in self._fetches.values()), "one waits for nothing"

    def _resume(self, fetch: _Fetch) -> None:
        del self._fetches[fetch.request.request_id]
        self._queue.unpark(_key(fetch.request))

    def _patience_s(self, num_found: int, num_fetched: int) -> float:
        block_size = self._kv.block_size
        saved_s = self._prices.recompute_s(num_found * block_size, (num_found + num_fetched) * block_size)
        read_s = SLOWNESS * self._kv.tiers.quote.read_s(num_fetched)
        return max(read_s, UNKNOWN_S if saved_s is None else saved_s)

    def _is_somewhere(self, block_hash: BlockHash) -> bool:
        presence = self._kv.tiers.directory.presence(block_hash)
        return presence is not Presence.ABSENT or self._kv.pool.lookup(block_hash) is not None

    def _is_to_come(self, block_hash: BlockHash) -> bool:
        return self._kv.tiers.directory.presence(block_hash) in (Presence.DISK, Presence.COMING)


def _key(request: Request) -> str:
    return f"disk/{request.request_id}"
