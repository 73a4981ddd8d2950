"""The record of the tiers on its way to the server."""

from __future__ import annotations

import dataclasses

import msgspec

from engine.kv_bytes import KVBytes
from engine.messages import KVTierStats, StepOutputs, decode_to_server, encode
from engine.stats import kv_tier_stats, step_stats
from scheduler.output import SchedulerOutput
from scheduler.stats import SchedulerStats, TierStats

TIERS = TierStats(
    num_host_slots=8,
    num_host_used=3,
    num_disk_blocks=32,
    num_disk_used=5,
    is_host_on=True,
    is_disk_on=True,
    is_disk_writable=False,
    hit_tokens={"device": 64, "host": 32, "disk": 16},
    num_evictions={"host": 2, "disk": 1},
    num_preemptions={"swap": 4, "free": 3, "recompute": 6},
    num_loads=7,
    num_load_tokens=48,
    num_recompute_choices=9,
    num_failed_loads=10,
    num_transfers={"load": {"done": 11, "corrupt": 12}},
)
BYTES = KVBytes(
    block_bytes=4096,
    num_bytes={"load": 8192},
    busy_s={"load": 0.5},
    num_verified_blocks=13,
    disk_read_bytes_per_s=1e9,
    disk_write_bytes_per_s=2e9,
)
SCHEDULER = SchedulerStats(
    num_running=1,
    num_waiting=2,
    num_waiting_by_class={"standard": 2},
    num_blocks=16,
    num_blocks_used=4,
    num_cached_blocks=1,
    prompt_tokens_computed=100,
    prompt_tokens_cached=112,
    prompt_tokens_shared=0,
    recomputed_tokens=0,
    generation_tokens=50,
    discarded_tokens=0,
    num_preemptions=13,
    num_expired=0,
    prefix_cache_queries=200,
    prefix_cache_hits=112,
    tiers=TIERS,
)
OUTPUT = SchedulerOutput(step_id=1, now_s=0.0, scheduled=())


def test_the_record_says_everything_that_scheduler_and_bytes_know() -> None:
    known = {name: getattr(TIERS, name) for name in (f.name for f in dataclasses.fields(TIERS))}
    known |= {name: getattr(BYTES, name) for name in (f.name for f in dataclasses.fields(BYTES))}
    assert msgspec.structs.asdict(kv_tier_stats(TIERS, BYTES)) == known


def test_it_crosses_the_process_boundary_unchanged() -> None:
    stats = step_stats(OUTPUT, SCHEDULER, step_s=0.1, overhead_s=0.01, num_dropped_tokens=0, kv_bytes=BYTES)
    arrived = decode_to_server(encode(StepOutputs(stats=stats)))
    assert isinstance(arrived, StepOutputs)
    assert arrived.stats.kv_tiers == kv_tier_stats(TIERS, BYTES)


def test_without_tiers_there_is_no_record_whatever_the_bytes() -> None:
    scheduler = dataclasses.replace(SCHEDULER, tiers=None)
    stats = step_stats(OUTPUT, scheduler, step_s=0.1, overhead_s=0.01, num_dropped_tokens=0, kv_bytes=BYTES)
    assert stats.kv_tiers is None


def test_tiers_that_moved_nothing_have_zeros() -> None:
    stats = step_stats(OUTPUT, SCHEDULER, step_s=0.1, overhead_s=0.01, num_dropped_tokens=0)
    assert isinstance(stats.kv_tiers, KVTierStats)
    assert stats.kv_tiers.num_bytes == {} and stats.kv_tiers.num_verified_blocks == 0
