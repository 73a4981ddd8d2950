"""What a load test measured, from the timestamps of its requests. Each word is defined here, once.

- TTFT: from the *intended* send time to the first text. A client that falls behind its schedule measures its own delay
  as latency instead of leaving it out (coordinated omission). A completed request without text is timed to its end.
- TPOT: (t_last - t_first) / (n - 1) over the n output tokens; undefined for n = 1.
- ITL: the gap before each chunk of text after the first; one of m tokens counts m times, with gap / m.
- Stall: the longest of those gaps, undivided. A TPOT target above the longest stall raises that limit too.
- E2E: from the intended send time to the last text.
- Attainment, of offered requests: met / (sent - cancelled). Refused, expired, failed and timed-out requests are misses.
  Of admitted ones: met / (met + late). Cancelled are requests that the end of the run cut off, or that their client
  left as planned, before anything was late. Where some requests are unjudged, because no target is known, there is no
  attainment of offered ones.
- Goodput: met requests per second of the arrival window, which ends when the last request is due, or of the steady
  window where warm-up or cool-down narrow it (`loadgen.phases`): requests outside it are in no figure but their count.

Of several misses the first of late_ttft, late_e2e, late_tpot, late_stall is the outcome, as in the server.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from loadgen.class_mix import NO_CLASS
from loadgen.targets import TargetBook, Targets
from loadgen.trace import RequestTrace, TraceEnd


class Outcome(enum.Enum):
    """What became of a sent request, by the client's clock."""

    MET = "met"
    LATE_TTFT = "late_ttft"
    LATE_TPOT = "late_tpot"
    LATE_STALL = "late_stall"
    LATE_E2E = "late_e2e"
    REFUSED = "refused"
    EXPIRED = "expired"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    UNJUDGED = "unjudged"


LATE = (Outcome.LATE_TTFT, Outcome.LATE_TPOT, Outcome.LATE_STALL, Outcome.LATE_E2E)
_ENDED_EARLY = {
    TraceEnd.REFUSED: Outcome.REFUSED,
    TraceEnd.EXPIRED: Outcome.EXPIRED,
    TraceEnd.FAILED: Outcome.FAILED,
    TraceEnd.TIMED_OUT: Outcome.TIMED_OUT,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Latencies:
    """Of one request, in seconds."""

    ttft_s: float
    tpot_s: float | None
    """None: fewer than two tokens."""
    max_gap_s: float
    e2e_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Quantiles:
    """Of one latency over requests (or tokens), in seconds; linear between samples."""

    num_samples: int
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class ClassSummary:
    """One class, or all of them."""

    name: str
    num_sent: int
    outcomes: dict[Outcome, int]
    """Every outcome, zeros too; they add up to `num_sent`."""
    offered_attainment: float | None
    admitted_attainment: float | None
    """None: no request to judge."""
    goodput_per_s: float | None
    num_degraded: int
    """Served in another class than the one asked for."""
    num_prompt_tokens: int
    num_cached_tokens: int
    cached_tokens_by_tier: dict[str, int]
    """Of the cached ones, as far as the server says where they were."""
    num_output_tokens: int
    ttft: Quantiles | None
    tpot: Quantiles | None
    itl: Quantiles | None
    e2e: Quantiles | None
    """Over completed requests; None: there is none."""
    send_lag: Quantiles | None
    """Over all sent ones."""

    @property
    def num_late(self) -> int:
        return sum(self.outcomes[outcome] for outcome in LATE)


def measure(trace: RequestTrace) -> Latencies:
    """The latencies of a completed request."""
    assert trace.finished_s is not None
    first_s = trace.chunks[0].time_s if trace.chunks else trace.finished_s
    last_s = trace.chunks[-1].time_s if trace.chunks else trace.finished_s
    num_tokens = trace.num_output_tokens
    return Latencies(
        ttft_s=first_s - trace.intended_s,
        tpot_s=(last_s - first_s) / (num_tokens - 1) if num_tokens > 1 and trace.chunks else None,
        max_gap_s=max(_gaps_s(trace), default=0.0),
        e2e_s=last_s - trace.intended_s,
    )


def inter_token_s(trace: RequestTrace) -> list[float]:
    """One value a token after the first chunk."""
    pairs = zip(_gaps_s(trace), trace.chunks[1:], strict=True)
    return [gap_s / chunk.num_tokens for gap_s, chunk in pairs for _ in range(chunk.num_tokens)]


def judge(trace: RequestTrace, book: TargetBook) -> Outcome:
    """The outcome of a request that is over."""
    assert trace.end is not None, f"request {trace.planned.index} is not over"
    if trace.end in _ENDED_EARLY:
        return _ENDED_EARLY[trace.end]
    targets = book.targets_for(trace.planned.slo_class, trace.num_uncached_tokens, trace.told)
    latencies = measure(trace) if trace.end is TraceEnd.COMPLETED else _measure_cut_off(trace)
    missed = find_miss(latencies, targets)
    if missed is not None:
        return missed
    if trace.end is TraceEnd.CANCELLED:
        return Outcome.CANCELLED
    return Outcome.MET if targets.judges else Outcome.UNJUDGED


def find_miss(latencies: Latencies, targets: Targets) -> Outcome | None:
    """The first target that was missed; None: all were met."""
    if targets.ttft_s is not None and latencies.ttft_s > targets.ttft_s:
        return Outcome.LATE_TTFT
    if targets.e2e_s is not None and latencies.e2e_s > targets.e2e_s:
        return Outcome.LATE_E2E
    if targets.tpot_s is not None and latencies.tpot_s is not None and latencies.tpot_s > targets.tpot_s:
        return Outcome.LATE_TPOT
    if targets.max_stall_s is not None and latencies.max_gap_s > max(targets.max_stall_s, targets.tpot_s or 0.0):
        return Outcome.LATE_STALL
    return None


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """None: there are no values."""
    array = np.asarray(list(values), dtype=np.float64)
    if array.size == 0:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.quantile(array, (0.5, 0.9, 0.95, 0.99)))
    return Quantiles(int(array.size), float(array.mean()), p50, p90, p95, p99, float(array.max()))


def summarize(
    name: str,
    judged: Sequence[tuple[RequestTrace, Outcome]],
    arrival_window_s: float | None,
    default_class: str | None = None,
) -> ClassSummary:
    """The summary of some requests with their outcomes. `default_class` is the one that requests of `NO_CLASS` ask for;
    None: the server told none, and nobody can say whether they were degraded."""
    counts = dict.fromkeys(Outcome, 0)
    for _, outcome in judged:
        counts[outcome] += 1
    traces = [trace for trace, _ in judged]
    completed = [trace for trace in traces if trace.end is TraceEnd.COMPLETED]
    latencies = [measure(trace) for trace in completed]
    num_late = sum(counts[outcome] for outcome in LATE)
    num_judged = 0 if counts[Outcome.UNJUDGED] else len(judged) - counts[Outcome.CANCELLED]
    return ClassSummary(
        name=name,
        num_sent=len(judged),
        outcomes=counts,
        offered_attainment=_ratio(counts[Outcome.MET], num_judged),
        admitted_attainment=_ratio(counts[Outcome.MET], counts[Outcome.MET] + num_late),
        goodput_per_s=counts[Outcome.MET] / arrival_window_s if arrival_window_s else None,
        num_degraded=sum(_is_degraded(trace, default_class) for trace in traces),
        num_prompt_tokens=sum(trace.num_prompt_tokens or 0 for trace in traces),
        num_cached_tokens=sum(trace.num_cached_tokens or 0 for trace in traces),
        cached_tokens_by_tier=_sum_by_tier(traces),
        num_output_tokens=sum(trace.num_output_tokens for trace in traces),
        ttft=quantiles(value.ttft_s for value in latencies),
        tpot=quantiles(value.tpot_s for value in latencies if value.tpot_s is not None),
        itl=quantiles(gap_s for trace in completed for gap_s in inter_token_s(trace)),
        e2e=quantiles(value.e2e_s for value in latencies),
        send_lag=quantiles(trace.send_lag_s for trace in traces),
    )


def _sum_by_tier(traces: Iterable[RequestTrace]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for trace in traces:
        for tier, num_tokens in (trace.cached_tokens_by_tier or {}).items():
            totals[tier] = totals.get(tier, 0) + num_tokens
    return totals


def _measure_cut_off(trace: RequestTrace) -> Latencies:
    """A request that the end of the run cut off, as if the token it waited for had come at that moment."""
    assert trace.finished_s is not None
    if not trace.chunks:
        waited_s = trace.finished_s - trace.intended_s
        return Latencies(waited_s, None, 0.0, waited_s)
    first_s, last_s = trace.chunks[0].time_s, trace.chunks[-1].time_s
    num_tokens = sum(chunk.num_tokens for chunk in trace.chunks)
    tpot_s = (trace.finished_s - first_s) / num_tokens
    if num_tokens > 1:
        tpot_s = max(tpot_s, (last_s - first_s) / (num_tokens - 1))
    max_gap_s = max([*_gaps_s(trace), trace.finished_s - last_s])
    return Latencies(first_s - trace.intended_s, tpot_s, max_gap_s, trace.finished_s - trace.intended_s)


def _gaps_s(trace: RequestTrace) -> list[float]:
    times = [chunk.time_s for chunk in trace.chunks]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _is_degraded(trace: RequestTrace, default_class: str | None) -> bool:
    asked = default_class if trace.planned.slo_class == NO_CLASS else trace.planned.slo_class
    return asked is not None and trace.told is not None and trace.told.granted not in (None, asked)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
