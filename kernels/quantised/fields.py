"""The fields of quantised rows, taken out of their blocks.

Axes: R rows, K elements of a row, U blocks of a row.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from kernels.quantised.block_type import Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, BlockType, ScaleKind

Bytes = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True)
class QuantisedFields:
    """What rows of one `BlockType` hold."""

    codes: Bytes
    """[R, K], unsigned; of Q8_0 with 128 added."""
    halves: Bytes
    """[R, U, num_halves, 2]: float16."""
    scale_bytes: Bytes
    """[R, U, num_bytes]."""


def read_blocks(block_type: BlockType, blocks: Bytes) -> QuantisedFields:
    """The fields of rows as a GGUF file stores them: blocks [R, stored_row_bytes]."""
    rows = blocks.reshape(len(blocks), -1, block_type.block_bytes)
    codes, halves, scale_bytes = _READERS[block_type.name](rows)
    num_rows, num_blocks = rows.shape[:2]
    return QuantisedFields(
        codes.reshape(num_rows, num_blocks * block_type.block_size),
        np.ascontiguousarray(halves).reshape(num_rows, num_blocks, block_type.scale_kind.num_halves, 2),
        scale_bytes,
    )


_Parts = tuple[Bytes, Bytes, Bytes]
"""Codes [R, U, block_size], halves [R, U, bytes], scale bytes [R, U, num_bytes]."""


def _read_8_0(rows: Bytes) -> _Parts:
    return rows[..., 2:] ^ np.uint8(0x80), rows[..., :2], rows[..., :0]


def _read_4(rows: Bytes, start: int) -> _Parts:
    return _nibbles(rows[..., start:]), rows[..., :start], rows[..., :0]


def _read_5(rows: Bytes, start: int) -> _Parts:
    fifth = np.unpackbits(np.ascontiguousarray(rows[..., start : start + 4]), axis=-1, bitorder="little")
    return _nibbles(rows[..., start + 4 :]) | fifth << np.uint8(4), rows[..., :start], rows[..., :0]


def _nibbles(packed: Bytes) -> Bytes:
    """Low nibbles are elements 0..15, high nibbles 16..31."""
    return np.concatenate((packed & np.uint8(15), packed >> np.uint8(4)), axis=-1)


def _read_4_k(rows: Bytes) -> _Parts:
    return _nibbles_of_groups(rows[..., 16:]), rows[..., :4], _six_bit_scales(rows[..., 4:16])


def _read_5_k(rows: Bytes) -> _Parts:
    codes = _nibbles_of_groups(rows[..., 48:])
    groups = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (rows[..., 16:48][..., None, :] >> groups & np.uint8(1)).reshape(codes.shape)
    return codes | fifth << np.uint8(4), rows[..., :4], _six_bit_scales(rows[..., 4:16])


def _nibbles_of_groups(packed: Bytes) -> Bytes:
    """Of each 32 bytes the low nibbles are one group, the high nibbles the next."""
    pairs = packed.reshape(*packed.shape[:-1], 4, 32)
    return np.stack((pairs & np.uint8(15), pairs >> np.uint8(4)), axis=-2).reshape(*packed.shape[:-1], 256)


def _six_bit_scales(packed: Bytes) -> Bytes:
    """12 bytes → 8 scales and 8 minima; the last four of each are spread over the third word and two spare bits."""
    scales, minima, rest = np.split(packed, 3, axis=-1)
    low, high = rest & np.uint8(15), rest >> np.uint8(4)
    return np.concatenate(
        (
            scales & np.uint8(63),
            low | scales >> np.uint8(6) << np.uint8(4),
            minima & np.uint8(63),
            high | minima >> np.uint8(6) << np.uint8(4),
        ),
        axis=-1,
    )


def _read_6_k(rows: Bytes) -> _Parts:
    low = rows[..., :128].reshape(*rows.shape[:-1], 2, 64)
    nibbles = np.concatenate((low & np.uint8(15), low >> np.uint8(4)), axis=-1)
    high = rows[..., 128:192].reshape(*rows.shape[:-1], 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    two_bits = (high >> shifts & np.uint8(3)).reshape(nibbles.shape)
    codes = (nibbles | two_bits << np.uint8(4)).reshape(*rows.shape[:-1], 256)
    return codes, rows[..., 208:], rows[..., 192:208]


_READERS = {
    Q8_0.name: _read_8_0,
    Q4_0.name: lambda rows: _read_4(rows, 2),
    Q4_1.name: lambda rows: _read_4(rows, 4),
    Q5_0.name: lambda rows: _read_5(rows, 2),
    Q5_1.name: lambda rows: _read_5(rows, 4),
    Q4_K.name: _read_4_k,
    Q5_K.name: _read_5_k,
    Q6_K.name: _read_6_k,
}


def dequantise(block_type: BlockType, fields: QuantisedFields) -> npt.NDArray[np.float32]:
    """The numbers [R, K]; nothing is rounded but the sum with a minimum and Q6_K's product.

    Damaged scales may be infinite or NaN: then so are the numbers.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        return _values(block_type, fields)


def _values(block_type: BlockType, fields: QuantisedFields) -> npt.NDArray[np.float32]:
    num_rows = len(fields.codes)
    halves = np.ascontiguousarray(fields.halves).view(np.float16)[..., 0].astype(np.float32)
    scale, minimum = halves[..., :1], None
    match block_type.scale_kind:
        case ScaleKind.WITH_MINIMUM:
            minimum = halves[..., 1:]
        case ScaleKind.TWO_LEVEL:
            scale = scale * fields.scale_bytes.view(np.int8).astype(np.float32)
        case ScaleKind.TWO_LEVEL_WITH_MINIMUM:
            levels = fields.scale_bytes.astype(np.float32)
            scale, minimum = scale * levels[..., :8], -(halves[..., 1:] * levels[..., 8:])
        case ScaleKind.PLAIN:
            pass
    codes = fields.codes.reshape(num_rows, scale.shape[1] * scale.shape[2], -1).astype(np.float32)
    values = scale.reshape(num_rows, -1, 1) * (codes - np.float32(block_type.offset))
    if minimum is not None:
        values += minimum.reshape(num_rows, -1, 1)
    numbers: npt.NDArray[np.float32] = values.reshape(num_rows, -1)
    return numbers
