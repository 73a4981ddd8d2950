"""The statistics of tiers, put together."""

from __future__ import annotations

from scheduler.kv_tiers import KVTiers
from scheduler.stats import TierStats


def tier_stats(tiers: KVTiers, block_size: int) -> TierStats | None:
    """Of now; None: there is nothing beside the device."""
    if not tiers.is_on:
        return None
    config, directory, use = tiers.config, tiers.directory, tiers.use
    return TierStats(
        num_host_slots=config.num_host_slots,
        num_host_used=directory.num_host_used,
        num_disk_blocks=directory.disk_capacity,
        num_disk_used=directory.num_disk_blocks,
        is_host_on=directory.is_host_on,
        is_disk_on=directory.is_disk_on,
        is_disk_writable=directory.is_disk_writable,
        hit_tokens={tier.value: count for tier, count in use.hit_tokens.items()},
        num_evictions={tier.value: count for tier, count in directory.counters.evictions.items()},
        num_preemptions=dict(use.num_preemptions),
        num_loads=use.num_loads,
        num_load_tokens=use.num_loaded_blocks * block_size,
        num_recompute_choices=use.num_recompute_choices,
        num_failed_loads=use.num_failed_loads,
        num_transfers=use.num_transfers,
    )
