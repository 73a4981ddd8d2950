"""How sure a share of requests is: intervals for a binomial proportion, such as an attainment.

Two of them, for two purposes:

- `wilson` is what is *shown*. Its coverage is near the nominal one on average, and it is short; but at shares near 1
  and few requests it covers less than it says.
- `clopper_pearson` never covers less than it says, whatever the share. What is *decided* (a probe of the capacity
  search surely passes or fails) is decided by it, in the form of the exact test that it inverts: `is_surely_at_least`
  and `is_surely_below` cost one sum instead of a search for a root.

All take requests as independent. Neighbours in a queue are late together, so that runs of some hundred requests tell
less than these intervals say.

Sources: E. B. Wilson, Journal of the American Statistical Association 22 (1927) 209-212; C. J. Clopper and E. S.
Pearson, Biometrika 26 (1934) 404-413; on the choice L. D. Brown, T. T. Cai and A. DasGupta, Statistical Science 16
(2001) 101-133.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

import numpy as np

_BISECTIONS = 60
"""Halvings of [0, 1]: the bounds are as exact as a float near 1 is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, both included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def wilson(num_met: int, num_judged: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of met / judged.

    Raises:
        ValueError: there is nothing to judge, or the counts make no share.
    """
    _check(num_met, num_judged)
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2.0)
    share = num_met / num_judged
    scale = 1.0 + z * z / num_judged
    middle = (share + z * z / (2.0 * num_judged)) / scale
    half = z * (share * (1.0 - share) / num_judged + z * z / (4.0 * num_judged**2)) ** 0.5 / scale
    # At no or all met the bound is exactly 0 or 1; rounding must not put it beside that.
    return Interval(
        0.0 if num_met == 0 else max(middle - half, 0.0), 1.0 if num_met == num_judged else min(middle + half, 1.0)
    )


def clopper_pearson(num_met: int, num_judged: int, confidence: float = 0.95) -> Interval:
    """Clopper and Pearson's exact interval of met / judged.

    Raises:
        ValueError: there is nothing to judge, or the counts make no share.
    """
    _check(num_met, num_judged)
    alpha = (1.0 - confidence) / 2.0
    low = 0.0
    if num_met > 0:
        low = _bisect(lambda share: tail_at_least(num_met, num_judged, share) > alpha)
    high = 1.0
    if num_met < num_judged:
        high = _bisect(lambda share: tail_at_most(num_met, num_judged, share) <= alpha)
    return Interval(low, high)


def is_surely_at_least(share: float, num_met: int, num_judged: int, alpha: float) -> bool:
    """Whether the true share is at least `share`: were it below, so many met or more came with probability `alpha` at
    most. The same as: the low end of `clopper_pearson` at confidence 1 - 2 alpha is at least `share`."""
    _check(num_met, num_judged)
    return tail_at_least(num_met, num_judged, share) <= alpha


def is_surely_below(share: float, num_met: int, num_judged: int, alpha: float) -> bool:
    """Whether the true share is below `share`: were it at least that, so few met came with probability `alpha` at
    most."""
    _check(num_met, num_judged)
    return tail_at_most(num_met, num_judged, share) <= alpha


def tail_at_least(num_met: int, num_judged: int, share: float) -> float:
    """The probability of `num_met` or more of `num_judged`, each met with probability `share`."""
    return tail_at_most(num_judged - num_met, num_judged, 1.0 - share)


def tail_at_most(num_met: int, num_judged: int, share: float) -> float:
    """The probability of `num_met` or fewer of `num_judged`, each met with probability `share`."""
    if num_met >= num_judged or share <= 0.0:
        return 1.0
    if share >= 1.0:
        return 0.0
    counts = np.arange(1, num_met + 1, dtype=np.float64)
    # log C(n, k), k = 0..num_met, one factor after the other.
    log_ways = np.concatenate(([0.0], np.cumsum(np.log((num_judged - counts + 1.0) / counts))))
    taken = np.arange(num_met + 1, dtype=np.float64)
    terms = log_ways + taken * np.log(share) + (num_judged - taken) * np.log1p(-share)
    return float(min(np.exp(terms).sum(), 1.0))


def _bisect(is_above: Callable[[float], bool]) -> float:
    """Where a condition that is false at 0 and true at 1 turns true."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2.0


def _check(num_met: int, num_judged: int) -> None:
    if num_judged < 1 or not 0 <= num_met <= num_judged:
        raise ValueError(f"{num_met} of {num_judged} is no share: judge at least one request")
