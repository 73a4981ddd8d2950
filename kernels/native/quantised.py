"""Packing quantised matrices."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.linear import packed_bytes
from kernels.native.operand import check
from kernels.native_library import Arguments, NativeLibrary
from kernels.quantised.tiled_blocks import TiledBlocks


class PackArguments(Arguments):
    OPERATION = "pack"
    _fields_ = (
        ("blocks", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


def pack_blocks(
    library: NativeLibrary, weight_format: TiledBlocks, blocks: Tensor, in_features: int, out: Tensor
) -> None:
    """As `TiledBlocks.pack` of uint8.

    Args:
        blocks: [R, stored_row_bytes] uint8, contiguous.
        out: uint8, contiguous, whole tiles.

    Raises:
        ValueError: a shape or type does not fit.
    """
    num_rows = len(blocks)
    row_bytes = weight_format.block_type.stored_row_bytes(in_features)
    check(blocks, "blocks", (num_rows, row_bytes), torch.uint8)
    if not blocks.is_contiguous():
        raise ValueError("blocks is not contiguous")
    check(out, "out", (packed_bytes(weight_format, num_rows, in_features),), torch.uint8)
    library.call(
        PackArguments(
            blocks=blocks.data_ptr(),
            out=out.data_ptr(),
            num_rows=num_rows,
            in_features=in_features,
            format=weight_format.block_type.native_code,
        )
    )
