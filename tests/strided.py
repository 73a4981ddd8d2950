"""Random tensors, and tensors whose rows lie apart with NaN between them."""

from __future__ import annotations

import torch
from torch import Tensor


def randn(seed: int, *shape: int) -> Tensor:
    """Float32, the same for the same seed and shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def strided(rows: Tensor, padding: int) -> Tensor:
    """A copy of [T, N] whose rows are `padding` elements apart; `_base` is the whole buffer, NaN in between."""
    whole = torch.full((rows.shape[0], rows.shape[1] + padding), float("nan"), dtype=rows.dtype)
    view = whole[:, : rows.shape[1]]
    view.copy_(rows)
    return view
