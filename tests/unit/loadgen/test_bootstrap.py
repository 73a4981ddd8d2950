"""The bootstrap against the full list of resamples of tiny samples, and its statistics against repeated values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.bootstrap import Bootstrap, Statistic, WeightedMean, WeightedQuantile, number_clusters

MANY = Bootstrap(num_resamples=4000, confidence=0.8)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-100.0, 100.0), st.integers(0, 4)), min_size=1, max_size=12).filter(
        lambda pairs: any(weight for _, weight in pairs)
    ),
    st.floats(0.0, 1.0),
)
def test_weighted_statistics_are_those_of_repeated_values(pairs: list[tuple[float, int]], quantile: float) -> None:
    values = [value for value, _ in pairs]
    weights = np.asarray([weight for _, weight in pairs], dtype=np.int64)
    repeated = np.repeat(values, weights)
    assert WeightedMean(values)(weights) == pytest.approx(repeated.mean(), abs=1e-9)
    assert WeightedQuantile(values, quantile)(weights) == pytest.approx(np.quantile(repeated, quantile), abs=1e-9)


def _changes(first: Statistic, second: Statistic, clusters: Sequence[int]) -> list[float]:
    """Of every equally likely draw of whole clusters."""
    ids = sorted(set(clusters))
    changes = []
    for drawn in itertools.product(ids, repeat=len(ids)):
        weights = np.asarray([drawn.count(cluster) for cluster in clusters], dtype=np.int64)
        changes.append(second(weights) - first(weights))
    return sorted(changes)


def _share_at_most(changes: Sequence[float], value: float) -> float:
    return sum(change <= value + 1e-9 for change in changes) / len(changes)


def _share_below(changes: Sequence[float], value: float) -> float:
    return sum(change < value - 1e-9 for change in changes) / len(changes)


FIRST, SECOND = [0.3, 1.7, 2.2, 9.0, 4.1], [0.9, 1.1, 2.9, 7.5, 6.3]


@pytest.mark.parametrize("clusters", [[0, 1, 2, 3, 4], [0, 0, 1, 2, 2], [0, 1, 1, 1, 2]])
@pytest.mark.parametrize("quantile", [None, 0.5, 0.99])
def test_the_interval_is_that_of_all_resamples(clusters: list[int], quantile: float | None) -> None:
    """Each end is a quantile of the exact distribution, to the grain of 4,000 draws."""

    def make(values: Sequence[float]) -> Statistic:
        return WeightedMean(values) if quantile is None else WeightedQuantile(values, quantile)

    first, second = make(FIRST), make(SECOND)
    found = MANY.paired(first, second, np.asarray(clusters))
    ones = np.ones(5, dtype=np.int64)
    assert found.change == pytest.approx(second(ones) - first(ones))
    exact = _changes(first, second, clusters)
    for end, share in ((found.interval.low, 0.1), (found.interval.high, 0.9)):
        assert _share_below(exact, end) <= share + 0.025
        assert _share_at_most(exact, end) >= share - 0.025
        assert any(abs(change - end) < 1e-9 for change in exact)


def test_a_difference_that_all_pairs_share_is_certain_and_unpaired_it_is_not() -> None:
    first = np.random.default_rng(3).exponential(1.0, 200)
    second = first + 0.125
    each = np.arange(200)
    paired = MANY.paired(WeightedMean(first.tolist()), WeightedMean(second.tolist()), each)
    assert (paired.interval.low, paired.interval.high) == pytest.approx((0.125, 0.125))
    apart = MANY.unpaired(WeightedMean(first.tolist()), each, WeightedMean(second.tolist()), each)
    assert apart.change == pytest.approx(0.125)
    # The standard error of the difference of two independent means.
    error = (first.var() / 200 + second.var() / 200) ** 0.5
    assert apart.interval.high - apart.interval.low == pytest.approx(2 * 1.2816 * error, rel=0.1)


def test_turns_of_one_conversation_tell_no_more_than_it_does() -> None:
    rng = np.random.default_rng(1)
    per_session = rng.normal(0.0, 1.0, 40)
    first, second = [0.0] * 400, np.repeat(per_session, 10).tolist()
    sessions = number_clusters([f"session {index // 10}" for index in range(400)])
    assert sessions.tolist() == [index // 10 for index in range(400)]
    clustered = MANY.paired(WeightedMean(first), WeightedMean(second), sessions).interval
    naive = MANY.paired(WeightedMean(first), WeightedMean(second), np.arange(400)).interval
    ratio = (clustered.high - clustered.low) / (naive.high - naive.low)
    assert ratio == pytest.approx(10**0.5, rel=0.15)


def test_the_same_seed_gives_the_same_interval() -> None:
    first, second, each = WeightedMean(FIRST), WeightedMean(SECOND), np.arange(5)
    assert MANY.paired(first, second, each) == MANY.paired(first, second, each)
    assert Bootstrap(100, seed=1).paired(first, second, each) != Bootstrap(100, seed=2).paired(first, second, each)


def test_nothing_is_not_drawn_from() -> None:
    nothing = np.asarray([], dtype=np.int64)
    with pytest.raises(ValueError, match="nothing to draw"):
        MANY.paired(WeightedMean([]), WeightedMean([]), nothing)
