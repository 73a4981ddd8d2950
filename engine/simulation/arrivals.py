"""When requests arrive: gaps of any variance, and a rate that rises in bursts."""

from __future__ import annotations

import dataclasses
import math
import random

BURST_S = 15.0
PERIOD_S = 60.0
"""Of each so many seconds, the last `BURST_S` are a burst."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArrivalPattern:
    """How arrivals lie about their mean rate.

    Raises:
        ValueError: a value is out of bounds.
    """

    cv: float = 1.0
    """Standard deviation of the gaps over their mean; they are gamma-distributed, at 1 exponentially (Poisson)."""
    burst: float = 1.0
    """The rate in bursts over that between them; 1: none."""

    def __post_init__(self) -> None:
        if not 0.0 < self.cv < math.inf:
            raise ValueError(f"cv is {self.cv}, it must be above 0")
        if not 1.0 <= self.burst < math.inf:
            raise ValueError(f"burst is {self.burst}, it must be at least 1")

    def gap(self, rng: random.Random) -> float:
        """Drawn with a mean of 1."""
        if self.cv == 1.0:
            return rng.expovariate(1.0)
        return rng.gammavariate(self.cv**-2, self.cv**2)

    def time_s(self, elapsed: float, rate_per_s: float) -> float:
        """When the sum of gaps reaches `elapsed`: the inverse of the rate's integral, its mean being `rate_per_s`."""
        periods, rest = divmod(elapsed / rate_per_s, PERIOD_S)
        quiet_s = PERIOD_S - BURST_S
        relative = PERIOD_S / (quiet_s + self.burst * BURST_S)  # the rate between bursts over the mean
        quiet = quiet_s * relative
        in_period_s = rest / relative if rest < quiet else quiet_s + (rest - quiet) / (relative * self.burst)
        return periods * PERIOD_S + in_period_s


STEADY = ArrivalPattern()
