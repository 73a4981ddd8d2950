"""Where the keys and values of a step go, as indices of a block-major cache."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from kernels.attention.base import AttentionMetadata


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    """Where a step's keys and values go."""

    blocks: Tensor
    """[T] int64."""
    offsets: Tensor
    """[T] int64."""
    fresh_blocks: Tensor | None
    """Blocks written from their first slot on, which are zeroed before; None: there is none."""

    def write(self, key: Tensor, value: Tensor, layer_cache: Tensor) -> None:
        """As `StepAttention.write_kv`."""
        if self.fresh_blocks is not None:
            layer_cache.index_fill_(0, self.fresh_blocks, 0)
        layer_cache[:, 0].index_put_((self.blocks, self.offsets), key)
        layer_cache[:, 1].index_put_((self.blocks, self.offsets), value)


def slots_of(metadata: AttentionMetadata, block_size: int) -> Slots:
    """The slots of a step as indices of a cache."""
    blocks = metadata.slot_mapping // block_size
    offsets = metadata.slot_mapping % block_size
    fresh = blocks[offsets == 0]
    return Slots(blocks, offsets, fresh if len(fresh) else None)
