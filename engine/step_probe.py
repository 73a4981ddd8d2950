"""Runs steps of any composition on a model's decoder, over a KV cache that holds no request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.kv_cache import KVCache
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.profile_grid import StepShape
from kernels.attention.base import AttentionMetadata

_KV_VALUE = 0.01
"""Any that is not 0: memory that nobody has written is one shared page, and reading it costs nothing."""


class StepProbe:
    """Sequences take the blocks of a KV cache in turn, and share them once there are more tokens than it holds."""

    def __init__(
        self, decoder: Decoder | NativeDecoder, num_blocks: int, block_size: int, kv_cache: KVCache | None = None
    ) -> None:
        """
        Args:
            num_blocks: that may be overwritten, the first of the cache.
            kv_cache: of a runner that does not compute meanwhile; None: one of its own.
        """
        self._decoder = decoder
        self._num_blocks = num_blocks
        self._block_size = block_size
        self.kv_cache = kv_cache or KVCache(decoder.config, decoder.dtype, num_blocks, block_size)
        self.kv_cache.region[:num_blocks].fill_(_KV_VALUE)

    @property
    def num_layers(self) -> int:
        return self._decoder.config.num_layers

    def step(self, shape: StepShape) -> Callable[[], None]:
        """What computes all layers for such a step, every tensor of it made beforehand."""
        token_ids = torch.zeros(shape.load.num_tokens, dtype=torch.int64)
        metadata = self._metadata(shape)

        def run() -> None:
            self._decoder.forward(token_ids, self.kv_cache.region, metadata)

        return run

    def head(self, num_rows: int) -> Callable[[], None]:
        """What computes logits of that many rows."""
        hidden: Tensor = torch.full((num_rows, self._decoder.config.hidden_size), 0.5, dtype=self._decoder.dtype)

        def run() -> None:
            self._decoder.logits(hidden)

        return run

    def _metadata(self, shape: StepShape) -> AttentionMetadata:
        size, num_sequences = self._block_size, shape.num_sequences
        blocks_each = -(-shape.context_each // size)
        tables = np.arange(num_sequences * blocks_each).reshape(num_sequences, -1) % self._num_blocks
        positions = np.arange(shape.context_each - shape.tokens_each, shape.context_each)
        slots = tables[:, positions // size] * size + positions % size
        return AttentionMetadata(
            query_lens=(shape.tokens_each,) * num_sequences,
            context_lens=(shape.context_each,) * num_sequences,
            block_tables=torch.from_numpy(tables),
            slot_mapping=torch.from_numpy(slots.reshape(-1)),
            positions=torch.from_numpy(np.tile(positions, num_sequences)),
        )
