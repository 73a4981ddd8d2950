"""Products with matrices in any native format."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.linear import WeightFormat
from kernels.native.activation import Activation
from kernels.native.operand import DTYPE_CODES, check, check_vector, dtype_code
from kernels.native_library import Arguments, NativeLibrary
from kernels.packed_matrix import PackedMatrix


class LinearArguments(Arguments):
    OPERATION = "linear"
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("x_dtype", ctypes.c_int32),
        ("out_dtype", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("accumulate", ctypes.c_int32),
    )


class GatedLinearArguments(Arguments):
    OPERATION = "gated_linear"
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("gate", ctypes.c_void_p),
        ("up", ctypes.c_void_p),
        ("gate_bias", ctypes.c_void_p),
        ("up_bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("x_dtype", ctypes.c_int32),
        ("out_dtype", ctypes.c_int32),
        ("gate_format", ctypes.c_int32),
        ("up_format", ctypes.c_int32),
        ("activation", ctypes.c_int32),
    )


def linear(
    library: NativeLibrary,
    x: Tensor,
    matrix: PackedMatrix,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    accumulate: bool = False,
) -> None:
    """As `kernels.reference.linear`: out = x @ weight^T + bias, or with `accumulate` out += that.

    Args:
        x: [T, in_features] float32, bfloat16 or float16; rows may be strided.
        matrix: [out_features, in_features] of a native format.
        out: [T, out_features] of any of these types, float32 with `accumulate`; rows may be strided.
        bias: [out_features] float32.

    Raises:
        ValueError: a shape, type or size does not fit, or no native kernel takes the format.
    """
    num_rows, out_features, in_features = len(x), matrix.out_features, matrix.in_features
    check(x, "x", (num_rows, in_features))
    check(out, "out", (num_rows, out_features), *([torch.float32] if accumulate else []))
    arguments = LinearArguments(
        x=x.data_ptr(),
        x_stride=x.stride(0),
        weight=matrix.data.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        num_rows=num_rows,
        in_features=in_features,
        out_features=out_features,
        x_dtype=dtype_code(x, "x"),
        out_dtype=dtype_code(out, "out"),
        format=native_code(matrix.weight_format),
        accumulate=accumulate,
    )
    if bias is not None:
        check_vector(bias, "bias", out_features)
        arguments.bias = bias.data_ptr()
    library.call(arguments)


class Head:
    """A matrix whose products are float32: logits."""

    def __init__(self, library: NativeLibrary, matrix: PackedMatrix, dtype: torch.dtype) -> None:
        """
        Args:
            matrix: [vocab, hidden].
            dtype: of the hidden states.

        Raises:
            ValueError: no native kernel takes the format.
        """
        self._library, self._matrix, self._dtype = library, matrix, dtype
        self._arguments = LinearArguments(
            x_stride=matrix.in_features,
            weight=matrix.data.data_ptr(),
            out_stride=matrix.out_features,
            in_features=matrix.in_features,
            out_features=matrix.out_features,
            x_dtype=DTYPE_CODES[dtype],
            out_dtype=DTYPE_CODES[torch.float32],
            format=native_code(matrix.weight_format),
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] → [R, vocab] float32.

        Raises:
            ValueError: a shape or type does not fit.
        """
        if not hidden.is_contiguous():
            hidden = hidden.contiguous()
        num_rows = len(hidden)
        check(hidden, "hidden", (num_rows, self._matrix.in_features), self._dtype)
        logits = torch.empty(num_rows, self._matrix.out_features)
        arguments = self._arguments
        arguments.x, arguments.out, arguments.num_rows = hidden.data_ptr(), logits.data_ptr(), num_rows
        self._library.call(arguments)
        return logits


def gated_linear(
    library: NativeLibrary,
    x: Tensor,
    gate: PackedMatrix,
    up: PackedMatrix,
    out: Tensor,
    biases: tuple[Tensor, Tensor] | None = None,
    activation: Activation = Activation.SILU,
) -> None:
    """out = activation(x @ gate^T) * (x @ up^T), `linear` and `gate` without rounding in between.

    Args:
        x, out: as for `linear`.
        gate, up: [out_features, in_features] of native formats.
        biases: of gate and of up, [out_features] float32 each.

    Raises:
        ValueError: a shape or type does not fit, or no native kernel takes a format.
    """
    num_rows, out_features, in_features = len(x), gate.out_features, gate.in_features
    check(x, "x", (num_rows, in_features))
    check(out, "out", (num_rows, out_features))
    if (up.out_features, up.in_features) != (out_features, in_features):
        raise ValueError(f"up is [{up.out_features}, {up.in_features}], gate [{out_features}, {in_features}]")
    arguments = GatedLinearArguments(
        x=x.data_ptr(),
        x_stride=x.stride(0),
        gate=gate.data.data_ptr(),
        up=up.data.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        num_rows=num_rows,
        in_features=in_features,
        out_features=out_features,
        x_dtype=dtype_code(x, "x"),
        out_dtype=dtype_code(out, "out"),
        gate_format=native_code(gate.weight_format),
        up_format=native_code(up.weight_format),
        activation=activation,
    )
    if biases is not None:
        for name, bias in zip(("gate_bias", "up_bias"), biases, strict=True):
            check_vector(bias, name, out_features)
            setattr(arguments, name, bias.data_ptr())
    library.call(arguments)


def native_code(weight_format: WeightFormat) -> int:
    """`hr_format` of headrace.h.

    Raises:
        ValueError: there is none.
    """
    if weight_format.native_code is None:
        raise ValueError(f"no native kernel takes weights in the format {weight_format.name}")
    return weight_format.native_code
