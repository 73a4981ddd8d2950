"""How sure the difference of two runs is: a percentile bootstrap over paired requests, or over each run by itself.

Pairs are drawn with replacement, both sides of a pair together: what makes a request hard is then the same on both
sides and cancels out. Turns of one conversation depend on each other and are drawn together, as a cluster.

One run on each side tells nothing of how a second run of the same server would differ, nor of neighbours that are late
together: such intervals are too narrow rather than too wide.

Source: B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap (1993), chapters 8 and 13.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadgen.intervals import Interval

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Of the second sample from the first."""

    first: float
    second: float
    interval: Interval
    """Of second - first."""

    @property
    def change(self) -> float:
        return self.second - self.first


class Statistic(Protocol):
    """A number of a sample of n values in which value i stands weights[i] times (whole numbers, not all 0)."""

    def __call__(self, weights: IntArray) -> float: ...


class WeightedMean:
    """The mean."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = np.asarray(values, dtype=np.float64)

    def __call__(self, weights: IntArray) -> float:
        return float(self._values @ weights / weights.sum())


class WeightedQuantile:
    """A quantile, linear between values, as `loadgen.metrics.quantiles` takes it."""

    def __init__(self, values: Sequence[float], quantile: float) -> None:
        array = np.asarray(values, dtype=np.float64)
        self._order = np.argsort(array, kind="stable")
        self._sorted = array[self._order]
        self._quantile = quantile

    def __call__(self, weights: IntArray) -> float:
        ends = np.cumsum(weights[self._order])
        place = (int(ends[-1]) - 1) * self._quantile
        below = int(place)
        low, high = np.searchsorted(ends, (below, min(below + 1, int(ends[-1]) - 1)), side="right")
        first, second = float(self._sorted[low]), float(self._sorted[high])
        return first + (second - first) * (place - below)


@dataclasses.dataclass(frozen=True, slots=True)
class Bootstrap:
    """How to draw. The same seed draws the same."""

    num_resamples: int = 2000
    confidence: float = 0.95
    seed: int = 0

    def paired(self, first: Statistic, second: Statistic, clusters: IntArray) -> Difference:
        """The difference of two statistics of the same pairs.

        Args:
            clusters: of each pair, numbered from 0 without gaps; what has the same number is drawn together.

        Raises:
            ValueError: there is no pair.
        """
        rng = np.random.default_rng(self.seed)
        draws = (self._draw(rng, clusters) for _ in range(self.num_resamples))
        changes = [second(weights) - first(weights) for weights in draws]
        whole = np.ones(len(clusters), dtype=np.int64)
        return Difference(first(whole), second(whole), self._middle(changes))

    def unpaired(
        self, first: Statistic, first_clusters: IntArray, second: Statistic, second_clusters: IntArray
    ) -> Difference:
        """The same of two samples of different requests, each drawn by itself.

        Raises:
            ValueError: there is nothing on one side.
        """
        rng = np.random.default_rng(self.seed)
        changes = [
            second(self._draw(rng, second_clusters)) - first(self._draw(rng, first_clusters))
            for _ in range(self.num_resamples)
        ]
        ones = [np.ones(len(clusters), dtype=np.int64) for clusters in (first_clusters, second_clusters)]
        return Difference(first(ones[0]), second(ones[1]), self._middle(changes))

    def _draw(self, rng: np.random.Generator, clusters: IntArray) -> IntArray:
        if len(clusters) == 0:
            raise ValueError("there is nothing to draw from")
        num_clusters = int(clusters.max()) + 1
        times: IntArray = np.bincount(rng.integers(0, num_clusters, num_clusters), minlength=num_clusters)
        return times[clusters]

    def _middle(self, changes: Sequence[float]) -> Interval:
        """What holds all but the outer resamples, each end one of them."""
        outer = (1.0 - self.confidence) / 2.0
        low, high = np.quantile(np.asarray(changes), (outer, 1.0 - outer), method="inverted_cdf")
        return Interval(float(low), float(high))


def number_clusters(names: Sequence[object]) -> IntArray:
    """Numbers from 0 for equal names, in the order in which they first appear."""
    numbers: dict[object, int] = {}
    return np.asarray([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
