"""Prometheus metrics of KV blocks on the host and on the disk, from the statistics that each step's message carries.

Which tier a prefix was found in, and how preempted requests come back, is in `server.engine_metrics`: that happens
without tiers too.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from engine.messages import KVTierStats
from scheduler.kv_transfer import BlockOutcome, TransferKind

_TIERS = ("host", "disk")
_CHOICES = ("load", "recompute")


class KVTierMetrics:
    """Of one engine, through all its lives: what counts from 0 again after a restart goes on here.

    Nothing is exported but zeros while blocks are on the device alone.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._last: dict[tuple[str, ...], float] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"headrace_kv_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"headrace_kv_{name}", text, labels, registry=registry)

        self._blocks = gauge("tier_blocks", "Blocks that a tier holds.", "tier")
        self._limit = gauge("tier_blocks_limit", "Blocks that it may hold.", "tier")
        self._on = gauge("tier_on", "1: in use; 0: there is none, or its failures turned it off for a while.", "tier")
        self._writable = gauge("disk_writable", "0: the disk is full and is only read, or there is none.")
        self._evictions = counter("evictions", "Blocks that left a tier to make room.", "tier")
        self._transfers = counter("transfers", "Blocks moved between tiers, by how that ended.", "kind", "outcome")
        self._bytes = counter("transfer_bytes", "Moved between tiers.", "kind")
        self._busy = counter("transfer_busy_seconds", "The link or the disk was busy with it.", "kind")
        self._choices = counter(
            "hit_choices", "Prefixes found in a cheaper tier, by what was faster by prediction and was done.", "choice"
        )
        self._totals = {
            "num_load_tokens": counter("load_tokens", "Tokens whose blocks requests asked for from the host."),
            "num_failed_loads": counter("failed_loads", "Loads of which a block did not arrive and was computed."),
            "num_verified_blocks": counter("verified_blocks", "Blocks whose checksum was compared."),
        }
        self._speed = gauge("disk_bytes_per_second", "Measured.", "operation")
        for tier in _TIERS:
            for family in (self._blocks, self._limit, self._on, self._evictions):
                family.labels(tier)
        for choice in _CHOICES:
            self._choices.labels(choice)
        for kind in TransferKind:
            self._bytes.labels(kind.value)
            self._busy.labels(kind.value)
            for outcome in BlockOutcome:
                self._transfers.labels(kind.value, outcome.value)

    def forget(self) -> None:
        """The engine's counters begin at 0 again."""
        self._last.clear()

    def observe(self, stats: KVTierStats) -> None:
        """The statistics of one step."""
        self._observe_tier("host", stats.num_host_used, stats.num_host_slots, stats.is_host_on)
        self._observe_tier("disk", stats.num_disk_used, stats.num_disk_blocks, stats.is_disk_on)
        self._writable.set(stats.is_disk_writable)
        self._speed.labels("read").set(stats.disk_read_bytes_per_s)
        self._speed.labels("write").set(stats.disk_write_bytes_per_s)
        for tier, count in stats.num_evictions.items():
            self._add(self._evictions.labels(tier), count, "evictions", tier)
        for kind, counts in stats.num_transfers.items():
            for outcome, count in counts.items():
                self._add(self._transfers.labels(kind, outcome), count, "transfers", kind, outcome)
        for kind, num_bytes in stats.num_bytes.items():
            self._add(self._bytes.labels(kind), num_bytes, "bytes", kind)
        for kind, busy_s in stats.busy_s.items():
            self._add(self._busy.labels(kind), busy_s, "busy", kind)
        for choice, count in zip(_CHOICES, (stats.num_loads, stats.num_recompute_choices), strict=True):
            self._add(self._choices.labels(choice), count, "choices", choice)
        for name, counter in self._totals.items():
            self._add(counter, getattr(stats, name), name)

    def _observe_tier(self, tier: str, num_used: int, limit: int, is_on: bool) -> None:
        self._blocks.labels(tier).set(num_used)
        self._limit.labels(tier).set(limit)
        self._on.labels(tier).set(is_on)

    def _add(self, counter: Counter, total: float, *key: str) -> None:
        last = self._last.get(key, 0.0)
        self._last[key] = total
        counter.inc(total - last if total >= last else total)
