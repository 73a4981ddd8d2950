"""Plain numbers in tiles of 16 rows, as the native kernels read them (kernels/csrc/dense.inc).

A tile holds, for each step along K, the numbers of its 16 rows side by side: one at a time for float32 and float16,
in pairs for bfloat16. The last tile is filled up with rows of zeros, an odd K of bfloat16 with a column of zeros.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

TILE_ROWS = 16
_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@dataclasses.dataclass(frozen=True, slots=True)
class TiledFormat:
    """Float32, bfloat16 or float16, the values unchanged. Implements `kernels.linear.WeightFormat`."""

    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in _CODES:
            raise ValueError(f"dtype is {self.dtype}, tiles hold float32, bfloat16 or float16")

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def tile_rows(self) -> int:
        return TILE_ROWS

    @property
    def native_code(self) -> int | None:
        return _CODES[self.dtype]

    def row_bytes(self, in_features: int) -> int:
        return -(-in_features // self._step) * self._step * self.dtype.itemsize

    def pack(self, rows: Tensor, out: Tensor) -> None:
        num_rows, in_features = rows.shape
        tiles = self._tiles(out, in_features)
        padding = (0, tiles.shape[1] * self._step - in_features, 0, len(tiles) * TILE_ROWS - num_rows)
        padded = functional.pad(rows.to(self.dtype), padding)
        tiles.copy_(padded.view(len(tiles), TILE_ROWS, -1, self._step).transpose(1, 2))

    def unpack(self, data: Tensor, out_features: int, in_features: int) -> Tensor:
        rows = self._tiles(data, in_features).transpose(1, 2).flatten(0, 1).flatten(1)
        return rows[:out_features, :in_features]

    def gather(self, data: Tensor, rows: Tensor, in_features: int) -> Tensor:
        picked = self._tiles(data, in_features)[rows // TILE_ROWS, :, rows % TILE_ROWS]
        return picked.flatten(1)[:, :in_features]

    def linear(self, x: Tensor, data: Tensor, out_features: int, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, self.unpack(data, out_features, x.shape[1]).to(x.dtype), bias)

    @property
    def _step(self) -> int:
        """Numbers along K that lie side by side."""
        return 2 if self.dtype == torch.bfloat16 else 1

    def _tiles(self, data: Tensor, in_features: int) -> Tensor:
        return data.view(self.dtype).view(-1, -(-in_features // self._step), TILE_ROWS, self._step)
