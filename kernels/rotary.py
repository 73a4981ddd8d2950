"""Rotary position embedding: frequencies with the scalings of long-context checkpoints, and the rotation.

Axes: T tokens, H heads, D head dimension.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`. Source: Chen et al., 2023 (position interpolation)."""

    factor: float


@dataclasses.dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, those between interpolated. Source: Llama 3.1."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class FrequencyDivisors:
    """One divisor per frequency, as GGUF files store in `rope_freqs.weight`."""

    divisors: tuple[float, ...]
    """[D/2]."""


RopeScaling = LinearScaling | Llama3Scaling | FrequencyDivisors


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """[D/2] float32, radians a position: theta^(-2d/D), scaled.

    Raises:
        ValueError: `scaling` holds another number of divisors than head_dim / 2.
    """
    plain = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    match scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling():
            return _stretch_long_wavelengths(plain, scaling)
        case FrequencyDivisors(divisors):
            if len(divisors) != head_dim // 2:
                raise ValueError(f"{len(divisors)} frequency divisors for a head dimension of {head_dim}")
            return plain / torch.tensor(divisors, dtype=torch.float32)


def _stretch_long_wavelengths(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / plain
    turns = scaling.original_max_position_tokens / wavelengths  # over the context it was first trained on
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    stretched = torch.where(turns < scaling.low_freq_factor, plain / scaling.factor, plain)
    is_between = (turns >= scaling.low_freq_factor) & (turns <= scaling.high_freq_factor)
    return torch.where(is_between, between, stretched)


def rotation(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of every token, once a step for all layers.

    Args:
        positions: [T] int64.
        frequencies: [D/2] float32, of `inverse_frequencies`.

    Returns:
        cos, sin: [T, 1, D] float32; the first half of sin is negated, as `rotate` wants it.
    """
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `kernels.reference.rotate`, with cos and sin of `rotation`: x [T, H, D] → the same, in float32 between."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return (x * cos).add_(swapped * sin).to(x.dtype)
