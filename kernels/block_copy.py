"""Copies of equal pieces of blocks between two pools in main memory: their definition, call by call.

`kernels.native.block_copy` does the same in one native call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor


class BlockPieces(Protocol):
    """Bytes [first_byte, first_byte + piece_bytes) of each block, from row `source_ids[i]` to row `target_ids[i]`.

    The pieces back to back, in this order, are what a copier counts bytes in.
    """

    @property
    def source(self) -> Tensor:
        """[N, block_bytes] uint8; the bytes of a row are neighbours, the rows may be apart."""
        ...

    @property
    def target(self) -> Tensor:
        """[M, block_bytes] uint8, likewise."""
        ...

    @property
    def source_ids(self) -> tuple[int, ...]: ...

    @property
    def target_ids(self) -> tuple[int, ...]: ...

    @property
    def first_byte(self) -> int: ...

    @property
    def piece_bytes(self) -> int: ...


BlockCopier = Callable[[BlockPieces, int, int], None]
"""Copies bytes [start, end) of the pieces; both pools are main memory."""


def spans(piece_bytes: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Cut bytes [start, end) of pieces that lie back to back: (index of a piece, its first byte meant, how many)."""
    while start < end:
        index, offset = divmod(start, piece_bytes)
        num_bytes = min(piece_bytes - offset, end - start)
        yield index, offset, num_bytes
        start += num_bytes


def copy_blocks(pieces: BlockPieces, start: int, end: int) -> None:
    """A `memmove` of the C library for each piece, without the interpreter's lock."""
    source_ptr, source_stride = pieces.source.data_ptr() + pieces.first_byte, pieces.source.stride(0)
    target_ptr, target_stride = pieces.target.data_ptr() + pieces.first_byte, pieces.target.stride(0)
    for index, offset, num_bytes in spans(pieces.piece_bytes, start, end):
        ctypes.memmove(
            target_ptr + pieces.target_ids[index] * target_stride + offset,
            source_ptr + pieces.source_ids[index] * source_stride + offset,
            num_bytes,
        )
