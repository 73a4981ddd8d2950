"""Activations as 8-bit integers, in PyTorch; the definition is `kernels.reference.quantise_activations`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quantised.block_type import GROUP_SIZE

SMALLEST_MAGNITUDE = 2.0**-120
"""A group without a larger number has codes of 0: 127 divided by less would overflow."""


def round_activations(x: Tensor) -> Tensor:
    """The numbers that the products with quantised matrices take for `x`: [T, K] float → float32.

    A NaN or an infinity makes its whole group NaN or infinite.
    """
    groups = x.float().view(*x.shape[:-1], -1, GROUP_SIZE)
    magnitude = groups.abs().amax(dim=-1, keepdim=True)
    inverse = torch.div(torch.tensor(127.0), magnitude)  # `127 / magnitude` would be rounded twice
    codes = torch.round(groups * torch.where(magnitude < SMALLEST_MAGNITUDE, 0, inverse))
    return (codes * (magnitude / 127)).flatten(-2)
