"""One copy of blocks, or of the same part of each, between a pool of the device and one of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.block_copy import BlockCopier, spans
from offload.transfer import Direction, StreamEvent, TransferClass, check_deadline


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockTransfer:
    """Bytes [first_byte, first_byte + piece_bytes) of block `source_ids[i]` go over those of block `target_ids[i]`.

    `source` is [N, block_bytes] uint8 and `target` [M, block_bytes]; the bytes of a block are neighbours, blocks may be
    apart. The link counts bytes piece after piece and cuts its slices anywhere. Pieces belong to it until the handle is
    done, the rest of the pools does not. `deadline_s` and `after` are those of `Transfer`.

    Raises:
        ValueError: the pools are not as said, an id is not of its pool, a block is written twice, the part is not of a
            block, or the deadline is no time.
    """

    direction: Direction
    transfer_class: TransferClass
    source: Tensor
    source_ids: tuple[int, ...]
    target: Tensor
    target_ids: tuple[int, ...]
    first_byte: int
    piece_bytes: int
    deadline_s: float
    after: StreamEvent | None = None

    def __post_init__(self) -> None:
        _check_pool("source", self.source, self.source_ids)
        _check_pool("target", self.target, self.target_ids)
        if self.source.shape[1] != self.target.shape[1]:
            raise ValueError(
                f"blocks of {self.source.shape[1]:,} bytes into blocks of {self.target.shape[1]:,} bytes; "
                "a transfer is between pools of one layout"
            )
        if len(self.source_ids) != len(self.target_ids):
            raise ValueError(f"{len(self.source_ids)} blocks into the places of {len(self.target_ids)}")
        if len(set(self.target_ids)) != len(self.target_ids):
            raise ValueError("two blocks of a transfer go to one place; each needs its own")
        block_bytes = self.source.shape[1]
        if self.piece_bytes < 1 or not 0 <= self.first_byte <= block_bytes - self.piece_bytes:
            raise ValueError(
                f"{self.piece_bytes:,} bytes from byte {self.first_byte:,} on are no part of a block of "
                f"{block_bytes:,} bytes"
            )
        check_deadline(self.deadline_s)

    @property
    def num_bytes(self) -> int:
        return len(self.source_ids) * self.piece_bytes

    def pieces(self, start: int, end: int) -> Sequence[tuple[Tensor, Tensor]]:
        """As `LinkTransfer` says: one of each block that bytes [start, end) touch."""
        pieces = []
        for index, offset, num_bytes in spans(self.piece_bytes, start, end):
            first = self.first_byte + offset
            part = slice(first, first + num_bytes)
            pieces.append((self.target[self.target_ids[index], part], self.source[self.source_ids[index], part]))
        return pieces

    def copy(self, start: int, end: int, copy_blocks: BlockCopier) -> None:
        """As `LinkTransfer` says."""
        copy_blocks(self, start, end)


def _check_pool(name: str, pool: Tensor, ids: tuple[int, ...]) -> None:
    if pool.dtype != torch.uint8 or pool.dim() != 2 or (pool.shape[1] > 1 and pool.stride(1) != 1):
        raise ValueError(
            f"{name} of a transfer of blocks is {pool.dtype} {tuple(pool.shape)} with strides {pool.stride()}; it must "
            "be uint8 [num_blocks, block_bytes] with the bytes of a block side by side"
        )
    if ids and not (min(ids) >= 0 and max(ids) < pool.shape[0]):
        outside = next(block_id for block_id in ids if not 0 <= block_id < pool.shape[0])
        raise ValueError(f"block {outside} is not of the {name}, which has blocks 0 to {pool.shape[0] - 1}")
