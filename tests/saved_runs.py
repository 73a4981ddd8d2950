"""Saved results of load tests that never ran: every time of every request is the test's choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchConfig
from loadgen.report import encode_json
from loadgen.result import BenchResult, make_result
from loadgen.runner import RunResult
from loadgen.server_probe import ServerInfo
from loadgen.targets import TargetBook, Targets, ToldTargets
from loadgen.trace import Chunk, RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest

TTFT_TARGET_S = 1.0
STARTED_S = 1000.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """One request: its class, when its first token came, and how fast the others did."""

    slo_class: str = "a"
    ttft_s: float = 0.5
    tpot_s: float = 0.02
    num_tokens: int = 5
    end: TraceEnd = TraceEnd.COMPLETED
    session: str | None = None
    told_ttft_s: float | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None


def make_run(answers: Sequence[Answer], **options: Any) -> BenchResult:
    """The result of a run of one request per second; targets: a TTFT of `TTFT_TARGET_S`."""
    names = tuple(dict.fromkeys(answer.slo_class for answer in answers))
    config = BenchConfig("http://x", **{"classes": names, "save_requests": True, **options})
    traces = tuple(_trace(index, answer) for index, answer in enumerate(answers))
    run = RunResult(traces, STARTED_S, STARTED_S + len(answers), float(len(answers)), interrupted=False)
    book = TargetBook({name: Targets(ttft_s=TTFT_TARGET_S) for name in names}, {})
    return make_result(config, parse_class_mix(config), ServerInfo("m"), book, run)


def save_run(path: Path, answers: Sequence[Answer], **options: Any) -> Path:
    """The same as `headrace bench --json` writes it."""
    path.write_text(encode_json(make_run(answers, **options)))
    return path


def _trace(index: int, answer: Answer) -> RequestTrace:
    intended_s = STARTED_S + index
    planned = PlannedRequest(
        index, answer.slo_class, float(index), "hi", 1, answer.num_tokens, trace_id=index, session=answer.session
    )
    trace = RequestTrace(planned, intended_s, intended_s)
    trace.num_prompt_tokens, trace.num_cached_tokens = answer.num_prompt_tokens, answer.num_cached_tokens
    if answer.told_ttft_s is not None:
        trace.told = ToldTargets(answer.slo_class, Targets(ttft_s=answer.told_ttft_s))
    if answer.end is TraceEnd.COMPLETED:
        times = [intended_s + answer.ttft_s + k * answer.tpot_s for k in range(answer.num_tokens)]
        trace.chunks = [Chunk(time_s, 1) for time_s in times]
        trace.finish(TraceEnd.COMPLETED, times[-1] if times else intended_s + answer.ttft_s)
    else:
        trace.finish(answer.end, intended_s + answer.ttft_s, f"it {answer.end.value}", answer.end.value)
    return trace
