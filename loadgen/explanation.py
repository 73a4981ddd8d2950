"""Why requests of a load test missed their targets, in words."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

import numpy as np

from loadgen.metrics import Latencies, Outcome, measure
from loadgen.result import BenchResult
from loadgen.targets import Targets
from loadgen.trace import RequestTrace, TraceEnd

Judged = Sequence[tuple[RequestTrace, Outcome]]

_LATE_WORDS = {
    Outcome.LATE_TTFT: "got the first token too late",
    Outcome.LATE_E2E: "got the whole answer too late",
    Outcome.LATE_TPOT: "got the tokens after the first too slowly",
    Outcome.LATE_STALL: "stood still too long in between",
}
_OTHER_WORDS = {
    Outcome.REFUSED: "refused by the server",
    Outcome.EXPIRED: "given up by the server after a wait in its queue",
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "not at an end within the client's patience",
    Outcome.CANCELLED: "left by the client, which is neither met nor missed",
    Outcome.UNJUDGED: "without a known target",
}


def explain(result: BenchResult) -> list[tuple[str, str]]:
    """A class's name and what became of its requests, the most frequent misses first; nothing of an empty class."""
    rows = []
    for summary in result.classes:
        pairs = [pair for pair in result.counted if pair[0].planned.slo_class == summary.name]
        if pairs:
            rows.append((summary.name, _explain_class(result, pairs)))
    return rows


def _explain_class(result: BenchResult, pairs: Judged) -> str:
    counts = collections.Counter(outcome for _, outcome in pairs)
    num_met = counts.pop(Outcome.MET, 0)
    if not counts:
        return f"All {len(pairs):,} kept every target."
    parts = []
    for outcome, count in counts.most_common():
        traces = [trace for trace, each in pairs if each is outcome]
        if outcome in _LATE_WORDS:
            parts.append(f"{count:,} {_LATE_WORDS[outcome]}{_beyond(result, traces, outcome)}")
        else:
            patience = f" of {result.config.timeout_s:g} s" if outcome is Outcome.TIMED_OUT else ""
            parts.append(f"{count:,} {_OTHER_WORDS[outcome]}{patience}{_answers(traces)}")
    return f"{num_met:,} of {len(pairs):,} kept every target; {', '.join(parts)}."


def _beyond(result: BenchResult, traces: Sequence[RequestTrace], outcome: Outcome) -> str:
    """How far the completed ones were beyond their targets."""
    over_s = [
        over
        for trace in traces
        if trace.end is TraceEnd.COMPLETED
        and (over := _over_s(measure(trace), result.targets_of(trace), outcome)) is not None
    ]
    if not over_s:
        return ""
    each = " a token" if outcome is Outcome.LATE_TPOT else ""
    middle, most = (_duration(value) for value in (float(np.median(over_s)), max(over_s)))
    return f" (by {middle}{each})" if len(over_s) == 1 else f" (by {middle}{each} at the median, {most} at most)"


def _over_s(latencies: Latencies, targets: Targets, outcome: Outcome) -> float | None:
    value_s, target_s = {
        Outcome.LATE_TTFT: (latencies.ttft_s, targets.ttft_s),
        Outcome.LATE_E2E: (latencies.e2e_s, targets.e2e_s),
        Outcome.LATE_TPOT: (latencies.tpot_s, targets.tpot_s),
        Outcome.LATE_STALL: (latencies.max_gap_s, targets.max_stall_s),
    }[outcome]
    return None if value_s is None or target_s is None else value_s - target_s


def _answers(traces: Iterable[RequestTrace]) -> str:
    """The most frequent status and code; nothing where the server did not answer, or with success."""
    kinds = collections.Counter(
        (trace.status, trace.error_code or "") for trace in traces if trace.status is not None and trace.status >= 400
    )
    if not kinds:
        return ""
    (status, code), _ = kinds.most_common(1)[0]
    return f" ({'mostly ' if len(kinds) > 1 else ''}HTTP {status} {code}".rstrip() + ")"


def _duration(value_s: float) -> str:
    if value_s >= 10.0:
        return f"{value_s:,.0f} s"
    return f"{value_s:.1f} s" if value_s >= 1.0 else f"{value_s * 1e3:.3g} ms"
