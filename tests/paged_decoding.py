"""Drives a decoder directly: several sequences over one cache, in steps of any composition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from kernels.attention.base import AttentionMetadata, cache_shape


class PagedDecoding:
    """Blocks are handed out in random order; the cache starts as NaN, so that reading past what was written shows."""

    def __init__(
        self,
        decoder: Decoder | NativeDecoder,
        num_blocks: int,
        block_size: int = 16,
        seed: int = 0,
        cache: Tensor | None = None,
    ) -> None:
        """`cache` is used as it is where it is given; it may be changed for another view of the same blocks."""
        config = decoder.config
        shape = cache_shape(num_blocks, config.num_layers, block_size, config.num_kv_heads, config.head_dim)
        self._decoder = decoder
        self.cache = torch.full(shape, float("nan"), dtype=decoder.dtype) if cache is None else cache
        self._block_size = block_size
        self._free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def step(self, tokens: Mapping[int, Sequence[int]], gate: LayerGate = OPEN_GATE) -> dict[int, Tensor]:
        """Append tokens to sequences, by number; returns the hidden state [tokens, hidden] of each."""
        positions = [self._grow(sequence, len(new)) for sequence, new in tokens.items()]
        tables = [self._tables[sequence] for sequence in tokens]
        width = max(len(table) for table in tables)
        padded = torch.tensor([table + [0] * (width - len(table)) for table in tables])
        slots = [
            row[position // self._block_size] * self._block_size + position % self._block_size
            for row, position in zip(padded, positions, strict=True)
        ]
        metadata = AttentionMetadata(
            query_lens=tuple(len(new) for new in tokens.values()),
            context_lens=tuple(self._lengths[sequence] for sequence in tokens),
            block_tables=padded,
            slot_mapping=torch.cat(slots),
            positions=torch.cat(positions),
        )
        token_ids = torch.tensor([token for new in tokens.values() for token in new])
        hidden = self._decoder.forward(token_ids, self.cache, metadata, gate)
        return dict(zip(tokens, hidden.split(metadata.query_lens), strict=True))

    def logits(self, tokens: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """As `step`, with the logits [tokens, vocab] float32 of every token."""
        return {sequence: self._decoder.logits(hidden) for sequence, hidden in self.step(tokens).items()}

    def _grow(self, sequence: int, count: int) -> Tensor:
        """Positions of the next `count` tokens, with blocks for them."""
        start = self._lengths.get(sequence, 0)
        table = self._tables.setdefault(sequence, [])
        while len(table) * self._block_size < start + count:
            table.append(self._free.pop())
        self._lengths[sequence] = start + count
        return torch.arange(start, start + count)

    def blocks(self, sequence: int) -> tuple[int, ...]:
        """Where the keys and values of a sequence lie."""
        return tuple(self._tables[sequence])
