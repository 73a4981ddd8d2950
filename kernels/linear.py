"""Weight formats: how a matrix lies in a slab, and the product with it.

A format turns rows of a matrix into bytes once, at load, and multiplies on those bytes ever after. They have no state
of their own: they can be sliced, copied to another device or lie in another buffer, and the product
is the same. Rows are packed in tiles of `tile_rows`, each tile independently of the others, so that a matrix may be
loaded in pieces of whole tiles, and matrices that share their input may lie one after the other as one.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class WeightFormat(Protocol):
    """Bytes of a matrix [out_features, in_features] and the product with it."""

    @property
    def name(self) -> str:
        """As the log and the errors say it."""

    @property
    def tile_rows(self) -> int:
        """Rows that are packed together; the last tile of a matrix is filled up."""

    @property
    def native_code(self) -> int | None:
        """`hr_format` of kernels/csrc/headrace.h; None: PyTorch alone multiplies it."""

    def row_bytes(self, in_features: int) -> int:
        """Bytes of one row: those of a tile divided by `tile_rows`.

        Raises:
            ValueError: rows of that length cannot be packed.
        """

    def pack(self, rows: Tensor, out: Tensor) -> None:
        """Write rows into their bytes.

        Args:
            rows: [R, in_features], any float dtype, from the first row of a tile on.
            out: uint8, contiguous, of whole tiles: `packed_bytes(self, R, in_features)` of them.
        """

    def unpack(self, data: Tensor, out_features: int, in_features: int) -> Tensor:
        """The numbers that `data` stands for: [out_features, in_features], a float dtype; a view where it can be."""

    def gather(self, data: Tensor, rows: Tensor, in_features: int) -> Tensor:
        """The numbers of some rows [R] int64: [R, in_features], a float dtype."""

    def linear(self, x: Tensor, data: Tensor, out_features: int, bias: Tensor | None = None) -> Tensor:
        """x @ weight^T + bias in PyTorch: x [T, in_features]; returns [T, out_features] in x's dtype."""


@dataclasses.dataclass(frozen=True, slots=True)
class DenseFormat:
    """Plain row-major numbers of one float type: float32, bfloat16 or float16."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def tile_rows(self) -> int:
        return 1

    @property
    def native_code(self) -> int | None:
        return None

    def row_bytes(self, in_features: int) -> int:
        return in_features * self.dtype.itemsize

    def pack(self, rows: Tensor, out: Tensor) -> None:
        self.unpack(out, *rows.shape).copy_(rows)

    def unpack(self, data: Tensor, out_features: int, in_features: int) -> Tensor:
        return data.view(self.dtype).view(out_features, in_features)

    def gather(self, data: Tensor, rows: Tensor, in_features: int) -> Tensor:
        return functional.embedding(rows, self.unpack(data, -1, in_features))

    def linear(self, x: Tensor, data: Tensor, out_features: int, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, self.unpack(data, out_features, x.shape[1]), bias)


def packed_bytes(weight_format: WeightFormat, out_features: int, in_features: int) -> int:
    """Bytes of a matrix, its last tile filled up."""
    num_tiles = -(-out_features // weight_format.tile_rows)
    return num_tiles * weight_format.tile_rows * weight_format.row_bytes(in_features)
