"""The device's KV blocks: one block-major region, its size and the copy of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kernels.attention.base import cache_shape
from offload.host_memory import allocate_host
from scheduler.output import BlockCopy


class KVShape(Protocol):
    """What a model's configuration says of its keys and values."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def bytes_per_token(config: KVShape, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return config.num_layers * 2 * config.num_kv_heads * config.head_dim * dtype.itemsize


def bytes_per_block(config: KVShape, dtype: torch.dtype, block_size: int) -> int:
    """Bytes of one block of `block_size` tokens in all layers."""
    return block_size * bytes_per_token(config, dtype)


def num_blocks_for(config: KVShape, dtype: torch.dtype, block_size: int, memory_bytes: int) -> int:
    """How many blocks fit `memory_bytes`.

    Raises:
        ValueError: not even one.
    """
    block_bytes = bytes_per_block(config, dtype, block_size)
    num_blocks = memory_bytes // block_bytes
    if num_blocks < 1:
        raise ValueError(
            f"{memory_bytes} bytes of KV cache hold no block: one of {block_size} tokens takes {block_bytes} bytes; "
            f"raise --kv-cache-memory or lower --block-size"
        )
    return num_blocks


class KVCache:
    """Owns the blocks [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]; the decoder writes their slots.

    Over memory that is shared with weights, blocks from the border on are the weights' for now.
    """

    def __init__(
        self, config: KVShape, dtype: torch.dtype, num_blocks: int, block_size: int, memory: Tensor | None = None
    ) -> None:
        """
        Args:
            num_blocks: the most there can be; all of them are in force at first.
            memory: for `num_blocks`, [n] uint8; None: of its own.
        """
        shape = cache_shape(num_blocks, config.num_layers, block_size, config.num_kv_heads, config.head_dim)
        num_bytes = shape.numel() * dtype.itemsize
        # Zeros: a masked key may still be multiplied by 0, so it must be finite.
        memory = allocate_host(num_bytes) if memory is None else memory[:num_bytes]
        self._blocks = memory.view(dtype).view(shape)
        self.region = self._blocks
        """The blocks in force; another tensor each time that the border moves."""

    def set_border(self, num_blocks: int) -> None:
        """Between steps: only blocks below `num_blocks` exist from now on. What weights left in new ones is cleared.

        Raises:
            ValueError: there never are so many.
        """
        if not 0 <= num_blocks <= len(self._blocks):
            raise ValueError(f"{num_blocks} KV blocks in force, there is memory for 0 to {len(self._blocks)}")
        if num_blocks == len(self.region):
            return
        self._blocks[len(self.region) : num_blocks].zero_()
        self.region = self._blocks[:num_blocks]

    @property
    def num_bytes(self) -> int:
        return self.region.nbytes

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks one after the other, so that a later copy sees what an earlier one wrote."""
        for copy in copies:
            self.region[copy.target].copy_(self.region[copy.source])
