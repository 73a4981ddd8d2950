"""The gated activation of the feed-forward part."""

from __future__ import annotations

import ctypes
import enum

from torch import Tensor

from kernels.native.operand import check, dtype_code
from kernels.native_library import Arguments, NativeLibrary


class Activation(enum.IntEnum):
    """`hr_activation` of headrace.h."""

    SILU = 0
    GELU_TANH = 1


class GateArguments(Arguments):
    OPERATION = "gate"
    _fields_ = (
        ("gate_up", ctypes.c_void_p),
        ("gate_up_stride", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("gate_up_dtype", ctypes.c_int32),
        ("out_dtype", ctypes.c_int32),
        ("activation", ctypes.c_int32),
    )


def gate(library: NativeLibrary, gate_up: Tensor, out: Tensor, activation: Activation = Activation.SILU) -> None:
    """As `kernels.reference.silu_gate` or `gelu_tanh_gate`.

    Args:
        gate_up: [T, 2N] float32, bfloat16 or float16, gate first; rows may be strided.
        out: [T, N] of any of these types; rows may be strided. Overwritten.

    Raises:
        ValueError: a shape or type does not fit.
    """
    num_rows, width = out.shape
    check(gate_up, "gate_up", (num_rows, 2 * width))
    check(out, "out", (num_rows, width))
    library.call(
        GateArguments(
            gate_up=gate_up.data_ptr(),
            gate_up_stride=gate_up.stride(0),
            out=out.data_ptr(),
            out_stride=out.stride(0),
            num_rows=num_rows,
            width=width,
            gate_up_dtype=dtype_code(gate_up, "gate_up"),
            out_dtype=dtype_code(out, "out"),
            activation=activation,
        )
    )
