"""Records of KV tiers with plausible values, for tests of what shows them."""

from __future__ import annotations

import msgspec

from engine.messages import KVTierStats


def kv_tiers(**changes: object) -> KVTierStats:
    """A host tier of 8 slots and a disk of 32 blocks, both on, nothing moved yet; some fields changed."""
    made = KVTierStats(
        num_host_slots=8,
        num_host_used=0,
        num_disk_blocks=32,
        num_disk_used=0,
        is_host_on=True,
        is_disk_on=True,
        is_disk_writable=True,
        hit_tokens={},
        num_evictions={},
        num_preemptions={},
        num_loads=0,
        num_load_tokens=0,
        num_recompute_choices=0,
        num_failed_loads=0,
        num_transfers={},
    )
    return msgspec.structs.replace(made, **changes)
