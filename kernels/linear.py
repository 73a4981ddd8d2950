"""Weight formats: how a matrix lies in a slab, and the product with it.

A format turns rows of a matrix into bytes once, at load, and multiplies on a plain view of those bytes ever after. A
view has no state of its own: it can be sliced, copied to another device or made over another buffer, and the product
is the same. Rows are packed independently of each other, so that a matrix may be loaded in pieces and matrices that
share their input may lie one after the other as one.
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

    def row_bytes(self, in_features: int) -> int:
        """Bytes of one row.

        Raises:
            ValueError: rows of that length cannot be packed.
        """

    def pack(self, rows: Tensor, out: Tensor) -> None:
        """Write rows into their bytes.

        Args:
            rows: [R, in_features], any float dtype.
            out: [R * row_bytes(in_features)] uint8, contiguous.
        """

    def view(self, data: Tensor, out_features: int, in_features: int) -> Tensor:
        """The form `linear` takes, over the same memory as `data` [out_features * row_bytes] uint8."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ weight^T + bias: x [T, in_features], weight of `view`; returns [T, out_features] in x's dtype."""


@dataclasses.dataclass(frozen=True, slots=True)
class DenseFormat:
    """Plain row-major numbers of one float type: float32, bfloat16 or float16."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def row_bytes(self, in_features: int) -> int:
        return in_features * self.dtype.itemsize

    def pack(self, rows: Tensor, out: Tensor) -> None:
        out.view(self.dtype).view(rows.shape).copy_(rows)

    def view(self, data: Tensor, out_features: int, in_features: int) -> Tensor:
        return data.view(self.dtype).view(out_features, in_features)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, weight, bias)
