"""Paged attention by the native kernels.

A token's result is a function of its query, its position and its own context alone, to the bit: batch, chunk and number
of threads do not matter, so this backend serves `--batch-invariant` as well.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from kernels.attention.base import AttentionMetadata, StepAttention
from kernels.attention.slots import Slots, slots_of
from kernels.native.attention import AttentionWork, attend, plan_attention
from kernels.native_library import NativeLibrary


class NativeAttention:
    """Plans steps of a decoder's shape for the threads of one library."""

    def __init__(self, library: NativeLibrary, num_heads: int, num_kv_heads: int) -> None:
        self._library = library
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads

    def plan(
        self,
        metadata: AttentionMetadata,
        block_size: int,
        dtype: torch.dtype,  # noqa: ARG002 - the protocol's; the work is the same for all
        sliding_window: int | None = None,
    ) -> StepAttention:
        """As `AttentionBackend.plan`.

        Raises:
            ValueError: the lengths do not fit the block tables.
        """
        work = plan_attention(
            self._library,
            metadata.query_lens,
            metadata.context_lens,
            metadata.block_tables.numpy(),
            self._num_heads,
            self._num_kv_heads,
            block_size,
            sliding_window,
        )
        return _NativeStep(self._library, slots_of(metadata, block_size), work)


@dataclasses.dataclass(frozen=True, slots=True)
class _NativeStep:
    library: NativeLibrary
    slots: Slots
    work: AttentionWork

    def write_kv(self, key: Tensor, value: Tensor, layer_cache: Tensor) -> None:
        self.slots.write(key, value, layer_cache)

    def attend(self, query: Tensor, layer_cache: Tensor, scale: float, soft_cap: float | None = None) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype)
        attend(self.library, self.work, query, layer_cache, out, scale, soft_cap)
        return out
