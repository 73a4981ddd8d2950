"""A step of a decoder in one call, or in one for each of several ranges of layers: `hr_decoder` of headrace.h.

Axes: T tokens, H query heads, KH key/value heads, D head dimension, B blocks, P tokens in a block.
"""

from __future__ import annotations

import ctypes
import dataclasses

import torch
from torch import Tensor

from kernels.attention.base import AttentionMetadata
from kernels.native.activation import Activation
from kernels.native.decoder_step import NativeStep
from kernels.native.linear import native_code
from kernels.native.operand import DTYPE_CODES, check, check_vector
from kernels.native.rotary import HeadNorms
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
        ("frequencies", ctypes.c_void_p),
        ("rotary_dim", ctypes.c_int64),
        ("sliding_window", ctypes.c_int64),
        ("rotation_scale", ctypes.c_float),
    )


class DecoderArguments(Arguments):
    OPERATION = "decoder"
    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("kinds", ctypes.c_void_p),
        ("embedding", ctypes.c_void_p),
        ("final_norm", ctypes.c_void_p),
        ("num_layers", ctypes.c_int64),
        ("num_kinds", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
        ("embedding_scale", ctypes.c_float),
        ("embedding_format", ctypes.c_int32),
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("query_lens", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int64),
        ("num_sequences", ctypes.c_int64),
        ("table_stride", ctypes.c_int64),
        ("num_blocks", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("layer_stride", ctypes.c_int64),
        ("value_offset", ctypes.c_int64),
        ("slot_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("first_layer", ctypes.c_int64),
        ("end_layer", ctypes.c_int64),
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
    """Index of the decoder's `LayerKind` that the layer is of."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerKind:
    """What layers of one kind have in common beside their shape."""

    frequencies: Tensor
    """[R/2] float32, contiguous: see `kernels.rotary.inverse_frequencies`; the first R dimensions of a head turn."""
    sliding_window: int | None = None
    """Last positions that a query sees, itself included; None: all."""
    rotation_scale: float = 1.0
    """Factor on the dimensions that turn."""


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderOperands:
    """All weights of a decoder but its head."""

    layers: tuple[LayerOperands, ...]
    kinds: tuple[LayerKind, ...]
    embedding: PackedMatrix
    """[vocab, hidden]."""
    final_norm: Tensor
    """[hidden] float32."""
    embedding_scale: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PlacedLayer:
    """A layer whose matrices lie in one place, checked; keeps their memory alive."""

    operands: LayerOperands
    entry: _Layer
    """`hr_layer`."""


class NativeStack:
    """A decoder as the native call reads it. Keeps the weights' memory alive; slabs may be written anew, and moved.

    The result of a token depends on its own sequence up to it alone, to the bit.
    """

    def __init__(self, library: NativeLibrary, shape: LayerShape, operands: DecoderOperands) -> None:
        """
        Raises:
            ValueError: a shape, type or format does not fit.
        """
        if shape.dtype not in DTYPE_CODES:
            raise ValueError(f"dtype is {shape.dtype}, it must be float32, bfloat16 or float16")
        if operands.embedding.in_features != shape.hidden_size:
            raise ValueError(f"the embedding has rows of {operands.embedding.in_features}, not {shape.hidden_size}")
        if not operands.layers or any(layer.kind >= len(operands.kinds) for layer in operands.layers):
            raise ValueError(f"{len(operands.layers)} layers name a kind beyond the {len(operands.kinds)} given")
        self._library = library
        self._shape = shape
        self._operands = operands
        self._placed = [self.place(layer) for layer in operands.layers]
        self._kv_cache: Tensor | None = None
        """Which the arguments point to."""
        self._layers = (_Layer * len(operands.layers))(*(placed.entry for placed in self._placed))
        self._kinds = (_LayerKind * len(operands.kinds))(*(_kind(shape, kind) for kind in operands.kinds))
        self._arguments = DecoderArguments(
            layers=ctypes.addressof(self._layers),
            kinds=ctypes.addressof(self._kinds),
            embedding=operands.embedding.data.data_ptr(),
            final_norm=_vector("final_norm", operands.final_norm, shape.hidden_size),
            num_layers=len(operands.layers),
            num_kinds=len(operands.kinds),
            vocab_size=operands.embedding.out_features,
            embedding_scale=operands.embedding_scale,
            embedding_format=native_code(operands.embedding.weight_format),
        )

    def place(self, operands: LayerOperands) -> PlacedLayer:
        """A layer somewhere else, for `move`.

        Raises:
            ValueError: a shape, type or format does not fit.
        """
        return PlacedLayer(operands, _layer(self._shape, operands))

    def move(self, layer: int, placed: PlacedLayer) -> None:
        """Read a layer's weights there from the next call on."""
        self._layers[layer] = placed.entry
        self._placed[layer] = placed

    def forward(self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Compute the tokens of a step and write their keys and values, in one call.

        Args:
            token_ids: [T] int64, contiguous.
            kv_cache: [B, layers, 2, P, KH, D] of the shape's type; the slots are written.
            metadata: of the step; a slot of -1 writes nothing.

        Returns:
            [T, hidden] of the shape's type, after the final norm.

        Raises:
            ValueError: a shape or type does not fit, or a token, length, block or slot is out of range.
        """
        step = self.begin(token_ids, kv_cache, metadata)
        step.run(0, len(self._layers))
        return step.out

    def begin(self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata) -> NativeStep:
        """As `forward`, computing nothing yet. One step at a time: a second one ends the first.

        Raises:
            ValueError: a shape or type does not fit.
        """
        num_tokens, num_sequences = len(token_ids), len(metadata.query_lens)
        tables = metadata.block_tables
        _check_indices("token_ids", token_ids, num_tokens)
        _check_indices("positions", metadata.positions, num_tokens)
        _check_indices("slot_mapping", metadata.slot_mapping, num_tokens)
        _check_indices("block_tables", tables, num_sequences)
        if len(metadata.context_lens) != num_sequences:
            raise ValueError(f"{num_sequences} query and {len(metadata.context_lens)} context lengths")
        if kv_cache is not self._kv_cache:
            self._point_to_cache(kv_cache)
        lens_type = ctypes.c_int32 * num_sequences
        query_lens, context_lens = lens_type(*metadata.query_lens), lens_type(*metadata.context_lens)
        out = torch.empty(num_tokens, self._shape.hidden_size, dtype=self._shape.dtype)
        arguments = self._arguments
        arguments.token_ids = token_ids.data_ptr()
        arguments.positions = metadata.positions.data_ptr()
        arguments.slots = metadata.slot_mapping.data_ptr()
        arguments.query_lens = ctypes.addressof(query_lens)
        arguments.context_lens = ctypes.addressof(context_lens)
        arguments.block_tables = tables.data_ptr()
        arguments.table_stride = tables.shape[1]
        arguments.out = out.data_ptr()
        arguments.num_tokens, arguments.num_sequences = num_tokens, num_sequences
        return NativeStep(self._library, arguments, out, (token_ids, kv_cache, metadata, query_lens, context_lens))

    def _point_to_cache(self, kv_cache: Tensor) -> None:
        shape, num_layers, arguments = self._shape, len(self._layers), self._arguments
        num_blocks, _, _, block_size, _, _ = kv_cache.shape
        check(
            kv_cache, "kv_cache", (num_blocks, num_layers, 2, block_size, shape.num_kv_heads, shape.head_dim),
            shape.dtype,
        )  # fmt: skip
        arguments.cache = kv_cache.data_ptr()
        arguments.num_blocks, arguments.block_size = num_blocks, block_size
        (
            arguments.block_stride,
            arguments.layer_stride,
            arguments.value_offset,
            arguments.slot_stride,
            arguments.head_stride,
            _,
        ) = kv_cache.stride()
        self._kv_cache = kv_cache


def _check_indices(name: str, tensor: Tensor, length: int) -> None:
    """Raises ValueError: not int64, not contiguous, or of another length."""
    if tensor.dtype != torch.int64 or not tensor.is_contiguous() or len(tensor) != length or not tensor.is_cpu:
        raise ValueError(
            f"{name}: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, strides {tensor.stride()}; "
            f"expected contiguous torch.int64 of {length} on the CPU"
        )


def _kind(shape: LayerShape, kind: LayerKind) -> _LayerKind:
    rotary_dim = 2 * len(kind.frequencies)
    check_vector(kind.frequencies, "frequencies", rotary_dim // 2)
    if rotary_dim > shape.head_dim:
        raise ValueError(f"{rotary_dim} dimensions are rotated, a head has {shape.head_dim}")
    if kind.sliding_window is not None and kind.sliding_window < 1:
        raise ValueError(f"sliding_window is {kind.sliding_window}, it must be at least 1, or None for no window")
    return _LayerKind(kind.frequencies.data_ptr(), rotary_dim, kind.sliding_window or 0, kind.rotation_scale)


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
