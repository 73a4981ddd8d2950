"""Activations as 8-bit integers, in PyTorch; the definition is `kernels.reference.quantise_activations`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quantised.block_type import GROUP_SIZE

SMALLEST_SPREAD = 2.0**-118
"""A group whose numbers lie closer has codes of one value: 254 divided by less would overflow."""


def round_activations(x: Tensor) -> Tensor:
    """The numbers that the products with quantised matrices take for `x`: [T, K] float → float32.

    A NaN or an infinity makes its whole group NaN or infinite.
    """
    groups = x.float().view(*x.shape[:-1], -1, GROUP_SIZE)
    least = groups.amin(dim=-1, keepdim=True)
    spread = groups.amax(dim=-1, keepdim=True) - least
    factor = torch.div(torch.tensor(254.0), spread)  # `254 / spread` would be rounded twice
    codes = torch.round((groups - least) * torch.where(spread < SMALLEST_SPREAD, 0, factor)) - 127
    scale = torch.div(spread, torch.tensor(254.0))
    return (codes * scale + (least + 127 * scale)).flatten(-2)
