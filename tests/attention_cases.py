"""Random steps of paged attention: lengths, block tables over a shuffled pool, and a cache that is NaN where unused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernels.attention.base import AttentionMetadata, cache_shape


@dataclasses.dataclass(frozen=True)
class Case:
    """A step. Sequence i brings query_lens[i] tokens after cached_lens[i] that lie in the cache."""

    query_lens: tuple[int, ...]
    cached_lens: tuple[int, ...]
    block_size: int
    num_kv_heads: int
    group: int
    head_dim: int
    sliding_window: int | None
    soft_cap: float | None
    seed: int

    @property
    def context_lens(self) -> tuple[int, ...]:
        return tuple(q + c for q, c in zip(self.query_lens, self.cached_lens, strict=True))

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group


@st.composite
def cases(
    draw: st.DrawFn,
    head_dims: Sequence[int],
    max_group: int = 3,
    block_sizes: Sequence[int] = (1, 3, 4, 16),
    max_queries: int = 12,
    max_cached: int = 40,
) -> Case:
    num_sequences = draw(st.integers(1, 5))
    query_lens = draw(
        st.lists(st.one_of(st.just(1), st.integers(1, max_queries)), min_size=num_sequences, max_size=num_sequences)
    )
    cached_lens = draw(st.lists(st.integers(0, max_cached), min_size=num_sequences, max_size=num_sequences))
    return Case(
        tuple(query_lens),
        tuple(cached_lens),
        block_size=draw(st.sampled_from(block_sizes)),
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, max_group)),
        head_dim=draw(st.sampled_from(head_dims)),
        sliding_window=draw(st.one_of(st.none(), st.integers(1, max_cached // 2))),
        soft_cap=draw(st.sampled_from([None, None, 5.0])),
        seed=draw(st.integers(0, 2**31)),
    )


def metadata_of(case: Case, generator: torch.Generator) -> tuple[AttentionMetadata, int]:
    """Block tables over a shuffled pool somewhat larger than needed, and the pool's size."""
    needed = [-(-length // case.block_size) for length in case.context_lens]
    num_blocks = sum(needed) + 2
    shuffled = torch.randperm(num_blocks, generator=generator)
    tables = torch.zeros(len(needed), max(needed), dtype=torch.int64)
    start = 0
    for index, count in enumerate(needed):
        tables[index, :count] = shuffled[start : start + count]
        start += count
    positions = [torch.arange(cached, cached + q) for q, cached in zip(case.query_lens, case.cached_lens, strict=True)]
    slots = [
        tables[index][position // case.block_size] * case.block_size + position % case.block_size
        for index, position in enumerate(positions)
    ]
    return (
        AttentionMetadata(case.query_lens, case.context_lens, tables, torch.cat(slots), torch.cat(positions)),
        num_blocks,
    )


def filled_cache(
    case: Case, metadata: AttentionMetadata, num_blocks: int, generator: torch.Generator, *, zeroed: bool = True
) -> Tensor:
    """[B, 3, 2, P, KH, D] float32: random where keys and values of earlier steps lie, NaN elsewhere.

    Args:
        zeroed: blocks in use are zero past what lies in them, as the backends in PyTorch leave them.
    """
    shape = cache_shape(num_blocks, 3, case.block_size, case.num_kv_heads, case.head_dim)
    cache = torch.full(shape, float("nan"))
    for table, cached in zip(metadata.block_tables, case.cached_lens, strict=True):
        for index in range(-(-cached // case.block_size)):
            used = min(case.block_size, cached - index * case.block_size)
            if zeroed:
                cache[table[index]] = 0.0
            cache[table[index], :, :, :used] = torch.randn(cache[0, :, :, :used].shape, generator=generator)
    return cache
