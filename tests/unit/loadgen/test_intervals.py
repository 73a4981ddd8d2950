"""Intervals and exact tests against sums in whole numbers and fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from loadgen.intervals import (
    Interval,
    clopper_pearson,
    is_surely_at_least,
    is_surely_below,
    tail_at_least,
    tail_at_most,
    wilson,
)
from loadgen.mcnemar import mcnemar_exact

CASES = [(0, 1), (1, 1), (0, 20), (20, 20), (7, 20), (19, 20), (99, 100), (397, 400), (200, 400)]


def _exact_tail(counts: range, num_judged: int, share: Fraction) -> Fraction:
    return sum(
        (math.comb(num_judged, k) * share**k * (1 - share) ** (num_judged - k) for k in counts), start=Fraction(0)
    )


@pytest.mark.parametrize(("num_met", "num_judged"), CASES)
def test_tails_are_the_sums_of_the_binomial_distribution(num_met: int, num_judged: int) -> None:
    for share in (Fraction(1, 100), Fraction(1, 2), Fraction(99, 100)):
        at_most = _exact_tail(range(num_met + 1), num_judged, share)
        at_least = _exact_tail(range(num_met, num_judged + 1), num_judged, share)
        assert tail_at_most(num_met, num_judged, float(share)) == pytest.approx(float(at_most), rel=1e-9, abs=1e-300)
        assert tail_at_least(num_met, num_judged, float(share)) == pytest.approx(float(at_least), rel=1e-9, abs=1e-300)


def test_tails_at_the_ends_of_the_scale() -> None:
    assert (tail_at_most(3, 5, 0.0), tail_at_most(3, 5, 1.0), tail_at_most(5, 5, 1.0)) == (1.0, 0.0, 1.0)
    assert (tail_at_least(3, 5, 1.0), tail_at_least(3, 5, 0.0), tail_at_least(0, 5, 0.0)) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(("num_met", "num_judged"), CASES)
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_clopper_pearson_leaves_half_of_the_error_at_each_end(num_met: int, num_judged: int, confidence: float) -> None:
    found = clopper_pearson(num_met, num_judged, confidence)
    alpha = (1.0 - confidence) / 2.0
    if num_met == 0:
        assert found.low == 0.0
    else:
        tail = _exact_tail(range(num_met, num_judged + 1), num_judged, Fraction(found.low))
        assert float(tail) == pytest.approx(alpha, rel=1e-6)
    if num_met == num_judged:
        assert found.high == 1.0
    else:
        tail = _exact_tail(range(num_met + 1), num_judged, Fraction(found.high))
        assert float(tail) == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize(("num_met", "num_judged"), CASES)
def test_wilsons_ends_are_where_the_score_is_the_normal_quantile(num_met: int, num_judged: int) -> None:
    """The definition: |share - p| = z sqrt(p (1 - p) / n) at both ends."""
    z, share = 1.959963984540054, num_met / num_judged
    found = wilson(num_met, num_judged)
    assert share in found
    for end in (found.low, found.high):
        assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1.0 - end) / num_judged), abs=1e-12)


def test_a_decision_is_the_interval_read_at_the_objective() -> None:
    objective, alpha = 0.9, 0.025
    for num_judged in (10, 40, 200):
        seen = set()
        for num_met in range(num_judged + 1):
            exact = clopper_pearson(num_met, num_judged, 1.0 - 2.0 * alpha)
            passes = is_surely_at_least(objective, num_met, num_judged, alpha)
            fails = is_surely_below(objective, num_met, num_judged, alpha)
            assert (passes, fails) == (exact.low >= objective, exact.high <= objective)
            seen.add((passes, fails))
        assert (True, True) not in seen and (False, True) in seen
        assert ((True, False) in seen) == (objective**num_judged <= alpha)


def test_clopper_pearson_covers_at_least_what_it_says_and_wilson_not_always() -> None:
    """Exact coverage: the probability of the counts whose interval holds the true share."""
    num_judged = 50
    exact = [clopper_pearson(k, num_judged) for k in range(num_judged + 1)]
    score = [wilson(k, num_judged) for k in range(num_judged + 1)]

    def coverage(intervals: list[Interval], share: float) -> float:
        chances = (math.comb(num_judged, k) * share**k * (1.0 - share) ** (num_judged - k) for k in itertools.count())
        return sum(chance for interval, chance in zip(intervals, chances, strict=False) if share in interval)

    shares = [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.997]
    assert all(coverage(exact, share) >= 0.95 for share in shares)
    assert min(coverage(score, share) for share in shares) < 0.95


@pytest.mark.parametrize(("num_met", "num_judged"), [(0, 0), (-1, 5), (6, 5)])
def test_what_is_no_share_is_refused(num_met: int, num_judged: int) -> None:
    for make in (wilson, clopper_pearson):
        with pytest.raises(ValueError, match="judge at least one request"):
            make(num_met, num_judged)
    with pytest.raises(ValueError, match="no share"):
        is_surely_at_least(0.9, num_met, num_judged, 0.05)
    with pytest.raises(ValueError, match="no share"):
        is_surely_below(0.9, num_met, num_judged, 0.05)


def test_mcnemar_is_the_share_of_coins_that_fall_as_unevenly() -> None:
    for only_first, only_second in itertools.product(range(6), repeat=2):
        num_pairs = only_first + only_second
        uneven = abs(only_first - only_second)
        falls = [abs(2 * sum(coins) - num_pairs) >= uneven for coins in itertools.product((0, 1), repeat=num_pairs)]
        assert mcnemar_exact(only_first, only_second) == pytest.approx(sum(falls) / len(falls))


def test_mcnemar_of_many_pairs() -> None:
    assert mcnemar_exact(0, 5) == pytest.approx(1 / 16)
    assert mcnemar_exact(900, 1100) == mcnemar_exact(1100, 900) < 1e-4
    assert mcnemar_exact(5000, 5000) == 1.0
