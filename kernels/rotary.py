"""Rotary position embedding: frequencies with the scalings of long-context checkpoints, and the rotation.

Axes: T tokens, H heads, D head dimension, R the first of its dimensions, which turn.
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
    """[R/2]."""


@dataclasses.dataclass(frozen=True, slots=True)
class LongScaling:
    """One divisor per frequency, others where sequences outgrow the context that was first trained on.

    The keys of a sequence stay as they were written, so its length cannot change its divisors: the longest sequence
    that is served decides for all. Source: LongRoPE (Ding et al., 2024).
    """

    short_divisors: tuple[float, ...]
    """[R/2]."""
    long_divisors: tuple[float, ...]
    """[R/2]."""
    original_max_position_tokens: int
    context_tokens: int
    """The longest sequence that is served."""

    @property
    def in_force(self) -> FrequencyDivisors:
        is_long = self.context_tokens > self.original_max_position_tokens
        return FrequencyDivisors(self.long_divisors if is_long else self.short_divisors)


RopeScaling = LinearScaling | Llama3Scaling | FrequencyDivisors | LongScaling


@dataclasses.dataclass(frozen=True, slots=True)
class Rope:
    """How positions turn heads."""

    theta: float
    rotary_dim: int
    """R."""
    scaling: RopeScaling | None = None
    amplitude: float = 1.0
    """Factor on what turns."""

    @property
    def frequencies(self) -> Tensor:
        """[R/2] float32, see `inverse_frequencies`."""
        return inverse_frequencies(self.rotary_dim, self.theta, self.scaling)


def inverse_frequencies(rotary_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """[R/2] float32, radians a position: theta^(-2d/R), scaled.

    Raises:
        ValueError: `scaling` holds another number of divisors than rotary_dim / 2.
    """
    plain = 1.0 / (theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim))
    match scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling():
            return _stretch_long_wavelengths(plain, scaling)
        case FrequencyDivisors(divisors):
            if len(divisors) != rotary_dim // 2:
                raise ValueError(f"{len(divisors)} frequency divisors for {rotary_dim} rotated dimensions of a head")
            return plain / torch.tensor(divisors, dtype=torch.float32)
        case LongScaling():
            return inverse_frequencies(rotary_dim, theta, scaling.in_force)


def _stretch_long_wavelengths(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / plain
    turns = scaling.original_max_position_tokens / wavelengths  # over the context it was first trained on
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    stretched = torch.where(turns < scaling.low_freq_factor, plain / scaling.factor, plain)
    is_between = (turns >= scaling.low_freq_factor) & (turns <= scaling.high_freq_factor)
    return torch.where(is_between, between, stretched)


def rotation(positions: Tensor, frequencies: Tensor, amplitude: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of every token, once a step for all layers of equal frequencies.

    Args:
        positions: [T] int64.
        frequencies: [R/2] float32, of `inverse_frequencies`.
        amplitude: factor on both.

    Returns:
        cos, sin: [T, 1, R] float32; the first half of sin is negated, as `rotate` wants it.
    """
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    if amplitude != 1.0:
        cos, sin = cos * amplitude, sin * amplitude
    return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `kernels.reference.rotate`, with cos and sin of `rotation`: x [T, H, D] → the same, in float32 between.

    Dimensions from R on are left as they are.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :rotary_dim], cos, sin), x[..., rotary_dim:]), dim=-1)
    half = rotary_dim // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return (x * cos).add_(swapped * sin).to(x.dtype)
