"""Paged attention whose result for a token depends on that token and its context alone, to the last bit.

Every query gets a call of its own, whose shape is a function of its position: neither the batch, nor the chunk the
token came in, nor the length of others can change a tile or an order of summation. Slow, and meant for proofs.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from kernels.attention.base import AttentionMetadata, StepAttention
from kernels.attention.dense_attention import attend_dense
from kernels.attention.slots import Slots, slots_of


class InvariantAttention:
    """Stateless; the arithmetic of `TorchAttention`, one query at a time."""

    def plan(
        self,
        metadata: AttentionMetadata,
        block_size: int,
        dtype: torch.dtype,  # noqa: ARG002 - the protocol's; masks need it, here there is none
        sliding_window: int | None = None,
    ) -> StepAttention:
        """As `AttentionBackend.plan`."""
        return _InvariantStep(slots_of(metadata, block_size), metadata, block_size, sliding_window)


@dataclasses.dataclass(frozen=True, slots=True)
class _InvariantStep:
    slots: Slots
    metadata: AttentionMetadata
    block_size: int
    sliding_window: int | None

    def write_kv(self, key: Tensor, value: Tensor, layer_cache: Tensor) -> None:
        self.slots.write(key, value, layer_cache)

    def attend(self, query: Tensor, layer_cache: Tensor, scale: float, soft_cap: float | None = None) -> Tensor:
        out = torch.empty_like(query)
        token = 0
        lengths = zip(self.metadata.query_lens, self.metadata.context_lens, strict=True)
        for table, (query_len, context_len) in zip(self.metadata.block_tables, lengths, strict=True):
            blocks = table[: -(-context_len // self.block_size)]
            keys, values = (layer_cache[:, part].index_select(0, blocks).flatten(0, 1) for part in (0, 1))
            for end in range(context_len - query_len + 1, context_len + 1):
                start = 0 if self.sliding_window is None else max(0, end - self.sliding_window)
                one = query[token].clone()[None, None]  # a fresh tensor: its alignment is the same for every row
                out[token] = attend_dense(
                    one, keys[None, start:end], values[None, start:end], None, scale, soft_cap
                ).flatten(0, 1)
                token += 1
        return out
