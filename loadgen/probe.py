"""One probe of the capacity search: the load at one rate, how many requests were met, and what that decides."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from loadgen.intervals import Interval, clopper_pearson, is_surely_at_least, is_surely_below, wilson


class Verdict(enum.Enum):
    """Of a probe."""

    PASSED = "passed"
    FAILED = "failed"
    INVALID = "invalid"
    """Its numbers must not be believed; it never passes."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClassCount:
    """Requests of one class: how many met their targets, of those that are judged (sent and not cancelled)."""

    num_met: int
    num_judged: int

    def __add__(self, other: ClassCount) -> ClassCount:
        return ClassCount(self.num_met + other.num_met, self.num_judged + other.num_judged)

    @property
    def attainment(self) -> float | None:
        return self.num_met / self.num_judged if self.num_judged else None

    def shown_interval(self, confidence: float) -> Interval | None:
        """Wilson's."""
        return wilson(self.num_met, self.num_judged, confidence) if self.num_judged else None

    def exact_interval(self, confidence: float) -> Interval | None:
        """Clopper and Pearson's."""
        return clopper_pearson(self.num_met, self.num_judged, confidence) if self.num_judged else None


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """One load test of a probe; a prolonged probe has several, each with a plan of its own."""

    counts: Mapping[str, ClassCount]
    """Of every class that was sent, by name."""
    seed: int
    duration_s: float
    goodput_per_s: float | None = None
    send_lag_p99_s: float | None = None
    invalid_reasons: tuple[str, ...] = ()
    """Empty: its numbers may be believed."""
    is_client_limit: bool = False
    """It is invalid because this client was too slow, not because of the server."""
    interrupted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """All looks at one rate."""

    rate_per_s: float
    looks: tuple[Look, ...]
    verdict: Verdict
    is_sure: bool
    """False: undecided to the end, the verdict is that of the point estimates."""

    @property
    def counts(self) -> dict[str, ClassCount]:
        """Of all looks together."""
        return add_counts(self.looks)

    @property
    def invalid_reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reason for look in self.looks for reason in look.invalid_reasons))

    @property
    def is_client_limit(self) -> bool:
        return any(look.is_client_limit for look in self.looks)

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED


class Grader:
    """Decides probes: every judged class must keep its objective.

    A probe surely passes where the exact test says so of each class, and surely fails where it says so of one. Since
    each look is one more chance to be wrong, all of them together share the error that the confidence allows; and so
    do the classes, where one is enough to fail.
    """

    def __init__(self, objectives: Mapping[str, float], confidence: float, max_looks: int) -> None:
        """
        Args:
            objectives: by class, those that are judged; at least one, each above 0 and below 1.
            confidence: of the two-sided interval that a decision corresponds to.
        """
        self._objectives = dict(objectives)
        self._alpha = (1.0 - confidence) / 2.0 / max_looks

    @property
    def objectives(self) -> dict[str, float]:
        return dict(self._objectives)

    def decide(self, counts: Mapping[str, ClassCount]) -> Verdict | None:
        """None: undecided. A class of which nothing was judged decides nothing."""
        judged = [(objective, counts.get(name)) for name, objective in self._objectives.items()]
        known = [(objective, count) for objective, count in judged if count is not None and count.num_judged]
        alpha = self._alpha / len(self._objectives)
        if any(is_surely_below(objective, count.num_met, count.num_judged, alpha) for objective, count in known):
            return Verdict.FAILED
        passes = (is_surely_at_least(objective, c.num_met, c.num_judged, self._alpha) for objective, c in known)
        return Verdict.PASSED if len(known) == len(judged) and all(passes) else None

    def estimate(self, counts: Mapping[str, ClassCount]) -> Verdict:
        """By the point estimates alone; what was not seen is not met."""
        attainments = {name: counts[name].attainment if name in counts else None for name in self._objectives}
        met = (a is not None and a >= self._objectives[name] for name, a in attainments.items())
        return Verdict.PASSED if all(met) else Verdict.FAILED


def add_counts(looks: Sequence[Look]) -> dict[str, ClassCount]:
    """The counts of several looks, class by class."""
    total: dict[str, ClassCount] = {}
    for look in looks:
        for name, count in look.counts.items():
            total[name] = total.get(name, ClassCount(0, 0)) + count
    return total
