"""Quantised matrices in tiles of 16 rows: values exactly those of the file, multiplied as they are."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kernels.quantised.activations import round_activations
from kernels.quantised.block_type import BlockType
from kernels.quantised.fields import Bytes, QuantisedFields, dequantise, read_blocks
from kernels.quantised.float_blocks import quantise_rows
from kernels.quantised.tiles import TILE_ROWS, from_tiles, to_tiles


@dataclasses.dataclass(frozen=True, slots=True)
class TiledBlocks:
    """Implements `kernels.linear.WeightFormat` in numpy and PyTorch; `kernels.native` has the same at speed."""

    block_type: BlockType

    @property
    def name(self) -> str:
        return self.block_type.name

    @property
    def tile_rows(self) -> int:
        return TILE_ROWS

    @property
    def native_code(self) -> int | None:
        return self.block_type.native_code

    def row_bytes(self, in_features: int) -> int:
        return self.block_type.tiled_row_bytes(in_features)

    def pack(self, rows: Tensor, out: Tensor) -> None:
        """As `WeightFormat.pack`. Rows of uint8 are the blocks of a file, [R, stored_row_bytes], and keep their values;
        rows of numbers are quantised first.

        Raises:
            ValueError: numbers, and the format is none that numbers are quantised to.
        """
        tiles = to_tiles(self.block_type, read_blocks(self.block_type, self.blocks(rows).numpy()))
        out.copy_(torch.from_numpy(tiles.reshape(-1)))

    def blocks(self, rows: Tensor) -> Tensor:
        """Rows as a file stores them: `rows` itself if it is uint8, else its numbers quantised. Raises: as `pack`."""
        return rows if rows.dtype == torch.uint8 else quantise_rows(self.block_type, rows)

    def unpack(self, data: Tensor, out_features: int, in_features: int) -> Tensor:
        fields = from_tiles(self.block_type, self._tiles(data, in_features), in_features)
        return torch.from_numpy(dequantise(self.block_type, fields))[:out_features]

    def gather(self, data: Tensor, rows: Tensor, in_features: int) -> Tensor:
        numbers, lanes = np.divmod(rows.numpy(), TILE_ROWS)
        used, places = np.unique(numbers, return_inverse=True)
        fields = from_tiles(self.block_type, self._tiles(data, in_features)[used], in_features)
        wanted = places * TILE_ROWS + lanes
        picked = QuantisedFields(fields.codes[wanted], fields.halves[wanted], fields.scale_bytes[wanted])
        return torch.from_numpy(dequantise(self.block_type, picked))

    def linear(self, x: Tensor, data: Tensor, out_features: int, bias: Tensor | None = None) -> Tensor:
        """The product of `round_activations(x)`, in float32: what the native kernels compute, slowly."""
        weight = self.unpack(data, out_features, x.shape[1])
        out = functional.linear(round_activations(x), weight, None if bias is None else bias.float())
        return out.to(x.dtype)

    def _tiles(self, data: Tensor, in_features: int) -> Bytes:
        tiles: Bytes = data.numpy().reshape(-1, TILE_ROWS * self.row_bytes(in_features))
        return tiles
