"""From the fused projection of a layer to rotated queries, and keys and values in their slots.

Axes: T tokens, H query heads, KH key/value heads, D head dimension, B blocks, P tokens in a block.
"""

from __future__ import annotations

import ctypes
import dataclasses

import torch
from torch import Tensor

from kernels.native.operand import check, check_vector, dtype_code
from kernels.native_library import Arguments, NativeLibrary


class RopeWriteKVArguments(Arguments):
    OPERATION = "rope_write_kv"
    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("qkv_stride", ctypes.c_int64),
        ("query", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("block_stride", ctypes.c_int64),
        ("value_offset", ctypes.c_int64),
        ("slot_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("rotary_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("norm_eps", ctypes.c_float),
        ("qkv_dtype", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Rotation:
    """Angles of every token of a step, for all layers of equal frequencies."""

    cos: Tensor
    """[T, R/2] float32, contiguous."""
    sin: Tensor

    @staticmethod
    def of(positions: Tensor, frequencies: Tensor) -> Rotation:
        """Of positions [T] int64 and frequencies [R/2] float32, see `kernels.rotary.inverse_frequencies`."""
        angles = positions.float()[:, None] * frequencies
        return Rotation(angles.cos(), angles.sin())


@dataclasses.dataclass(frozen=True, slots=True)
class HeadNorms:
    """Root-mean-square norm of each query and key head before the rotation (Qwen 3, Gemma 3)."""

    query: Tensor
    """[D] float32."""
    key: Tensor
    eps: float


def rope_write_kv(
    library: NativeLibrary,
    qkv: Tensor,
    rotation: Rotation,
    query: Tensor,
    layer_cache: Tensor,
    slots: Tensor,
    norms: HeadNorms | None = None,
) -> None:
    """Rotate queries and keys, and write keys and values into their slots.

    Args:
        qkv: [T, (H + 2 KH) * D] float32, bfloat16 or float16: queries, keys, values; rows may be strided.
        query: [T, H, D] of the cache's type, heads adjacent; tokens may be strided. Overwritten.
        layer_cache: [B, 2, P, KH, D], a strided view of one layer; its slots are written.
        slots: [T] int64, block * P + offset; -1 writes nothing.

    Raises:
        ValueError: a shape, type or slot does not fit.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_blocks, _, block_size, num_kv_heads, _ = layer_cache.shape
    rotary_dim = 2 * rotation.cos.shape[1]
    check(qkv, "qkv", (num_tokens, (num_heads + 2 * num_kv_heads) * head_dim))
    check(layer_cache, "layer_cache", (num_blocks, 2, block_size, num_kv_heads, head_dim), query.dtype)
    check(slots, "slots", (num_tokens,), torch.int64)
    for name, tensor in (("cos", rotation.cos), ("sin", rotation.sin)):
        check(tensor, name, (num_tokens, rotary_dim // 2), torch.float32)
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous")
    if num_heads > 1 and query.stride(1) != head_dim:
        raise ValueError(f"query: the heads of a token are {query.stride(1)} apart, expected {head_dim}")
    if rotary_dim > head_dim:
        raise ValueError(f"{rotary_dim} dimensions are rotated, a head has {head_dim}")
    if num_tokens and not -1 <= int(slots.min()) <= int(slots.max()) < num_blocks * block_size:
        raise ValueError(f"slots are {int(slots.min())} to {int(slots.max())}, the cache has {num_blocks * block_size}")
    block_stride, value_offset, slot_stride, head_stride, _ = layer_cache.stride()
    arguments = RopeWriteKVArguments(
        qkv=qkv.data_ptr(),
        qkv_stride=qkv.stride(0),
        query=query.data_ptr(),
        query_stride=query.stride(0),
        cos=rotation.cos.data_ptr(),
        sin=rotation.sin.data_ptr(),
        cache=layer_cache.data_ptr(),
        slots=slots.data_ptr(),
        block_stride=block_stride,
        value_offset=value_offset,
        slot_stride=slot_stride,
        head_stride=head_stride,
        num_tokens=num_tokens,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        block_size=block_size,
        qkv_dtype=dtype_code(qkv, "qkv"),
        dtype=dtype_code(query, "query"),
    )
    if norms is not None:
        check_vector(norms.query, "norms.query", head_dim)
        check_vector(norms.key, "norms.key", head_dim)
        arguments.query_norm, arguments.key_norm = norms.query.data_ptr(), norms.key.data_ptr()
        arguments.norm_eps = norms.eps
    library.call(arguments)
