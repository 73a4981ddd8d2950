"""Caches with tiers, a link and a machine whose times are easy to add up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scheduler.kv_cache_manager import KVCacheManager
from scheduler.kv_transfer import BlockOutcome, KVTransfer, TierConfig, TransferResult
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkDirection, LinkSnapshot
from scheduler.ramp import Ramp
from scheduler.request import BlockHash, Request
from scheduler.tier_directory import TierDirectory
from tests.scheduler_builders import BLOCK_SIZE

BLOCK_BYTES = 1000
DONE = BlockOutcome.DONE


def make_link(
    h2d: float = 1e6, d2h: float = 1e6, *, queued_load_bytes: int = 0, queued_store_bytes: int = 0, **options: Any
) -> LinkSnapshot:
    """A block takes 1 ms each way."""
    return LinkSnapshot(
        LinkDirection(h2d, h2d, queued_kv_load_bytes=queued_load_bytes),
        LinkDirection(d2h, d2h, queued_kv_store_bytes=queued_store_bytes),
        **options,
    )


def make_latency(**changed: Any) -> LatencyModel:
    """A step takes 1 ms a token of prefill; decodes are free, and so is everything else."""
    nothing = Ramp(0.0, (1.0,), (0.0,))
    values: dict[str, Any] = {"rows": nothing, "samples": nothing, "s_per_prefill_token": 1e-3}
    return LatencyModel(LatencyCoefficients(**(values | changed)))


def make_tiered(num_blocks: int = 16, num_host_slots: int = 16, **options: Any) -> KVCacheManager:
    """A pool of blocks of 4 tokens over host slots."""
    config = TierConfig(num_host_slots, block_bytes=BLOCK_BYTES, **options)
    return KVCacheManager(num_blocks, BLOCK_SIZE, True, config)


def put_on_host(directory: TierDirectory, block_hashes: Iterable[BlockHash], priority: int = 1) -> None:
    """As if they had been stored before."""
    for block_hash in block_hashes:
        assert directory.begin_store(block_hash, priority) is not None
        directory.end_store(block_hash, DONE)


def compute(kv: KVCacheManager, request: Request, num_tokens: int) -> None:
    """Give it room for all it knows, with what the device has of it, and compute its first tokens."""
    if not request.block_ids:
        assert kv.allocate_slots(request, request.num_tokens, kv.get_computed_blocks(request)) is not None
    request.num_computed_tokens = num_tokens
    kv.commit(request)


def forget_cached(kv: KVCacheManager) -> None:
    """Free blocks hold nothing any more, as if others had used them."""
    kv.pool.release(kv.pool.allocate(kv.pool.num_free_blocks))


def end_of(transfer: KVTransfer, outcome: BlockOutcome = DONE) -> TransferResult:
    """All its blocks end alike."""
    return TransferResult(transfer.transfer_id, (outcome,) * len(transfer.block_hashes))


def end_all(kv: KVCacheManager, transfers: Sequence[KVTransfer], outcome: BlockOutcome = DONE) -> None:
    """They end, and their results are taken in."""
    results = [end_of(transfer, outcome) for transfer in transfers]
    kv.tiers.require(results)
    kv.tiers.end(results)
