"""Residual sum and root-mean-square norm in one pass."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.native.operand import check, check_vector, dtype_code
from kernels.native_library import Arguments, NativeLibrary


class AddRmsNormArguments(Arguments):
    OPERATION = "add_rms_norm"
    _fields_ = (
        ("hidden", ctypes.c_void_p),
        ("hidden_stride", ctypes.c_int64),
        ("delta", ctypes.c_void_p),
        ("delta_stride", ctypes.c_int64),
        ("post_weight", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("delta_dtype", ctypes.c_int32),
        ("out_dtype", ctypes.c_int32),
    )


def add_rms_norm(
    library: NativeLibrary,
    hidden: Tensor,
    weight: Tensor,
    out: Tensor,
    eps: float,
    delta: Tensor | None = None,
    post_weight: Tensor | None = None,
) -> None:
    """As `kernels.reference.add_rms_norm`: hidden += delta in place, out = norm(hidden).

    Args:
        hidden: [T, N] float32; rows may be strided. Changed where `delta` is given.
        weight: [N] float32.
        out: [T, N] float32, bfloat16 or float16; rows may be strided. Overwritten.
        delta: [T, N] float32, bfloat16 or float16.
        post_weight: [N] float32: `delta` is normalised with it first.

    Raises:
        ValueError: a shape or type does not fit.
    """
    num_rows, width = hidden.shape
    check(hidden, "hidden", (num_rows, width), torch.float32)
    check_vector(weight, "weight", width)
    check(out, "out", (num_rows, width))
    arguments = AddRmsNormArguments(
        hidden=hidden.data_ptr(),
        hidden_stride=hidden.stride(0),
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        num_rows=num_rows,
        width=width,
        eps=eps,
        out_dtype=dtype_code(out, "out"),
    )
    if delta is not None:
        check(delta, "delta", (num_rows, width))
        arguments.delta = delta.data_ptr()
        arguments.delta_stride = delta.stride(0)
        arguments.delta_dtype = dtype_code(delta, "delta")
    if post_weight is not None:
        check_vector(post_weight, "post_weight", width)
        arguments.post_weight = post_weight.data_ptr()
    library.call(arguments)
