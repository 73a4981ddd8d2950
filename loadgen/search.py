"""The highest offered rate at which latency classes keep their objectives: doubling, then bisection of the log rate.

Every probe sends the same plan with its time scaled (common random numbers), so that two rates differ by the rate and
not by luck. A probe that is undecided is prolonged by further looks, each a plan with a seed of its own, the same one
at every rate; what stays undecided counts as its point estimate and is marked.

That a higher rate is served worse is what bisection assumes. It is tested once, by a probe above the lowest rate that
failed; a pass above a fail is reported, and the interval then reaches over both.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from loadgen.probe import Grader, Look, Probe, Verdict, add_counts

_ABOVE = 1.25
"""Times the lowest rate that failed: where it is looked whether the server does better with more load."""


class Measure(Protocol):
    """Loads the server at a rate; `look` counts from 0 and chooses the seed."""

    async def __call__(self, rate_per_s: float, look: int) -> Look: ...


@dataclasses.dataclass(frozen=True, slots=True)
class SearchLimits:
    """How far a search goes."""

    start_rate_per_s: float
    min_rate_per_s: float
    """Where it and nothing above passes, there is no capacity."""
    max_rate_per_s: float | None
    """None: no bound."""
    resolution: float
    """The search ends where a rate that failed is at most 1 + this times one that passed."""
    max_looks: int
    max_probes: int
    checks_above: bool


@dataclasses.dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found."""

    probes: tuple[Probe, ...]
    """In the order in which they ran."""
    resolution: float
    interrupted: bool

    @property
    def capacity_per_s(self) -> float | None:
        """The highest rate that passed, of those below every rate that did not; None: none passed."""
        first_miss = self.first_miss
        passed = [p.rate_per_s for p in self.probes if p.passed]
        return max((r for r in passed if first_miss is None or r < first_miss.rate_per_s), default=None)

    @property
    def first_miss(self) -> Probe | None:
        """The lowest rate that did not pass; None: all passed."""
        return min((p for p in self.probes if not p.passed), key=lambda p: p.rate_per_s, default=None)

    @property
    def surely_met_per_s(self) -> float | None:
        """Low end of the capacity's interval: the highest rate that surely passed, below every one that surely failed.
        None: it is not known to be above 0."""
        failed = min(self._sure_rates(Verdict.FAILED), default=math.inf)
        return max((rate for rate in self._sure_rates(Verdict.PASSED) if rate < failed), default=None)

    @property
    def surely_missed_per_s(self) -> float | None:
        """High end of the interval: the lowest rate that surely failed, above every one that surely passed. None: no
        bound is known."""
        passed = max(self._sure_rates(Verdict.PASSED), default=0.0)
        return min((rate for rate in self._sure_rates(Verdict.FAILED) if rate > passed), default=None)

    @property
    def client_limit_per_s(self) -> float | None:
        """The lowest rate at which this client was too slow; None: it kept up."""
        return min((p.rate_per_s for p in self.probes if p.is_client_limit), default=None)

    @property
    def is_cut_short(self) -> bool:
        """Whether the lowest rate that did not pass is an invalid one: the capacity may be higher."""
        return self.first_miss is not None and self.first_miss.verdict is Verdict.INVALID

    @property
    def is_resolved(self) -> bool:
        """Whether a rate that failed, and did not turn out invalid, stands just above the capacity."""
        capacity_per_s, first_miss = self.capacity_per_s, self.first_miss
        if capacity_per_s is None or first_miss is None or self.is_cut_short:
            return False
        return is_close(capacity_per_s, first_miss.rate_per_s, self.resolution)

    @property
    def reversals(self) -> tuple[tuple[float, float], ...]:
        """Each rate that passed above one that failed, as (failed, passed)."""
        failed = [p.rate_per_s for p in self.probes if p.verdict is Verdict.FAILED]
        passed = [p.rate_per_s for p in self.probes if p.passed]
        pairs = itertools.product(sorted(failed), sorted(passed))
        return tuple((low, high) for low, high in pairs if high > low)

    def _sure_rates(self, verdict: Verdict) -> list[float]:
        return [p.rate_per_s for p in self.probes if p.is_sure and p.verdict is verdict]


class Search:
    """One search. `on_probe` is told of each probe as it ends."""

    def __init__(
        self, limits: SearchLimits, grader: Grader, measure: Measure, on_probe: Callable[[Probe], None]
    ) -> None:
        self._limits = limits
        self._grader = grader
        self._measure = measure
        self._on_probe = on_probe
        self._probes: list[Probe] = []
        self._interrupted = False

    async def run(self) -> SearchResult:
        """Probe until the capacity is resolved, or a limit ends it."""
        low, high = await self._bracket()
        while low is not None and high is not None and not is_close(low, high, self._limits.resolution):
            middle = math.sqrt(low * high)
            probe = await self._probe(middle)
            if probe is None:
                break
            low, high = (middle, high) if probe.passed else (low, middle)
        if high is not None and self._limits.checks_above:
            await self._check_above(high)
        return self.result

    @property
    def result(self) -> SearchResult:
        """What is known so far."""
        return SearchResult(tuple(self._probes), self._limits.resolution, self._interrupted)

    async def _bracket(self) -> tuple[float | None, float | None]:
        """A rate that passes and one that does not, a factor of two apart; None where there is none."""
        low = high = None
        rate = self._clip(self._limits.start_rate_per_s)
        while (low is None or high is None) and (probe := await self._probe(rate)) is not None:
            if probe.passed:
                low = rate
                if rate == self._limits.max_rate_per_s:
                    break
                rate = self._clip(rate * 2.0)
            else:
                high = rate
                if rate / 2.0 < self._limits.min_rate_per_s:
                    break
                rate /= 2.0
        return low, high

    async def _check_above(self, failed_per_s: float) -> None:
        """A client that was too slow is not asked for more."""
        rate = failed_per_s * _ABOVE
        is_beyond = self._limits.max_rate_per_s is not None and rate > self._limits.max_rate_per_s
        if not is_beyond and not any(p.is_client_limit for p in self._probes):
            await self._probe(rate)

    async def _probe(self, rate_per_s: float) -> Probe | None:
        """None: there is no more to be probed."""
        if self._interrupted or len(self._probes) >= self._limits.max_probes:
            return None
        looks: list[Look] = []
        decided: Verdict | None = None
        while decided is None and len(looks) < self._limits.max_looks:
            look = await self._measure(rate_per_s, len(looks))
            if look.interrupted:
                self._interrupted = True
                return None
            looks.append(look)
            decided = Verdict.INVALID if look.invalid_reasons else self._grader.decide(add_counts(looks))
        verdict = decided or self._grader.estimate(add_counts(looks))
        probe = Probe(rate_per_s, tuple(looks), verdict, decided is not None)
        self._probes.append(probe)
        self._on_probe(probe)
        return probe

    def _clip(self, rate_per_s: float) -> float:
        limit = self._limits.max_rate_per_s
        return rate_per_s if limit is None else min(rate_per_s, limit)


def is_close(low_per_s: float, high_per_s: float, resolution: float) -> bool:
    """Whether two rates are as near to each other as the search has to come."""
    return high_per_s <= low_per_s * (1.0 + resolution)


def describe_reversals(reversals: Sequence[tuple[float, float]]) -> str:
    """One line about the widest of them."""
    low, high = max(reversals, key=lambda pair: pair[1] / pair[0])
    return (
        f"not monotone: {high:.4g}/s passed above {low:.4g}/s, which failed; the server does better with more load, or "
        "one of the two was luck: prolong the probes, and look at the rates between"
    )
