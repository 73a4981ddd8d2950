"""Steps that were measured slower than larger ones: something else was running, for a whole row of repetitions."""

from __future__ import annotations

from collections.abc import Sequence

from engine.trials import OUTLIER_FACTOR
from offload.measurements import median
from offload.step_load import StepLoad

CONTRADICTION_FACTOR = 1.5
"""Kernels compute in tiles, so that a step may take a little longer than a larger one; not by that much."""


def find_contradicted(loads: Sequence[StepLoad], medians_s: Sequence[float]) -> dict[int, float]:
    """Index of each step that took far longer than one larger in every count → the least such time."""
    bounds: dict[int, float] = {}
    for index, (load, time_s) in enumerate(zip(loads, medians_s, strict=True)):
        bound_s = min(other_s for other, other_s in zip(loads, medians_s, strict=True) if _is_within(load, other))
        if time_s > CONTRADICTION_FACTOR * bound_s:
            bounds[index] = bound_s
    return bounds


def believable(samples_s: Sequence[float], bound_s: float) -> list[float]:
    """What is left of a contradicted step's repetitions; all of them, where that is none."""
    return [sample for sample in samples_s if sample <= OUTLIER_FACTOR * bound_s] or list(samples_s)


def medians(samples: Sequence[Sequence[float]]) -> list[float]:
    """Of each step."""
    return [median(taken) for taken in samples]


def _is_within(small: StepLoad, large: StepLoad) -> bool:
    """A step is within itself."""
    return (
        small.num_tokens <= large.num_tokens
        and small.num_sequences <= large.num_sequences
        and small.num_context_tokens <= large.num_context_tokens
    )
