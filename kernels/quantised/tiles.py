"""Fields in tiles of 16 rows, as the native kernels read them; the layout is told in kernels/csrc/quant_formats.inc.

Axes: T tiles, G groups of a row, U blocks of a row.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.quantised.block_type import GROUP_SIZE, BlockType
from kernels.quantised.fields import Bytes, QuantisedFields

TILE_ROWS = 16
_QUADS = GROUP_SIZE // 4


def to_tiles(block_type: BlockType, fields: QuantisedFields) -> Bytes:
    """[T, tile bytes]; rows that are missing in the last tile are zeros."""
    codes = _tiled_rows(fields.codes).reshape(-1, TILE_ROWS, fields.codes.shape[1] // GROUP_SIZE, _QUADS, 4)
    planes = _code_planes(codes, block_type.bits)
    halves = _tiled_rows(fields.halves).transpose(0, 2, 3, 1, 4)
    scale_bytes = _tiled_rows(fields.scale_bytes).transpose(0, 2, 3, 1)
    num_tiles, num_blocks = halves.shape[:2]
    unit_parts = [part.reshape(num_tiles, num_blocks, math.prod(part.shape[2:])) for part in (halves, scale_bytes)]
    units = np.concatenate(unit_parts, axis=-1)
    parts = [plane.reshape(num_tiles, codes.shape[2], -1) for plane in planes]
    return np.concatenate(
        (np.concatenate(parts, axis=-1).reshape(num_tiles, -1), units.reshape(num_tiles, -1)), axis=-1
    )


def from_tiles(block_type: BlockType, tiles: Bytes, in_features: int) -> QuantisedFields:
    """The fields of all rows of tiles [T, tile bytes], those that fill up the last one too."""
    num_tiles, kind = len(tiles), block_type.scale_kind
    num_groups, num_blocks = in_features // GROUP_SIZE, in_features // block_type.block_size
    split = TILE_ROWS * num_groups * block_type.code_bytes
    codes = _codes(tiles[:, :split].reshape(num_tiles, num_groups, -1), block_type.bits)
    units = tiles[:, split:].reshape(num_tiles, num_blocks, -1)
    halves = units[..., : 2 * kind.num_halves * TILE_ROWS].reshape(num_tiles, num_blocks, -1, TILE_ROWS, 2)
    scale_bytes = units[..., 2 * kind.num_halves * TILE_ROWS :].reshape(
        num_tiles, num_blocks, kind.num_bytes, TILE_ROWS
    )
    num_rows = num_tiles * TILE_ROWS
    return QuantisedFields(
        codes.reshape(num_rows, in_features),
        halves.transpose(0, 3, 1, 2, 4).reshape(num_rows, num_blocks, kind.num_halves, 2),
        scale_bytes.transpose(0, 3, 1, 2).reshape(num_rows, num_blocks, kind.num_bytes),
    )


def _tiled_rows(rows: Bytes) -> Bytes:
    """[R, ...] → [T, 16, ...]."""
    missing = -len(rows) % TILE_ROWS
    padded = np.pad(rows, [(0, missing), *((0, 0) for _ in rows.shape[1:])]) if missing else rows
    return padded.reshape(len(padded) // TILE_ROWS, TILE_ROWS, *rows.shape[1:])


def _code_planes(codes: Bytes, bits: int) -> list[Bytes]:
    """[T, 16, G, quad, 4] → for each plane [T, G, line, 16, 4]."""
    if bits == 8:
        return [codes.transpose(0, 2, 3, 1, 4)]
    low = codes & np.uint8(15)
    nibbles = low[..., :4, :] | low[..., 4:, :] << np.uint8(4)
    planes = [nibbles.transpose(0, 2, 3, 1, 4)]
    if bits > 4:  # what is above the nibble: bits of 8 quads in a byte, or pairs of bits of 4
        width = bits - 4
        lines = (codes >> np.uint8(4)).reshape(*codes.shape[:3], width, _QUADS // width, 4)
        shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
        high = np.bitwise_or.reduce(lines << shifts, axis=-2)
        planes.append(high.transpose(0, 2, 3, 1, 4))
    return planes


def _codes(planes: Bytes, bits: int) -> Bytes:
    """[T, G, 16 * code bytes] → [T, 16, G, quad, 4]."""
    num_tiles, num_groups = planes.shape[:2]
    lines = planes.reshape(num_tiles, num_groups, -1, TILE_ROWS, 4).transpose(0, 3, 1, 2, 4)
    if bits == 8:
        return lines
    nibbles = lines[..., :4, :]
    codes = np.concatenate((nibbles & np.uint8(15), nibbles >> np.uint8(4)), axis=-2)
    if bits > 4:
        width = bits - 4
        shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
        high = (lines[..., 4:, None, :] >> shifts) & np.uint8(2**width - 1)
        codes |= high.reshape(codes.shape) << np.uint8(4)
    return codes
