"""Copies of pieces of blocks between two pools in main memory, in one call."""

from __future__ import annotations

import ctypes
from array import array

from kernels.block_copy import BlockPieces
from kernels.native_library import Arguments, NativeLibrary


class CopyBlocksArguments(Arguments):
    OPERATION = "copy_blocks"
    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("source_ids", ctypes.c_void_p),
        ("target_ids", ctypes.c_void_p),
        ("source_stride", ctypes.c_int64),
        ("target_stride", ctypes.c_int64),
        ("piece_bytes", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("num_bytes", ctypes.c_int64),
    )


class NativeBlockCopy:
    """`kernels.block_copy.BlockCopier`; any number of threads may call it while the library computes.

    One call copies all pieces, and the interpreter's lock is let go and asked for again once, not at each of them.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library

    def __call__(self, pieces: BlockPieces, start: int, end: int) -> None:
        """Copy bytes [start, end) of the pieces.

        Raises:
            ValueError: there are no such bytes.
        """
        piece_bytes = pieces.piece_bytes
        if not 0 <= start <= end <= len(pieces.source_ids) * piece_bytes:
            total = len(pieces.source_ids) * piece_bytes
            raise ValueError(f"bytes {start:,} to {end:,} of pieces that have {total:,}")
        first, offset = divmod(start, piece_bytes)
        touched = slice(first, -(-end // piece_bytes))
        source_ids, target_ids = array("q", pieces.source_ids[touched]), array("q", pieces.target_ids[touched])
        self._library.call_beside(
            CopyBlocksArguments(
                source=pieces.source.data_ptr() + pieces.first_byte,
                target=pieces.target.data_ptr() + pieces.first_byte,
                source_ids=source_ids.buffer_info()[0],
                target_ids=target_ids.buffer_info()[0],
                source_stride=pieces.source.stride(0),
                target_stride=pieces.target.stride(0),
                piece_bytes=piece_bytes,
                offset=offset,
                num_bytes=end - start,
            )
        )
