"""Is the second of two runs better? Request by request where both have the same plan.

The difference of attainment is called shown where its bootstrap interval excludes 0 and, in pairs, McNemar's exact test
agrees: few discordant pairs make the interval too narrow, and the test ignores that turns of a conversation depend on
each other. Of latencies the interval alone decides. Latencies are compared over pairs of which both sides completed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence

from loadgen.bootstrap import Bootstrap, Difference, Statistic, WeightedMean, WeightedQuantile, number_clusters
from loadgen.cached_share import CachedShare, cached_share
from loadgen.config import BenchError
from loadgen.mcnemar import mcnemar_exact
from loadgen.saved_run import SavedRequest, SavedRun

ALL = "all"
ATTAINMENT = "attainment"
LATENCIES = {
    "ttft_p50": ("ttft_s", 0.5),
    "ttft_p99": ("ttft_s", 0.99),
    "tpot_p50": ("tpot_s", 0.5),
    "tpot_p99": ("tpot_s", 0.99),
}
"""Metric to the field of a request and the quantile."""
METRICS = (ATTAINMENT, *LATENCIES)
MIN_PAIRS = 30
MIN_PAIRS_P99 = 299
"""With fewer the largest value lies below the true p99 more often than 5 % of the time (0.99^299 = 0.05), and no
resample reaches beyond it."""
Pair = tuple[SavedRequest, SavedRequest]
Value = Callable[[SavedRequest], float | None]


class Finding(enum.Enum):
    """Of the second run, beside the first."""

    BETTER = "better"
    WORSE = "worse"
    MIXED = "mixed"
    NO_DIFFERENCE = "no difference shown"
    TOO_FEW = "too few pairs"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One metric of one class, or of all."""

    metric: str
    slo_class: str
    num_first: int
    num_second: int
    """Requests that have the metric; of pairs the same number twice."""
    difference: Difference | None
    """None: no request has the metric. Shares for attainment, else seconds."""
    p_value: float | None
    """McNemar's; None: not an attainment of pairs."""
    finding: Finding

    @property
    def name(self) -> str:
        return f"{self.metric}.{self.slo_class}"

    @property
    def relative_change(self) -> float | None:
        """None: there is nothing to relate it to."""
        difference = self.difference
        return None if difference is None or difference.first == 0.0 else difference.change / difference.first


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, the second beside the first."""

    is_paired: bool
    num_pairs: int
    num_alone: int
    """Requests of either run without a partner in the other's steady window."""
    has_other_targets: bool
    """A response of the second run told other targets than that of its partner."""
    rows: tuple[Row, ...]
    cached: tuple[CachedShare, ...] = ()
    """By class and for all, where both runs tell. No metric of the server's work: it decides no verdict."""

    @property
    def cache_difference(self) -> CachedShare | None:
        """The widest clear one; None: the prefix cache held about as much in both runs."""
        return max((each for each in self.cached if each.differs), key=lambda each: abs(each.change), default=None)

    def find(self, metric: str, slo_class: str) -> Row | None:
        return next((row for row in self.rows if (row.metric, row.slo_class) == (metric, slo_class)), None)

    @property
    def verdict(self) -> Finding:
        """By attainment; where nothing was judged, by the latencies."""
        rows = [r for r in self.rows if r.difference is not None]
        found = {row.finding for row in [r for r in rows if r.metric == ATTAINMENT] or rows}
        if {Finding.BETTER, Finding.WORSE} <= found:
            return Finding.MIXED
        for finding in (Finding.WORSE, Finding.BETTER, Finding.NO_DIFFERENCE):
            if finding in found:
                return finding
        return Finding.TOO_FEW


def compare_pairs(first: SavedRun, second: SavedRun, bootstrap: Bootstrap) -> Comparison:
    """Compare runs of one plan.

    Raises:
        BenchError: rows do not fit together, or no row is in both runs.
    """
    pairs = _pair_up(first, second)
    if not pairs:
        raise BenchError(f"no request is in the steady window of both {first.path} and {second.path}")
    rows = [
        _paired_row(metric, name, [pair for pair in pairs if name in (ALL, pair[0].slo_class)], bootstrap)
        for name in _scopes([one for one, _ in pairs])
        for metric in METRICS
    ]
    return Comparison(
        is_paired=True,
        num_pairs=len(pairs),
        num_alone=len(first.requests) + len(second.requests) - 2 * len(pairs),
        has_other_targets=any(one.targets != other.targets for one, other in pairs if one.targets and other.targets),
        rows=tuple(rows),
        cached=_cached(*_told_of_both(pairs)),
    )


def compare_unpaired(first: SavedRun, second: SavedRun, bootstrap: Bootstrap) -> Comparison:
    """Compare runs of different plans, each as a sample of its own: what differs may be the load."""
    rows = [
        _unpaired_row(metric, name, _of_class(first, name), _of_class(second, name), bootstrap)
        for name in _scopes([*first.requests, *second.requests])
        for metric in METRICS
    ]
    num_alone, cached = len(first.requests) + len(second.requests), _cached(first.requests, second.requests)
    return Comparison(False, 0, num_alone, False, tuple(rows), cached)


def _told_of_both(pairs: Sequence[Pair]) -> tuple[list[SavedRequest], list[SavedRequest]]:
    """Both sides of the pairs whose prompt tokens are known on both: so the same prompts stand in both shares."""
    told = [pair for pair in pairs if all(request.num_prompt_tokens for request in pair)]
    return [one for one, _ in told], [other for _, other in told]


def _cached(first: Sequence[SavedRequest], second: Sequence[SavedRequest]) -> tuple[CachedShare, ...]:
    shares = (
        cached_share(name, *([each for each in side if name in (ALL, each.slo_class)] for side in (first, second)))
        for name in _scopes([*first, *second])
    )
    return tuple(share for share in shares if share is not None)


def _pair_up(first: SavedRun, second: SavedRun) -> list[Pair]:
    by_id = {request.trace_id: request for request in second.requests}
    pairs = [(request, by_id[request.trace_id]) for request in first.requests if request.trace_id in by_id]
    for one, other in pairs:
        if one.slo_class != other.slo_class:
            raise BenchError(
                f"request {one.trace_id} is of class {one.slo_class!r} in {first.path} and of {other.slo_class!r} in "
                f"{second.path}: these are different loads; compare them with --unpaired"
            )
    return pairs


def _scopes(requests: Sequence[SavedRequest]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(request.slo_class for request in requests))
    return tuple(dict.fromkeys((*names, ALL)))


def _of_class(run: SavedRun, name: str) -> list[SavedRequest]:
    return [request for request in run.requests if name in (ALL, request.slo_class)]


def _paired_row(metric: str, name: str, pairs: Sequence[Pair], bootstrap: Bootstrap) -> Row:
    value = _value_of(metric)
    known = [(v, w, one) for one, other in pairs if None not in (v := value(one), w := value(other))]
    if not known:
        return Row(metric, name, 0, 0, None, None, Finding.TOO_FEW)
    firsts = [v for v, _, _ in known if v is not None]
    seconds = [w for _, w, _ in known if w is not None]
    clusters = number_clusters([_cluster(one) for _, _, one in known])
    difference = bootstrap.paired(_statistic(metric, firsts), _statistic(metric, seconds), clusters)
    p_value = None
    if metric == ATTAINMENT:
        only_first = sum(v > w for v, w in zip(firsts, seconds, strict=True))
        p_value = mcnemar_exact(only_first, sum(v < w for v, w in zip(firsts, seconds, strict=True)))
    is_shown = p_value is None or p_value <= 1.0 - bootstrap.confidence
    finding = _finding(metric, len(known), difference, is_shown)
    return Row(metric, name, len(known), len(known), difference, p_value, finding)


def _unpaired_row(
    metric: str, name: str, first: Sequence[SavedRequest], second: Sequence[SavedRequest], bootstrap: Bootstrap
) -> Row:
    value = _value_of(metric)
    firsts = [(v, request) for request in first if (v := value(request)) is not None]
    seconds = [(v, request) for request in second if (v := value(request)) is not None]
    if not firsts or not seconds:
        return Row(metric, name, len(firsts), len(seconds), None, None, Finding.TOO_FEW)
    difference = bootstrap.unpaired(
        _statistic(metric, [v for v, _ in firsts]),
        number_clusters([_cluster(request) for _, request in firsts]),
        _statistic(metric, [v for v, _ in seconds]),
        number_clusters([_cluster(request) for _, request in seconds]),
    )
    finding = _finding(metric, min(len(firsts), len(seconds)), difference, is_shown=True)
    return Row(metric, name, len(firsts), len(seconds), difference, None, finding)


def _value_of(metric: str) -> Value:
    if metric == ATTAINMENT:
        return lambda request: None if request.met is None else float(request.met)
    field, _ = LATENCIES[metric]
    return lambda request: getattr(request, field)


def _statistic(metric: str, values: Sequence[float]) -> Statistic:
    return WeightedMean(values) if metric == ATTAINMENT else WeightedQuantile(values, LATENCIES[metric][1])


def _cluster(request: SavedRequest) -> object:
    return request.trace_id if request.session is None else request.session


def _finding(metric: str, num_pairs: int, difference: Difference, is_shown: bool) -> Finding:
    if num_pairs < (MIN_PAIRS_P99 if metric.endswith("_p99") else MIN_PAIRS):
        return Finding.TOO_FEW
    if not is_shown or 0.0 in difference.interval:
        return Finding.NO_DIFFERENCE
    is_better = difference.change > 0.0 if metric == ATTAINMENT else difference.change < 0.0
    return Finding.BETTER if is_better else Finding.WORSE
