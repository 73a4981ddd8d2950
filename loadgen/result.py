"""The result of a load test: summaries by class, and whether the run may be believed."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable

from loadgen.calibration import Calibration
from loadgen.class_mix import NO_CLASS, ClassMix
from loadgen.conditions import Conditions
from loadgen.config import BenchConfig
from loadgen.metrics import ClassSummary, Outcome, judge, quantiles, summarize
from loadgen.phases import Phase, SteadyWindow, steady_window
from loadgen.runner import RunResult
from loadgen.server_probe import ServerInfo
from loadgen.server_view import ServerView
from loadgen.targets import TargetBook, Targets
from loadgen.trace import RequestTrace, TraceEnd
from loadgen.trace_workload import Replay
from loadgen.transport import CLIENT_LIMIT

OVERALL = "all"
_MAX_ERRORS = 10
_MIN_WITHOUT_SERVER = 3
"""Requests at the end that found no server: fewer may be a proxy's hiccup."""
_FALLBACK_TTFT_S = 1.0
"""What send lag is compared with where no TTFT target is known."""


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorCount:
    """Requests that were refused or failed alike."""

    status: int | None
    """Of HTTP; None: there was no answer."""
    code: str | None
    """None: the server gave none."""
    count: int
    example: str
    """The text of the first of them; in the others times and numbers may differ."""

    @property
    def text(self) -> str:
        """`example` without the status that stands beside it."""
        return self.example.removeprefix(f"HTTP {self.status}: ")


@dataclasses.dataclass(frozen=True, slots=True)
class BenchResult:
    """Everything a report shows."""

    config: BenchConfig
    server: ServerInfo
    run: RunResult
    judged: tuple[tuple[RequestTrace, Outcome], ...]
    """All that were sent, those of warm-up and cool-down too."""
    window: SteadyWindow
    """Whose requests the summaries count."""
    overall: ClassSummary
    classes: tuple[ClassSummary, ...]
    max_send_lag_s: float
    """The p99 of send lag above which the run is invalid."""
    invalid_reasons: tuple[str, ...]
    """Empty: the run is valid."""
    errors: tuple[ErrorCount, ...]
    """Of failed and refused requests, the most frequent first; of all phases."""
    replay: Replay | None = None
    """None: no trace was replayed."""
    calibration: Calibration = dataclasses.field(default_factory=Calibration)
    book: TargetBook = dataclasses.field(default_factory=lambda: TargetBook({}, {}))
    """What requests were judged by."""
    server_view: ServerView | None = None
    """None: the server's metrics were not read."""
    conditions: Conditions | None = None
    """None: nobody asked for them."""

    @property
    def is_valid(self) -> bool:
        return not self.invalid_reasons

    def phase_of(self, trace: RequestTrace) -> Phase:
        """Where it was due."""
        return self.window.phase_of(trace.intended_s - self.run.started_s)

    def targets_of(self, trace: RequestTrace) -> Targets:
        """What it was judged by."""
        return self.book.targets_for(trace.planned.slo_class, trace.num_uncached_tokens, trace.told)

    @property
    def counted(self) -> tuple[tuple[RequestTrace, Outcome], ...]:
        """Of `judged` those of the steady window: what the summaries are made of."""
        return tuple(pair for pair in self.judged if self.phase_of(pair[0]) is Phase.STEADY)

    @property
    def num_by_phase(self) -> dict[Phase, int]:
        """Requests sent, by where they were due."""
        return {phase: sum(self.phase_of(trace) is phase for trace, _ in self.judged) for phase in Phase}


def make_result(
    config: BenchConfig,
    mix: ClassMix,
    server: ServerInfo,
    book: TargetBook,
    run: RunResult,
    replay: Replay | None = None,
    calibration: Calibration | None = None,
) -> BenchResult:
    """Judge every request and sum up those of the steady window."""
    window = steady_window(config.warm_up_s, config.cool_down_s, run.arrival_window_s)
    judged = tuple((trace, judge(trace, book)) for trace in run.traces)
    counted = [
        pair for pair in judged if window.phase_of(pair[0].intended_s - run.started_s) is Phase.STEADY
    ]  # fmt: skip
    by_class = {name: [pair for pair in counted if pair[0].planned.slo_class == name] for name in mix.names}
    asked_by_default = NO_CLASS if mix.names_class else server.default_class
    tightest_ttft_s = book.tightest_ttft_s(mix.names)
    max_send_lag_s = config.max_send_lag * (_FALLBACK_TTFT_S if tightest_ttft_s is None else tightest_ttft_s)
    return BenchResult(
        config=config,
        server=server,
        run=run,
        judged=judged,
        window=window,
        overall=summarize(OVERALL, counted, window.length_s, asked_by_default),
        classes=tuple(summarize(name, pairs, window.length_s, asked_by_default) for name, pairs in by_class.items()),
        max_send_lag_s=max_send_lag_s,
        invalid_reasons=find_invalid(tuple(trace for trace, _ in counted), max_send_lag_s, len(judged)),
        errors=count_errors(run.traces),
        replay=replay,
        calibration=calibration or Calibration(),
        book=book,
    )


def count_errors(traces: Iterable[RequestTrace]) -> tuple[ErrorCount, ...]:
    """By status and code: texts name times, which differ from request to request. To leave as planned is no error."""
    counts: collections.Counter[tuple[int | None, str | None]] = collections.Counter()
    examples: dict[tuple[int | None, str | None], str] = {}
    for trace in traces:
        if trace.error is not None and not trace.is_left:
            key = trace.status, trace.error_code
            counts[key] += 1
            examples.setdefault(key, trace.error)
    return tuple(ErrorCount(*key, count, examples[key]) for key, count in counts.most_common(_MAX_ERRORS))


def _num_without_server(traces: Iterable[RequestTrace]) -> int:
    """Requests after the last one that got a connection."""
    latest_first = sorted(traces, key=lambda trace: trace.intended_s, reverse=True)
    return sum(1 for _ in itertools.takewhile(lambda trace: trace.error_code == "ConnectError", latest_first))


def find_invalid(traces: tuple[RequestTrace, ...], max_send_lag_s: float, num_sent: int = 0) -> tuple[str, ...]:
    """Why the numbers of a run must not be believed; empty: they may.

    Args:
        traces: those that count.
        num_sent: with those of warm-up and cool-down.
    """
    reasons = []
    lag = quantiles(trace.send_lag_s for trace in traces)
    if lag is None and num_sent:
        reasons.append(
            f"none of the {num_sent} requests is due between warm-up and cool-down: send for longer, or shorten these"
        )
    elif lag is None:
        reasons.append("no request was sent")
    elif lag.p99_s > max_send_lag_s:
        reasons.append(
            f"requests left {lag.p99_s * 1000.0:.1f} ms late at p99, the limit is {max_send_lag_s * 1000.0:.1f} ms: "
            "this machine is too busy for the rate; lower it, or use another machine"
        )
    num_own = sum(trace.error_code == CLIENT_LIMIT for trace in traces)
    if num_own:
        reasons.append(
            f"{num_own} requests could not be sent, since this machine had no more open files or ports: raise `ulimit "
            "-n`, use --keep-alive, or send less at once"
        )
    num_gone = _num_without_server(traces)
    if _MIN_WITHOUT_SERVER <= num_gone < len(traces):
        reasons.append(
            f"the last {num_gone} of {len(traces)} requests could not connect: the server went away during the run; "
            "see its log, and run again"
        )
    ends = {trace.end for trace in traces}
    if TraceEnd.FAILED in ends and ends <= {TraceEnd.FAILED, TraceEnd.CANCELLED}:
        reasons.append("every request failed")
    return tuple(reasons)
