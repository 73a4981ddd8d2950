"""What a profile has measured: repetitions of times, none of them interpreted yet.

These are what the file of a record holds; every fit and quantile is computed from them when it is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from offload.step_load import StepLoad
from offload.transfer import Direction


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the middle two; at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def p95(values: Sequence[float]) -> float:
    """The smallest of the values that at least 95 % of them do not exceed; at least one value."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerPoint:
    """A step of one composition: seconds of an average layer, in each repetition, nothing being copied."""

    num_tokens: int
    num_sequences: int
    num_context_tokens: int
    samples_s: tuple[float, ...]
    num_dropped: int = 0
    """Repetitions that something else on the machine had disturbed."""

    @property
    def load(self) -> StepLoad:
        return StepLoad(self.num_tokens, self.num_sequences, self.num_context_tokens)

    @property
    def p50_s(self) -> float:
        return median(self.samples_s)


@dataclasses.dataclass(frozen=True, slots=True)
class RowPoint:
    """Seconds of something that grows with rows or sequences."""

    num_rows: int
    samples_s: tuple[float, ...]

    @property
    def p50_s(self) -> float:
        return median(self.samples_s)


@dataclasses.dataclass(frozen=True, slots=True)
class LinkPoint:
    """Copies of one size in one direction: seconds from submission to the last byte."""

    direction: Direction
    num_bytes: int
    samples_s: tuple[float, ...]
    """With the other direction idle."""
    together_samples_s: tuple[float, ...]
    """While the other direction copies the same."""

    @property
    def p50_bytes_per_s(self) -> float:
        return self.num_bytes / median(self.samples_s)

    @property
    def p5_bytes_per_s(self) -> float:
        return self.num_bytes / p95(self.samples_s)

    @property
    def together_bytes_per_s(self) -> float:
        return self.num_bytes / median(self.together_samples_s)


@dataclasses.dataclass(frozen=True, slots=True)
class InterferencePoint:
    """One composition computed in pairs: with the link idle, and while it copies to the device."""

    num_tokens: int
    num_sequences: int
    num_context_tokens: int
    cap_bytes_per_s: float | None
    """The pace that the link was held to; None: as fast as it can."""
    copied_bytes_per_s: float
    """What it did copy meanwhile."""
    quiet_samples_s: tuple[float, ...]
    """Of an average layer."""
    busy_samples_s: tuple[float, ...]

    @property
    def load(self) -> StepLoad:
        return StepLoad(self.num_tokens, self.num_sequences, self.num_context_tokens)

    @property
    def slowdown(self) -> float:
        """Time while copying / time without, at least 1: median of the pairs."""
        pairs = zip(self.busy_samples_s, self.quiet_samples_s, strict=True)
        return max(1.0, median([busy / quiet for busy, quiet in pairs]))


@dataclasses.dataclass(frozen=True, slots=True)
class Measurements:
    """All of one profile."""

    num_layers: int
    layer_bytes: int
    """Slab of an average layer."""
    max_num_sequences: int
    max_num_tokens: int
    """Of a step: what the profile was made for; beyond, the record extrapolates."""
    max_context_tokens: int
    layers: tuple[LayerPoint, ...]
    held_out: tuple[LayerPoint, ...]
    """Measured like `layers`; the fit does not see them."""
    head: tuple[RowPoint, ...]
    """Logits of that many rows."""
    overhead: tuple[RowPoint, ...]
    """What a step of so many sequences takes beside its layers and logits: scheduler, batch, sampling, messages."""
    link: tuple[LinkPoint, ...]
    restart_samples_s: tuple[float, ...]
    """What two copies of a slab, the second submitted when the first is done, take longer than two at once."""
    interference: tuple[InterferencePoint, ...]
    wall_s: float
    """That the profile took."""
    created_unix_s: float
    is_brief: bool = False
    """Of a start without a memory cap: few points, and nothing of the link."""
