"""Activations as 8-bit integers, in PyTorch; the definition is `kernels.reference.quantise_activations`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quantised.block_type import GROUP_SIZE

NUM_EXACT = 6
"""Numbers of a row, the largest, that are not coded."""
SMALLEST_MAGNITUDE = 2.0**-118
"""A group whose numbers are all smaller has codes of 0: 127 divided by less would overflow."""


def round_activations(x: Tensor) -> Tensor:
    """The numbers that the products with quantised matrices take for `x`: [T, K] float → float32.

    A NaN or an infinity stays one, or makes its whole group NaN or infinite.
    """
    x = x.float()
    columns = x.abs().sort(dim=-1, descending=True, stable=True).indices[..., :NUM_EXACT]
    groups = x.scatter(-1, columns, 0.0).view(*x.shape[:-1], -1, GROUP_SIZE)
    magnitude = groups.abs().amax(dim=-1, keepdim=True)
    factor = torch.div(torch.tensor(127.0), magnitude)  # `127 / magnitude` would be rounded twice
    codes = torch.round(groups * torch.where(magnitude < SMALLEST_MAGNITUDE, 0, factor))
    rounded = (codes * torch.div(magnitude, torch.tensor(127.0))).flatten(-2)
    return rounded.scatter(-1, columns, x.gather(-1, columns))
