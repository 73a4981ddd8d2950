"""Numbers to blocks of every format that the tests write: gguf's own where it has one, else a plain one of ours.

Ours takes the nearest code under scales from each group's range, as ggml's simplest references do; no search.
"""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
SUPER_BLOCK = 256


def quantise(values: Floats, kind: GGMLQuantizationType) -> Bytes:
    """[..., K] float32 → [..., row bytes], or what gguf gives for plain numbers."""
    if kind in (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K, GGMLQuantizationType.Q6_K):
        blocks = values.astype(np.float32).reshape(-1, SUPER_BLOCK)
        packed = _quantise_6_k(blocks) if kind == GGMLQuantizationType.Q6_K else _quantise_affine(blocks, kind)
        return packed.reshape(*values.shape[:-1], -1)
    stored: Bytes = gguf.quants.quantize(values, kind)
    return stored


def _quantise_affine(blocks: Floats, kind: GGMLQuantizationType) -> Bytes:
    """Q4_K and Q5_K."""
    bits = 4 if kind == GGMLQuantizationType.Q4_K else 5
    groups = blocks.reshape(-1, 8, 32)
    minimum = np.maximum(0, -groups.min(axis=-1))
    scale = (groups.max(axis=-1) + minimum) / (2**bits - 1)
    factor, scales = _levels(scale)
    minimum_factor, minima = _levels(minimum)
    step = _as_float(factor) * scales
    shifted = groups + (_as_float(minimum_factor) * minima)[..., None]
    codes = _nearest(shifted, step[..., None]).clip(0, 2**bits - 1).astype(np.uint8)
    pairs = (codes & 15).reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << np.uint8(4)).reshape(len(blocks), 128)
    parts = [factor.view(np.uint8), minimum_factor.view(np.uint8), _pack_six_bits(scales, minima)]
    if bits == 5:
        places = np.arange(8, dtype=np.uint8)[:, None]
        parts.append(np.bitwise_or.reduce((codes >> np.uint8(4)) << places, axis=1))
    return np.concatenate([*parts, nibbles], axis=-1)


def _levels(values: Floats) -> tuple[npt.NDArray[np.float16], Bytes]:
    """[B, 8] → a float16 factor [B, 1] and integers of 6 bits."""
    factor = (values.max(axis=-1, keepdims=True) / 63).astype(np.float16)
    return factor, _nearest(values, _as_float(factor)).clip(0, 63).astype(np.uint8)


def _as_float(half: npt.NDArray[np.float16]) -> Floats:
    return half.astype(np.float32)


def _nearest(values: Floats, step: Floats) -> Floats:
    """The integer that times `step` is nearest; 0 where the step is 0."""
    return np.rint(np.divide(values, step, out=np.zeros_like(values), where=np.broadcast_to(step != 0, values.shape)))


def _pack_six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """[B, 8] twice → [B, 12]."""
    low_scales, high_scales, low_minima, high_minima = scales[:, :4], scales[:, 4:], minima[:, :4], minima[:, 4:]
    return np.concatenate(
        (
            low_scales | high_scales >> np.uint8(4) << np.uint8(6),
            low_minima | high_minima >> np.uint8(4) << np.uint8(6),
            high_scales & np.uint8(15) | high_minima << np.uint8(4),
        ),
        axis=-1,
    )


def _quantise_6_k(blocks: Floats) -> Bytes:
    groups = blocks.reshape(-1, 16, 16)
    largest = groups.max(axis=-1) + groups.min(axis=-1)  # its sign: that of the number of largest magnitude
    scale = np.where(largest > 0, -1, 1) * np.abs(groups).max(axis=-1) / 32
    factor = (np.abs(scale).max(axis=-1, keepdims=True) / 127).astype(np.float16)
    scales = _nearest(scale, _as_float(factor)).clip(-128, 127).astype(np.int8)
    step = _as_float(factor) * scales
    codes = (_nearest(groups, step[..., None]).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = codes & np.uint8(15), codes >> np.uint8(4)
    nibbles = low[:, :, :2] | low[:, :, 2:] << np.uint8(4)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    two_bits = np.bitwise_or.reduce(high << shifts, axis=2)
    parts = (nibbles.reshape(-1, 128), two_bits.reshape(-1, 64), scales.view(np.uint8), factor.view(np.uint8))
    return np.concatenate(parts, axis=-1)
