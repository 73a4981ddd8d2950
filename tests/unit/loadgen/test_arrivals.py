"""Arrival processes: exact where they are constant, in their statistics where they are random."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from loadgen.arrivals import arrival_offsets_s
from loadgen.class_mix import Arrivals


def _offsets(kind: Arrivals, rate: float, count: int, seed: int = 0, cv: float = 1.0) -> list[float]:
    return list(itertools.islice(arrival_offsets_s(kind, rate, random.Random(seed), cv), count))


def test_constant_arrivals_are_evenly_spaced_without_drift() -> None:
    assert _offsets("constant", 4.0, 5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert _offsets("constant", 3.0, 3001)[-1] == 1000.0


def test_poisson_gaps_have_the_rates_mean_and_the_exponentials_spread() -> None:
    offsets = _offsets("poisson", 20.0, 20_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *offsets])]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1 / 20.0, rel=0.02)
    assert statistics.pstdev(gaps) / mean == pytest.approx(1.0, abs=0.03)
    assert sum(gap > 0.05 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1.0), abs=0.01)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_rates_mean_and_the_spread_asked_for(cv: float) -> None:
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *_offsets("gamma", 20.0, 40_000, cv=cv)])]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1 / 20.0, rel=0.05)
    assert statistics.pstdev(gaps) / mean == pytest.approx(cv, rel=0.05)


def test_gamma_counts_come_in_bursts() -> None:
    """Over long windows the variance of counts is cv squared times their mean, as renewal theory has it."""
    offsets = _offsets("gamma", 50.0, 100_000, cv=2.0)
    counts = [0] * 200
    for offset in offsets:
        if offset < 2000.0:
            counts[int(offset / 10.0)] += 1
    assert statistics.pvariance(counts) / statistics.fmean(counts) == pytest.approx(4.0, rel=0.3)


def test_poisson_counts_in_a_window_vary_as_much_as_they_are_many() -> None:
    counts = [sum(offset < 1.0 for offset in _offsets("poisson", 10.0, 60, seed)) for seed in range(2000)]
    assert statistics.fmean(counts) == pytest.approx(10.0, rel=0.03)
    assert statistics.pvariance(counts) == pytest.approx(10.0, rel=0.1)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert _offsets("poisson", 5.0, 50, seed=3) == _offsets("poisson", 5.0, 50, seed=3)
    assert _offsets("poisson", 5.0, 50, seed=3) != _offsets("poisson", 5.0, 50, seed=4)
