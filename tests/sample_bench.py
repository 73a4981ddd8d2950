"""Results of load tests that never ran: random traces with every outcome, for what shows results."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from loadgen.class_mix import parse_class_mix
from loadgen.conditions import Conditions
from loadgen.config import BenchConfig
from loadgen.result import BenchResult, make_result
from loadgen.runner import RunResult
from loadgen.server_probe import ServerInfo
from loadgen.targets import ClassTargets, TargetBook, Targets
from loadgen.trace import LEFT, Chunk, RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest

STARTED_S = 1000.0
CONDITIONS = Conditions("2026-01-02T03:04:05+00:00", "headrace bench http://x", "0.1.0", "3.11.7", "Linux", 2)
_ENDS = (*[TraceEnd.COMPLETED] * 12, TraceEnd.REFUSED, TraceEnd.EXPIRED, TraceEnd.FAILED, TraceEnd.TIMED_OUT)
_ANSWERS = {TraceEnd.REFUSED: (429, "full"), TraceEnd.EXPIRED: (503, "expired"), TraceEnd.FAILED: (500, "boom")}


def sample_trace(index: int, slo_class: str, rng: random.Random) -> RequestTrace:
    """One that is over: most are completed with a few chunks, some of several tokens."""
    end = rng.choice((*_ENDS, TraceEnd.CANCELLED))
    intended_s = STARTED_S + index * 0.1 + rng.uniform(0.0, 0.05)
    planned = PlannedRequest(index, slo_class, intended_s - STARTED_S, "", rng.randint(5, 900), 8)
    trace = RequestTrace(planned, intended_s, intended_s + rng.uniform(0.0, 0.004))
    if end in _ANSWERS:
        trace.status, code = _ANSWERS[end]
        trace.finish(end, trace.sent_s + 0.01, f'HTTP {trace.status}: no <room> & "more"', code)
        return trace
    time_s = trace.sent_s
    trace.status = 200
    for _ in range(rng.randint(1, 8)):
        time_s += rng.expovariate(12.0)
        trace.chunks.append(Chunk(time_s, rng.randint(1, 3)))
    trace.num_prompt_tokens = planned.num_prompt_tokens
    code = LEFT if end is TraceEnd.CANCELLED else "timed_out" if end is TraceEnd.TIMED_OUT else None
    trace.finish(end, time_s + rng.uniform(0.0, 0.02), None if code is None else f"it was {code}", code)
    return trace


def sample_result(
    num_requests: int = 120, seed: int = 0, names: tuple[str, ...] = ("interactive", "batch"), **options: Any
) -> BenchResult:
    """A valid run of some classes, the first of which has TTFT targets that grow with the prompt."""
    rng = random.Random(seed)
    config = BenchConfig("http://x", rate=10.0, classes=names, **{"warm_up_s": 1.0, "cool_down_s": 1.0, **options})
    traces = tuple(sample_trace(i, rng.choice(names), rng) for i in range(num_requests))
    book = TargetBook(
        {name: Targets(ttft_s=0.15, tpot_s=0.08) for name in names[1:]},
        {names[0]: ClassTargets(0.1, 0.1, 0.06, 0.4)},
    )
    server = ServerInfo("tiny", default_class=names[0], objectives={names[0]: 0.9})
    ended_s = max((trace.finished_s or 0.0 for trace in traces), default=STARTED_S) + 0.1
    window_s = num_requests * 0.1 + 0.1 if num_requests else None
    run = RunResult(traces, STARTED_S, ended_s, window_s, interrupted=False)
    result = make_result(config, parse_class_mix(config), server, book, run)
    return dataclasses.replace(result, conditions=CONDITIONS)
