"""Host slots of KV blocks and their checksums."""

from __future__ import annotations

import pytest
import torch

from offload.host_tier import HostMemoryError, HostTier
from offload.kv_file import checksum
from offload.kv_host_pool import KVHostPool
from tests.kv_tiers import block_of


def test_slots_are_the_tiers_memory() -> None:
    tier = HostTier(3000, available_bytes=lambda: None)
    pool = KVHostPool(tier, 6, 500)
    assert tier.ledger()["kv"] == 3000 and pool.blocks.shape == (6, 500)
    assert (pool.num_slots, pool.block_bytes) == (6, 500)
    pool.blocks[2] = block_of(1, 500)
    assert bytes(pool.bytes_of(2)) == block_of(1, 500).numpy().tobytes()
    pool.close()
    pool.close()
    assert tier.used_bytes == 0
    with pytest.raises(HostMemoryError, match="kv needs 3,500 bytes"):
        KVHostPool(tier, 7, 500)
    with pytest.raises(ValueError, match="0 slots of 500 bytes"):
        KVHostPool(tier, 0, 500)


def test_a_slot_is_intact_when_it_holds_what_was_sealed() -> None:
    pool = KVHostPool(HostTier(), 2, 500)
    assert pool.checksum_of(0) is None and not pool.is_intact(0), "nothing was put there"
    pool.blocks[0] = block_of(1, 500)
    pool.seal(0)
    assert pool.is_intact(0) and pool.checksum_of(0) == checksum(pool.bytes_of(0))
    for byte in (0, 250, 499):
        pool.blocks[0, byte] ^= 1
        assert not pool.is_intact(0)
        pool.blocks[0, byte] ^= 1
    pool.unseal(0)
    assert not pool.is_intact(0)
    pool.close()


def test_after_the_end_a_late_thread_changes_nothing() -> None:
    pool = KVHostPool(HostTier(), 2, 500)
    block = memoryview(block_of(1, 500).numpy().tobytes())
    pool.fill(1, block, checksum(block))
    assert pool.is_intact(1) and torch.equal(pool.blocks[1], block_of(1, 500))
    copy = memoryview(bytearray(500))
    pool.copy_to(1, copy)
    assert copy == block
    pool.close()
    other = memoryview(block_of(2, 500).numpy().tobytes())
    pool.fill(1, other, checksum(other))
    pool.copy_to(0, copy)
    assert torch.equal(pool.blocks[1], block_of(1, 500)) and copy == block
