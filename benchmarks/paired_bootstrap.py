"""How sure a ratio of paired results is: a percentile bootstrap over the pairs.

Source: B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

NUM_RESAMPLES = 4000


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean, and where 95 % of its resamples lie."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(strata: Sequence[Sequence[tuple[float, float]]], seed: int = 0) -> Interval:
    """Of subject over baseline: geometric mean over all pairs, each stratum resampled by itself.

    Args:
        strata: (subject, baseline) of each pair, by what is not to be mixed, such as workloads.

    Raises:
        ValueError: there is no pair, or a value is not above 0.
    """
    logs = [[math.log(subject / baseline) for subject, baseline in pairs] for pairs in strata if pairs]
    if not logs:
        raise ValueError("there is no pair to compare")
    rng = random.Random(seed)
    means = sorted(_mean([_resampled(values, rng) for values in logs]) for _ in range(NUM_RESAMPLES))
    low, high = means[round(0.025 * NUM_RESAMPLES)], means[round(0.975 * NUM_RESAMPLES) - 1]
    return Interval(math.exp(_mean(logs)), math.exp(low), math.exp(high))


def _resampled(values: Sequence[float], rng: random.Random) -> list[float]:
    return rng.choices(values, k=len(values))


def _mean(strata: Sequence[Sequence[float]]) -> float:
    return sum(map(sum, strata)) / sum(map(len, strata))
