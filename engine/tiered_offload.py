"""Streamed weights and KV tiers over one link, as the step loop sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from engine.kv_bytes import KVBytes
from engine.kv_tier_manager import KVTierManager
from engine.link_report import link_direction
from engine.messages import OffloadStats
from engine.offload_manager import OffloadManager
from engine.result_bell import ResultBell
from offload.host_tier import HostTier
from offload.link import Link
from scheduler.kv_transfer import TransferResult
from scheduler.link import LinkSnapshot
from scheduler.output import SchedulerOutput


class TieredOffload:
    """An `OffloadManager` of KV tiers beside that of the weights."""

    def __init__(
        self,
        weights: OffloadManager,
        tiers: KVTierManager,
        link: Link,
        host_tier: HostTier,
        bell: ResultBell,
    ) -> None:
        """
        Args:
            link: of the KV blocks, and of the weights where some are streamed; closed with this.
            host_tier: of the KV blocks; closed with this.
            bell: that the tiers ring.
        """
        self._weights = weights
        self._tiers = tiers
        self._link = link
        self._host_tier = host_tier
        self._bell = bell

    def snapshot(self) -> LinkSnapshot:
        """As `OffloadManager` says."""
        status = self._link.snapshot()
        return dataclasses.replace(
            self._weights.snapshot(),
            h2d=link_direction(status.h2d),
            d2h=link_direction(status.d2h),
            coupling=status.coupling,
            kv_link_share=status.kv_link_share,
            disk_read_bytes_per_s=self._tiers.disk_read_bytes_per_s,
        )

    def begin(self, output: SchedulerOutput, now_s: float) -> None:
        """As `OffloadManager` says. Blocks first: what a step waits for in its first layer comes before its weights."""
        self._tiers.begin(output, now_s)
        self._weights.begin(output, now_s)

    def end(self) -> None:
        """As `OffloadManager` says."""
        try:
            self._weights.end()
        finally:
            self._tiers.end()

    def collect(self) -> tuple[TransferResult, ...]:
        """As `OffloadManager` says."""
        return self._tiers.collect()

    def void_requests(self, output: SchedulerOutput) -> frozenset[str]:
        """As `OffloadManager` says."""
        return self._tiers.failed_requests(output) if output.gated_loads else frozenset()

    def has_results(self) -> bool:
        """As `OffloadManager` says."""
        return self._tiers.has_results()

    def call_on_results(self, wake: Callable[[], None]) -> None:
        """As `OffloadManager` says."""
        self._bell.call(wake)

    def verify(self) -> None:
        """As `OffloadManager` says."""
        self._weights.verify()

    def wakeup_s(self) -> float | None:
        """As `OffloadManager` says; copies of blocks ring by themselves."""
        return self._weights.wakeup_s()

    def stats(self) -> OffloadStats | None:
        """As `OffloadManager` says."""
        return self._weights.stats()

    def kv_bytes(self) -> KVBytes:
        """As `OffloadManager` says."""
        return self._tiers.kv_bytes()

    def close(self) -> None:
        """As `OffloadManager` says."""
        self._bell.call(None)
        self._link.close()  # first: what is queued need not arrive
        self._tiers.close()
        self._weights.close()
        self._host_tier.close()

    def check(self) -> None:
        """Assert that the books of the copies, of the link and of the host's memory agree."""
        self._tiers.check()
        self._link.check()
        self._host_tier.check()
