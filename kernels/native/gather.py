"""Rows of a packed matrix: the embedding."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.native.linear import native_code
from kernels.native.operand import check
from kernels.native_library import Arguments, NativeLibrary
from kernels.packed_matrix import PackedMatrix


class GatherArguments(Arguments):
    OPERATION = "gather"
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("format", ctypes.c_int32),
    )


def gather(library: NativeLibrary, matrix: PackedMatrix, rows: Tensor, out: Tensor, scale: float = 1.0) -> None:
    """out[i] = scale * row rows[i] of the matrix.

    Args:
        matrix: [out_features, in_features] of a native format.
        rows: [R] int64, contiguous, each in 0..out_features-1.
        out: [R, in_features] float32; rows may be strided. Overwritten.

    Raises:
        ValueError: a shape, type or row does not fit.
    """
    num_rows = len(rows)
    check(rows, "rows", (num_rows,), torch.int64)
    check(out, "out", (num_rows, matrix.in_features), torch.float32)
    if num_rows and (int(rows.min()) < 0 or int(rows.max()) >= matrix.out_features):
        raise ValueError(f"rows are {int(rows.min())} to {int(rows.max())}, the matrix has {matrix.out_features}")
    library.call(
        GatherArguments(
            weight=matrix.data.data_ptr(),
            rows=rows.data_ptr(),
            out=out.data_ptr(),
            out_stride=out.stride(0),
            num_rows=num_rows,
            in_features=matrix.in_features,
            scale=scale,
            format=native_code(matrix.weight_format),
        )
    )
