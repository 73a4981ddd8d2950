"""Sizes of the KV region and the copy of blocks."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import KVCache, bytes_per_block, bytes_per_token, num_blocks_for
from scheduler.output import BlockCopy
from tests.unit.engine.fake_decoder import FakeConfig

CONFIG = FakeConfig(num_layers=3, num_kv_heads=2, head_dim=8)


def test_bytes_are_those_of_the_region() -> None:
    cache = KVCache(CONFIG, torch.bfloat16, num_blocks=5, block_size=4)
    assert cache.region.shape == (5, 3, 2, 4, 2, 8)
    assert cache.num_bytes == 5 * bytes_per_block(CONFIG, torch.bfloat16, 4)
    assert bytes_per_token(CONFIG, torch.bfloat16) == 3 * 2 * 2 * 8 * 2


def test_as_many_blocks_as_fit() -> None:
    size = bytes_per_block(CONFIG, torch.float32, 16)
    assert num_blocks_for(CONFIG, torch.float32, 16, 10 * size) == 10
    assert num_blocks_for(CONFIG, torch.float32, 16, 11 * size - 1) == 10


def test_memory_for_no_block_is_an_error_that_names_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"100 bytes .* takes 6144 bytes.*--kv-cache-memory"):
        num_blocks_for(CONFIG, torch.float32, 16, 100)


def test_a_copied_block_equals_its_source_in_all_layers_and_nothing_else_changes() -> None:
    cache = KVCache(CONFIG, torch.float32, num_blocks=4, block_size=2)
    cache.region.copy_(torch.randn(cache.region.shape, generator=torch.Generator().manual_seed(0)))
    before = cache.region.clone()
    cache.copy_blocks((BlockCopy(source=1, target=3), BlockCopy(source=3, target=0)))
    assert torch.equal(cache.region[3], before[1])
    assert torch.equal(cache.region[0], before[1])  # in order: the second copy sees the first
    assert torch.equal(cache.region[1:3], before[1:3])


def test_the_border_says_which_blocks_there_are_and_new_ones_are_cleared() -> None:
    size = bytes_per_block(CONFIG, torch.float32, 2)
    memory = torch.full((5 * size + 100,), 0xDB, dtype=torch.uint8)
    cache = KVCache(CONFIG, torch.float32, num_blocks=5, block_size=2, memory=memory)
    assert cache.region.shape[0] == 5 and cache.region.data_ptr() == memory.data_ptr()
    cache.set_border(2)
    cache.region.fill_(1.0)
    assert memory[2 * size :].eq(0xDB).all(), "beyond the border"
    same = cache.region
    cache.set_border(2)
    assert cache.region is same
    cache.set_border(4)
    assert cache.region[:2].eq(1.0).all() and cache.region[2:].eq(0.0).all()
    assert memory[4 * size :].eq(0xDB).all()
    with pytest.raises(ValueError, match="6 KV blocks in force, there is memory for 0 to 5"):
        cache.set_border(6)
