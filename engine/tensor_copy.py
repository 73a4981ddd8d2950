"""Carrying tensors from a file into the form they are multiplied in, piece by piece."""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor

from engine.models.decoder_weights import Parameter
from engine.models.tensor_names import TensorNames
from engine.tensor_source import TensorSource
from kernels.native.quantised import pack_blocks
from kernels.native_library import NativeLibrary
from kernels.quantised.tiled_blocks import TiledBlocks

PIECE_BYTES = 4 * 1024**2
"""Of a tensor that exist at a time on the way: as stored, or in float32."""
_ROTATED = frozenset({"query", "key", "query_bias", "key_bias"})


@dataclasses.dataclass(frozen=True, slots=True)
class TensorCopier:
    """Of one file."""

    source: TensorSource
    names: TensorNames
    head_dim: int
    library: NativeLibrary | None = None
    """Packs quantised blocks; None: numpy does, slower."""

    def copy(self, parameter: Parameter, first_row: int = 0) -> None:
        """Read a tensor in pieces of whole heads and whole tiles, and pack each.

        Args:
            first_row: where the parameter begins in the file's tensor.

        Raises:
            ModelFileError, UnsupportedModelError: see `TensorSource.read_rows`.
        """
        name, part = self.names.of(parameter.name), parameter.name.rpartition(".")[2]
        is_interleaved = self.names.has_interleaved_rotary_pairs and part in _ROTATED
        weight_format = parameter.weight_format
        row_elements = math.prod(parameter.shape[1:])
        if isinstance(weight_format, TiledBlocks) and self.source.number_formats[name] == weight_format.name:
            read, row_bytes = self.source.read_stored, weight_format.block_type.stored_row_bytes(row_elements)
        else:
            read, row_bytes = self.source.read_rows, 4 * row_elements
        unit = math.lcm(self.head_dim, weight_format.tile_rows)
        step = max(1, PIECE_BYTES // (row_bytes * unit)) * unit
        for start in range(0, parameter.shape[0], step):
            rows = read(name, first_row + start, first_row + min(start + step, parameter.shape[0]))
            if part.endswith("_norm") and self.names.norm_offset:
                rows = rows.float() + self.names.norm_offset
            self._pack(parameter, start, _split_pairs(rows, self.head_dim) if is_interleaved else rows)

    def _pack(self, parameter: Parameter, start: int, rows: Tensor) -> None:
        weight_format, data = parameter.weight_format, parameter.tiles(start, len(rows))
        if not isinstance(weight_format, TiledBlocks) or self.library is None:
            weight_format.pack(rows.flatten(1) if rows.dim() > 1 else rows[:, None], data)
            return
        pack_blocks(self.library, weight_format, weight_format.blocks(rows), parameter.shape[1], data)


def _split_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Rows 2d, 2d + 1 of each head → rows d, d + D/2. rows: [n * D, ...]."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
