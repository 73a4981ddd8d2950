"""Figures of served and of simulated loads, all by the arithmetic of `headrace bench`, and their tables in markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.served_load import COMMON_TARGETS, MIX, ServedRun
from benchmarks.step_totals import StepTotals
from loadgen.metrics import ClassSummary, Outcome, Quantiles, judge, summarize
from loadgen.targets import ClassTargets, TargetBook
from scheduler.slo import SLOClasses

ALL = "all"
MAX_MEDIAN_RATIO = 0.1
MAX_POINTS = 0.05
"""How far a prediction may be off: medians, and shares of requests in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Of one class, or all of them, over all rounds of one contender at one rate."""

    summary: ClassSummary
    """Judged by the common targets. Latencies are those of requests that were served to their end."""
    by_round: tuple[float | None, ...]
    """Offered attainment of each round."""
    own_attainment: float | None
    """By the class's own targets."""
    steps: StepTotals | None = None
    """Of all classes together; None: not known."""

    @property
    def num_refused(self) -> int:
        """Expired ones too."""
        return self.summary.outcomes[Outcome.REFUSED] + self.summary.outcomes[Outcome.EXPIRED]

    @property
    def num_failed(self) -> int:
        """Timed-out ones too."""
        return self.summary.outcomes[Outcome.FAILED] + self.summary.outcomes[Outcome.TIMED_OUT]


def common_book() -> TargetBook:
    """The same targets for everyone."""
    return TargetBook({c.name: COMMON_TARGETS for c in MIX}, {})


def own_book(classes: SLOClasses) -> TargetBook:
    """The targets of the classes, whoever serves."""
    served = {
        c.name: ClassTargets(c.ttft_base_s, c.ttft_per_1k_tokens_s, c.tpot_s, c.max_stall_s)
        for c in classes
        if c.name in {m.name for m in MIX}
    }
    return TargetBook({}, served)


def figures_of(rounds: Sequence[ServedRun], classes: SLOClasses) -> dict[str, Figures]:
    """By class in the order of the mix, then of all together.

    Raises:
        ValueError: the bench judged otherwise.
    """
    own = own_book(classes)
    found = {}
    for name in (*(c.name for c in MIX), ALL):
        summaries = [_summary(name, [run], common_book()) for run in rounds]
        for run, summary in zip(rounds, summaries, strict=True):
            _check_met(run, summary)
        found[name] = Figures(
            _summary(name, rounds, common_book()),
            tuple(summary.offered_attainment for summary in summaries),
            _summary(name, rounds, own).offered_attainment,
            _steps(rounds) if name == ALL else None,
        )
    return found


def _steps(rounds: Sequence[ServedRun]) -> StepTotals | None:
    total = StepTotals()
    for run in rounds:
        if run.steps is None:
            return None
        total = total.plus(run.steps)
    return total


def _summary(name: str, rounds: Sequence[ServedRun], book: TargetBook) -> ClassSummary:
    judged = [(t, judge(t, book)) for run in rounds for t in run.traces if name in (ALL, t.planned.slo_class)]
    return summarize(name, judged, sum(run.window_s for run in rounds))


def _check_met(run: ServedRun, summary: ClassSummary) -> None:
    if run.met_by_class is None or summary.name == ALL:
        return
    counted = run.met_by_class.get(summary.name, 0)
    if counted != summary.outcomes[Outcome.MET]:
        raise ValueError(f"{summary.name}: the bench counts {counted} in time, its requests say {summary.outcomes}")


Place = tuple[str, float]
"""Contender and rate."""
_HEADS = (
    *("policy", "rate/s", "class", "sent", "met", "late", "refused", "failed"),
    *("attainment", "by round", "by its own targets", "goodput/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms"),
)


def measured_table(found: Mapping[Place, Mapping[str, Figures]]) -> str:
    """What was measured."""
    rows = []
    for (name, rate), by_class in found.items():
        for label, figures in by_class.items():
            s = figures.summary
            rows.append(
                (
                    *(name, f"{rate:g}", label, str(s.num_sent), str(s.outcomes[Outcome.MET]), str(s.num_late)),
                    *(str(figures.num_refused), str(figures.num_failed)),
                    *(_percent(s.offered_attainment), ", ".join(map(_percent, figures.by_round))),
                    _percent(figures.own_attainment),
                    "-" if s.goodput_per_s is None else f"{s.goodput_per_s:.2f}",
                    *(_ms(_p(s.ttft, 50)), _ms(_p(s.ttft, 99)), _ms(_p(s.tpot, 50)), _ms(_p(s.tpot, 99))),
                )
            )
    return _table("Measured", _HEADS, rows)


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """One value, predicted and measured."""

    predicted: float | None
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """None: one of them is missing, or 0 was measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured

    @property
    def difference(self) -> float | None:
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted - self.measured

    def in_ms(self, digits: int = 0) -> str:
        ratio = "" if self.ratio is None else f" ({self.ratio:.2f})"
        return f"{_ms(self.predicted, digits)} / {_ms(self.measured, digits)}{ratio}"

    def in_numbers(self) -> str:
        ratio = "" if self.ratio is None else f" ({self.ratio:.2f})"
        return " / ".join("-" if v is None else f"{v:,.0f}" for v in (self.predicted, self.measured)) + ratio

    def in_percent(self) -> str:
        points = "" if self.difference is None else f" ({self.difference * 100:+.0f})"
        return f"{_percent(self.predicted)} / {_percent(self.measured)}{points}"


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """What the simulator said of a class, beside what was measured."""

    ttft_p50: Comparison
    ttft_p99: Comparison
    tpot_p50: Comparison
    attainment: Comparison
    own_attainment: Comparison
    num_steps: Comparison | None = None
    mean_step: Comparison | None = None
    """None: of a class alone, or not known."""

    @classmethod
    def of(cls, predicted: Figures, measured: Figures) -> Agreement:
        p, m = predicted.summary, measured.summary
        ours, theirs = predicted.steps, measured.steps
        return cls(
            Comparison(_p(p.ttft, 50), _p(m.ttft, 50)),
            Comparison(_p(p.ttft, 99), _p(m.ttft, 99)),
            Comparison(_p(p.tpot, 50), _p(m.tpot, 50)),
            Comparison(p.offered_attainment, m.offered_attainment),
            Comparison(predicted.own_attainment, measured.own_attainment),
            Comparison(ours.num_steps, theirs.num_steps) if ours is not None and theirs is not None else None,
            Comparison(ours.mean_s, theirs.mean_s) if ours is not None and theirs is not None else None,
        )


_AGREEMENT_HEADS = (
    *("policy", "rate/s", "class", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "attainment", "own"),
    *("steps", "mean step ms"),
)


def agreement_table(found: Mapping[Place, Mapping[str, Agreement]]) -> str:
    """Predicted / measured, and how many predictions are as near as they should be."""
    rows = [
        (
            *(name, f"{rate:g}", label, a.ttft_p50.in_ms(), a.ttft_p99.in_ms(), a.tpot_p50.in_ms()),
            *(a.attainment.in_percent(), a.own_attainment.in_percent()),
            "" if a.num_steps is None else a.num_steps.in_numbers(),
            "" if a.mean_step is None else a.mean_step.in_ms(digits=1),
        )
        for (name, rate), by_class in found.items()
        for label, a in by_class.items()
    ]
    each = [a for by_class in found.values() for label, a in by_class.items() if label != ALL]
    verdicts = (
        f"TTFT medians within {MAX_MEDIAN_RATIO:.0%}: {_near([a.ttft_p50 for a in each])}",
        f"TPOT medians: {_near([a.tpot_p50 for a in each])}",
        f"attainment within {MAX_POINTS * 100:.0f} points: {_near_points([a.attainment for a in each])}",
        f"by own targets: {_near_points([a.own_attainment for a in each])}",
    )
    title = "Predicted against measured: predicted / measured (ratio, or difference in points)"
    return _table(title, _AGREEMENT_HEADS, rows) + "\n" + "; ".join(verdicts) + " (of class, rate and policy).\n"


def _near(values: Sequence[Comparison]) -> str:
    ratios = [value.ratio for value in values if value.ratio is not None]
    return f"{sum(abs(ratio - 1.0) <= MAX_MEDIAN_RATIO + 1e-9 for ratio in ratios)} of {len(ratios)}"


def _near_points(values: Sequence[Comparison]) -> str:
    points = [value.difference for value in values if value.difference is not None]
    return f"{sum(abs(difference) <= MAX_POINTS + 1e-9 for difference in points)} of {len(points)}"


def _p(quantiles: Quantiles | None, percent: int) -> float | None:
    if quantiles is None:
        return None
    return quantiles.p50_s if percent == 50 else quantiles.p99_s


def _ms(seconds: float | None, digits: int = 0) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"### {title}", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
