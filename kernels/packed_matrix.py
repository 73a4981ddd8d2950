"""A matrix as bytes of some format."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from kernels.linear import WeightFormat, packed_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class PackedMatrix:
    """[out_features, in_features] over memory that it does not own."""

    weight_format: WeightFormat
    out_features: int
    in_features: int
    data: Tensor
    """uint8, contiguous, `packed_bytes` of them."""

    def __post_init__(self) -> None:
        expected = packed_bytes(self.weight_format, self.out_features, self.in_features)
        if self.data.shape != (expected,):
            raise ValueError(
                f"{self.weight_format.name} [{self.out_features}, {self.in_features}] takes {expected} bytes, "
                f"not a tensor of shape {tuple(self.data.shape)}"
            )

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ self^T + bias in PyTorch; x [T, in_features]."""
        return self.weight_format.linear(x, self.data, self.out_features, bias)

    def gather(self, rows: Tensor) -> Tensor:
        """[R] int64 → [R, in_features], a float dtype."""
        return self.weight_format.gather(self.data, rows, self.in_features)

    def unpack(self) -> Tensor:
        """The numbers, a view where that can be."""
        return self.weight_format.unpack(self.data, self.out_features, self.in_features)
