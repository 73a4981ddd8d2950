"""Whole decoder layers in one call: `hr_layers` of headrace.h.

Axes: T tokens, H query heads, KH key/value heads, D head dimension, B blocks, P tokens in a block.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.native.activation import Activation
from kernels.native.attention import AttendArguments, AttentionWork
from kernels.native.linear import native_code
from kernels.native.operand import DTYPE_CODES, check, check_vector
from kernels.native.rotary import HeadNorms, Rotation
from kernels.native_library import Arguments, NativeLibrary
from kernels.packed_matrix import PackedMatrix


class _Matrix(ctypes.Structure):
    """`hr_matrix`."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out_features", ctypes.c_int64),
        ("format", ctypes.c_int64),
    )


class _Layer(ctypes.Structure):
    """`hr_layer`."""

    _fields_ = (
        ("qkv", _Matrix * 3),
        ("output", _Matrix),
        ("gate", _Matrix),
        ("up", _Matrix),
        ("down", _Matrix),
        ("attention_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("post_attention_norm", ctypes.c_void_p),
        ("post_mlp_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("num_qkv", ctypes.c_int64),
        ("hidden_size", ctypes.c_int64),
        ("intermediate_size", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("norm_eps", ctypes.c_float),
        ("attention_scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
        ("activation", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("kind", ctypes.c_int32),
    )


class _LayerKind(ctypes.Structure):
    """`hr_layer_kind`."""

    _fields_ = (
        ("attention", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("rotary_dim", ctypes.c_int64),
    )


class LayersArguments(Arguments):
    OPERATION = "layers"
    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("kinds", ctypes.c_void_p),
        ("hidden", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("cache_layer_stride", ctypes.c_int64),
        ("num_layers", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LayerShape:
    """What all layers of a decoder have in common."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    attention_scale: float
    dtype: torch.dtype
    """Of activations, keys and values."""
    soft_cap: float | None = None
    activation: Activation = Activation.SILU


@dataclasses.dataclass(frozen=True, slots=True)
class LayerOperands:
    """One layer's weights; vectors are float32. Results of `qkv` lie side by side."""

    qkv: tuple[PackedMatrix, ...]
    output: PackedMatrix
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    attention_norm: Tensor
    mlp_norm: Tensor
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    post_attention_norm: Tensor | None = None
    post_mlp_norm: Tensor | None = None
    head_norms: HeadNorms | None = None
    kind: int = 0
    """Index of the step's `StepKind` that the layer is of."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepKind:
    """What the layers of one kind share in a step."""

    attention: AttentionWork
    rotation: Rotation


class LayerStack:
    """The layers of a decoder as the native call reads them. Keeps their memory alive; slabs may be written anew."""

    def __init__(self, shape: LayerShape, layers: Sequence[LayerOperands]) -> None:
        """
        Raises:
            ValueError: a shape, type or format does not fit.
        """
        if shape.dtype not in DTYPE_CODES:
            raise ValueError(f"dtype is {shape.dtype}, it must be float32, bfloat16 or float16")
        self.shape = shape
        self._operands = tuple(layers)
        self._num_kinds = 1 + max((operands.kind for operands in layers), default=0)
        self._layers = (_Layer * len(layers))(*(_layer(shape, operands) for operands in layers))

    def __len__(self) -> int:
        return len(self._layers)

    def run(
        self, library: NativeLibrary, hidden: Tensor, kv_cache: Tensor, slots: Tensor, kinds: Sequence[StepKind]
    ) -> None:
        """All layers, in order.

        Args:
            hidden: [T, hidden] float32, contiguous: the residual stream, changed in place.
            kv_cache: [B, layers, 2, P, KH, D] of the shape's type; the slots are written.
            slots: [T] int64, block * P + offset; -1 writes nothing.
            kinds: of the step, one for each kind of layer.

        Raises:
            ValueError: a shape or type does not fit.
        """
        num_tokens = len(hidden)
        self._check_step(hidden, kv_cache, slots, kinds)
        block_stride, layer_stride, value_offset, slot_stride, head_stride, _ = kv_cache.stride()
        attention = [kind.attention.arguments() for kind in kinds]
        for arguments in attention:
            arguments.block_stride, arguments.value_offset = block_stride, value_offset
            arguments.slot_stride, arguments.head_stride = slot_stride, head_stride
        entries = (_LayerKind * len(kinds))(
            *(_kind(arguments, kind.rotation) for arguments, kind in zip(attention, kinds, strict=True))
        )
        library.call(
            LayersArguments(
                layers=ctypes.addressof(self._layers),
                kinds=ctypes.addressof(entries),
                hidden=hidden.data_ptr(),
                slots=slots.data_ptr(),
                cache=kv_cache.data_ptr(),
                cache_layer_stride=layer_stride,
                num_layers=len(self._layers),
                num_tokens=num_tokens,
            )
        )

    def _check_step(self, hidden: Tensor, kv_cache: Tensor, slots: Tensor, kinds: Sequence[StepKind]) -> None:
        num_tokens = len(hidden)
        check(hidden, "hidden", (num_tokens, self.shape.hidden_size), torch.float32)
        check(slots, "slots", (num_tokens,), torch.int64)
        if not hidden.is_contiguous():
            raise ValueError("hidden must be contiguous")
        if len(kinds) < self._num_kinds:
            raise ValueError(f"{len(kinds)} kinds of layers in the step, the decoder has {self._num_kinds}")
        for kind in kinds:
            self._check_attention(kind.attention, kv_cache, num_tokens)
            self._check_rotation(kind.rotation, num_tokens)
        num_slots, written = len(kv_cache) * kv_cache.shape[3], slots.numpy()
        if num_tokens and not -1 <= written.min() <= written.max() < num_slots:
            raise ValueError(f"slots are {written.min()} to {written.max()}, the cache has {num_slots}")

    def _check_attention(self, work: AttentionWork, kv_cache: Tensor, num_tokens: int) -> None:
        shape, num_blocks, tables = self.shape, len(kv_cache), work.block_tables
        cache_shape = (num_blocks, len(self._layers), 2, work.block_size, shape.num_kv_heads, shape.head_dim)
        check(kv_cache, "kv_cache", cache_shape, shape.dtype)
        if int(work.query_starts[-1]) != num_tokens:
            raise ValueError(f"the attention is planned for {work.query_starts[-1]} tokens, not {num_tokens}")
        if (work.num_heads, work.num_kv_heads) != (shape.num_heads, shape.num_kv_heads):
            raise ValueError(f"the attention is planned for {work.num_heads} and {work.num_kv_heads} heads")
        if tables.size and not 0 <= tables.min() <= tables.max() < num_blocks:
            raise ValueError(f"the tables name blocks up to {tables.max()}, the cache has {num_blocks}")

    def _check_rotation(self, rotation: Rotation, num_tokens: int) -> None:
        half = rotation.cos.shape[1]
        if 2 * half > self.shape.head_dim:
            raise ValueError(f"{2 * half} dimensions are rotated, a head has {self.shape.head_dim}")
        for name, table in (("cos", rotation.cos), ("sin", rotation.sin)):
            check(table, name, (num_tokens, half), torch.float32)
            if not table.is_contiguous():
                raise ValueError(f"{name} must be contiguous")


def _kind(attention: AttendArguments, rotation: Rotation) -> _LayerKind:
    return _LayerKind(
        attention=ctypes.addressof(attention),
        cos=rotation.cos.data_ptr(),
        sin=rotation.sin.data_ptr(),
        rotary_dim=2 * rotation.cos.shape[1],
    )


def _layer(shape: LayerShape, operands: LayerOperands) -> _Layer:
    hidden, intermediate = shape.hidden_size, shape.intermediate_size
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    qkv = _matrices("qkv", operands.qkv, operands.qkv_bias, query_size + 2 * kv_size, hidden)
    gate, up = _matrices("gate_up", (operands.gate, operands.up), operands.gate_up_bias, 2 * intermediate, hidden)
    (output,) = _matrices("output", (operands.output,), operands.output_bias, hidden, query_size)
    (down,) = _matrices("down", (operands.down,), operands.down_bias, hidden, intermediate)
    norms = operands.head_norms
    if norms is not None and norms.eps != shape.norm_eps:
        raise ValueError(f"head norms have eps {norms.eps}, the layer's norms {shape.norm_eps}")
    return _Layer(
        qkv=(_Matrix * 3)(*qkv),
        output=output,
        gate=gate,
        up=up,
        down=down,
        attention_norm=_vector("attention_norm", operands.attention_norm, hidden),
        mlp_norm=_vector("mlp_norm", operands.mlp_norm, hidden),
        post_attention_norm=_vector("post_attention_norm", operands.post_attention_norm, hidden),
        post_mlp_norm=_vector("post_mlp_norm", operands.post_mlp_norm, hidden),
        query_norm=_vector("head_norms.query", norms.query if norms else None, shape.head_dim),
        key_norm=_vector("head_norms.key", norms.key if norms else None, shape.head_dim),
        num_qkv=len(operands.qkv),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        norm_eps=shape.norm_eps,
        attention_scale=shape.attention_scale,
        soft_cap=shape.soft_cap or 0.0,
        activation=shape.activation,
        dtype=DTYPE_CODES[shape.dtype],
        kind=operands.kind,
    )


def _vector(name: str, vector: Tensor | None, width: int) -> int | None:
    if vector is None:
        return None
    check_vector(vector, name, width)
    return vector.data_ptr()


def _matrices(
    name: str, matrices: tuple[PackedMatrix, ...], bias: Tensor | None, out_features: int, in_features: int
) -> list[_Matrix]:
    """Of matrices whose results lie side by side; `bias` is of them all."""
    shapes = [(matrix.out_features, matrix.in_features) for matrix in matrices]
    if sum(rows for rows, _ in shapes) != out_features or any(columns != in_features for _, columns in shapes):
        raise ValueError(f"{name}: matrices of shapes {shapes} do not make [{out_features}, {in_features}]")
    address = _vector(f"{name}_bias", bias, out_features)
    entries = []
    for matrix in matrices:
        entries.append(_Matrix(matrix.data.data_ptr(), address, matrix.out_features, native_code(matrix.weight_format)))
        if address is not None:
            address += 4 * matrix.out_features
    return entries
