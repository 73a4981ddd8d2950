"""What the ends of block copies mean for requests: those that waited go on, those whose load failed start again."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.disk_fetch import DiskFetch
from scheduler.kv_tiers import KVTiers
from scheduler.kv_transfer import TransferResult
from scheduler.running_set import RunningSet
from scheduler.waiting_queue import WaitingQueue
from scheduler.yielding import Yielding


class TransferIntake:
    """Owns nothing."""

    def __init__(
        self, tiers: KVTiers, fetch: DiskFetch, queue: WaitingQueue, running: RunningSet, yielding: Yielding
    ) -> None:
        self._tiers = tiers
        self._fetch = fetch
        self._queue = queue
        self._running = running
        self._yielding = yielding

    def require(self, results: Sequence[TransferResult]) -> None:
        """Raises ValueError: as `KVTiers.require`."""
        self._tiers.require(results)

    def take_in(self, results: Sequence[TransferResult]) -> None:
        """Copies have ended. Whoever computes upon one that failed starts again from what is left."""
        if not results:
            return
        ended, failed_loads = self._tiers.end(results)
        self._fetch.ended(ended)
        for request in tuple(self._running):
            if not request.load_ids:
                continue
            if not failed_loads.isdisjoint(request.load_ids):
                request.num_failed_loads += 1
                self._yielding.restart(request)
                continue
            request.load_ids -= ended
            if not request.load_ids and request.num_computed_tokens >= request.num_prompt_tokens:
                self._queue.unpark(request.request_id)
