"""What a paged-attention backend is given and must do.

Axes: S sequences of a step, T tokens of a step (all sequences back to back), H query heads, KH key/value heads,
D head dimension, B blocks of the pool, P tokens in a block.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The shape of a step, built once and read by every layer. The lists are the host's copy: no device sync."""

    query_lens: tuple[int, ...]
    """[S] tokens of each sequence in this step, at least 1."""
    context_lens: tuple[int, ...]
    """[S] tokens each sequence has after this step: the last query attends to that many."""
    block_tables: Tensor
    """[S, max blocks of the step] int64; entries past a sequence's blocks are 0 and never read as keys."""
    slot_mapping: Tensor
    """[T] int64, block_id * P + offset of each token of the step."""
    positions: Tensor
    """[T] int64."""

    @property
    def num_tokens(self) -> int:
        return sum(self.query_lens)


class StepAttention(Protocol):
    """Attention of one step over a block-major cache: what all layers of it share was computed when it was planned."""

    def write_kv(self, key: Tensor, value: Tensor, layer_cache: Tensor) -> None:
        """Write the step's keys and values into their slots, in place.

        The first write into a block zeroes the rest of it: what an earlier owner left there, were it NaN, must not
        reach a sum with weight zero. The cache may therefore start uninitialised.

        Args:
            key, value: [T, KH, D], the cache's dtype.
            layer_cache: [B, 2, P, KH, D], a strided view of one layer (the block stride spans all layers).
        """

    def attend(self, query: Tensor, layer_cache: Tensor, scale: float, soft_cap: float | None = None) -> Tensor:
        """Attention of the step's queries over everything written so far.

        Args:
            query: [T, H, D].
            layer_cache: as in `write_kv`, already holding this step's keys and values.
            scale: factor on the dot products.
            soft_cap: scores become soft_cap * tanh(score / soft_cap); None: unchanged.

        Returns:
            [T, H, D], the query's dtype. Accumulates in float32.
        """


class AttentionBackend(Protocol):
    """Causal attention over a block-major cache, grouped-query, optional sliding window and soft cap."""

    def plan(
        self, metadata: AttentionMetadata, block_size: int, dtype: torch.dtype, sliding_window: int | None = None
    ) -> StepAttention:
        """Prepare a step, once for all layers of equal window.

        Args:
            metadata: the step.
            block_size: P.
            dtype: of queries and cache.
            sliding_window: a query sees at most that many last positions, itself included; None: all.
        """


def layer_view(cache: Tensor, layer: int) -> Tensor:
    """[B, 2, P, KH, D] view of one layer of a cache [B, layers, 2, P, KH, D]."""
    return cache[:, layer]


def cache_shape(num_blocks: int, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int) -> torch.Size:
    """Block-major: a block holds `block_size` tokens of all layers and is one contiguous range of bytes."""
    return torch.Size((num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim))
