"""Root-mean-square normalisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `kernels.reference.rms_norm`: x [..., N], weight [N]; sums in float32, returns x's dtype.

    A weight of x's dtype multiplies the numbers it is given; a wider one multiplies before they are rounded to x's.
    """
    return functional.rms_norm(x.to(weight.dtype), (x.shape[-1],), weight, eps).to(x.dtype)
