"""Figures of traces whose answers are known."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from loadgen.traces.description import describe
from loadgen.traces.trace_request import TraceRequest


def at(*times_s: float) -> list[TraceRequest]:
    return [TraceRequest(t_s, 10, 5) for t_s in times_s]


def test_equal_gaps() -> None:
    figures = describe(at(*(0.5 * index for index in range(41))))
    assert (figures.num_requests, figures.duration_s, figures.rate_per_s) == (41, 20.0, 2.0)
    assert (figures.gap_cv, figures.dispersion, figures.max_in_one_second, figures.longest_gap_s) == (0.0, 0.0, 2, 0.5)


def test_volleys() -> None:
    figures = describe(at(*(3.0 * step for step in range(100) for _ in range(10))))
    # 99 gaps of 3 s among 999: mean m, and E[x^2] = 3 m.
    mean_s = 99 * 3.0 / 999
    assert figures.gap_cv == pytest.approx(math.sqrt(3.0 / mean_s - 1))
    # The whole seconds: 10, 0, 0 repeated 99 times.
    assert figures.dispersion == pytest.approx(statistics.pvariance([10, 0, 0]) / statistics.fmean([10, 0, 0]))
    assert (figures.max_in_one_second, figures.num_distinct_times) == (10, 100)


def test_poisson_arrivals_are_one_and_one() -> None:
    rng = random.Random(0)
    times_s = [0.0]
    for _ in range(20_000):
        times_s.append(times_s[-1] + rng.expovariate(4.0))
    figures = describe(at(*times_s))
    assert figures.rate_per_s == pytest.approx(4.0, rel=0.03)
    assert figures.gap_cv == pytest.approx(1.0, abs=0.03)
    assert figures.dispersion == pytest.approx(1.0, abs=0.1)


def test_one_request_has_no_rate() -> None:
    figures = describe(at(7.0))
    assert (figures.rate_per_s, figures.gap_cv, figures.dispersion) == (None, None, None)
    assert (figures.max_in_one_second, figures.longest_gap_s, figures.block_hit_rate) == (1, 0.0, None)


def test_lengths_and_classes() -> None:
    requests = [TraceRequest(0.0, index, 2 * index, "a" if index > 25 else None) for index in range(1, 102)]
    figures = describe(requests)
    lengths = figures.in_tokens
    assert (lengths.mean, lengths.p50, lengths.p90, lengths.p99, lengths.max) == (51.0, 51.0, 91.0, 100.0, 101)
    assert figures.out_tokens.max == 202
    assert figures.num_by_class == {None: 25, "a": 76}


def test_only_a_leading_run_of_known_blocks_is_a_hit() -> None:
    prefixes = [(1, 2, 3), (1, 2, 4), (9, 2, 3), (1, 2, 3), (5, 5)]
    requests = [TraceRequest(0.0, 16 * len(ids), 1, prefix=ids, block=16) for ids in prefixes]
    figures = describe([*requests, TraceRequest(0.0, 100, 1)])
    # 0 of the first; 1, 2 of the second; none behind the miss of the third; all of the fourth; 5 is new to the last.
    assert (figures.num_cached_blocks, figures.num_blocks) == (0 + 2 + 0 + 3 + 0, 14)
    assert figures.block_hit_rate == 5 / 14
