"""The gated activations of the feed-forward part."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def silu_gate(gate_up: Tensor) -> Tensor:
    """As `kernels.reference.silu_gate`: [T, 2N] → [T, N], gate in the first half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def gelu_tanh_gate(gate_up: Tensor) -> Tensor:
    """As `kernels.reference.gelu_tanh_gate`: [T, 2N] → [T, N], gate in the first half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up)
