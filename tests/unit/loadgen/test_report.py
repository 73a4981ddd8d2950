"""The table for people: its columns, and what counts as degraded."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from loadgen.class_mix import NO_CLASS, parse_class_mix
from loadgen.config import BenchConfig
from loadgen.report import encode_json, print_report
from loadgen.result import BenchResult, count_errors, make_result
from loadgen.runner import RunResult
from loadgen.server_probe import ServerInfo
from loadgen.targets import TargetBook, Targets, ToldTargets
from loadgen.trace import Chunk, RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest


def _trace(index: int, slo_class: str, times: list[float], granted: str) -> RequestTrace:
    trace = RequestTrace(PlannedRequest(index, slo_class, 0.0, "hi", 1, 4), 0.0, 0.0)
    trace.told = ToldTargets(granted, Targets())
    trace.chunks = [Chunk(time_s, 1) for time_s in times]
    trace.finish(TraceEnd.COMPLETED, times[-1])
    return trace


def _result(*requests: tuple[str, list[float]], classes: tuple[str, ...], server: ServerInfo) -> BenchResult:
    config = BenchConfig("http://x", classes=classes)
    mix = parse_class_mix(config)
    traces = tuple(_trace(i, mix.names[0], times, granted) for i, (granted, times) in enumerate(requests))
    book = TargetBook({mix.names[0]: Targets(ttft_s=1.0, tpot_s=0.1)}, {})
    return make_result(config, mix, server, book, RunResult(traces, 0.0, 2.0, 1.0, interrupted=False))


def _printed(result: BenchResult) -> str:
    out = io.StringIO()
    print_report(result, Console(file=out, width=160))
    return out.getvalue()


@pytest.mark.parametrize(
    ("classes", "default_class", "granted", "num_degraded"),
    [
        ((), "standard", "standard", 0),
        ((), "standard", "batch", 1),
        ((), None, "standard", 0),
        (("standard",), "interactive", "standard", 0),
        (("standard",), "interactive", "batch", 1),
        ((NO_CLASS,), "standard", NO_CLASS, 0),
        ((NO_CLASS,), "standard", "standard", 1),
    ],
)
def test_degraded_is_another_class_than_the_one_asked_for(
    classes: tuple[str, ...], default_class: str | None, granted: str, num_degraded: int
) -> None:
    """Requests that name no class ask for the server's default one."""
    result = _result((granted, [0.5]), classes=classes, server=ServerInfo("m", default_class=default_class))
    assert [c.num_degraded for c in (result.overall, *result.classes)] == [num_degraded] * 2
    assert f"degraded {num_degraded}" in _printed(result)


def _refused(status: int, code: str | None, text: str) -> RequestTrace:
    trace = RequestTrace(PlannedRequest(0, "a", 0.0, "hi", 1, 4), 0.0, 0.0, status=status)
    trace.finish(TraceEnd.REFUSED, 0.1, f"HTTP {status}: {text}", code)
    return trace


def test_errors_are_counted_by_status_and_code_with_one_text_each() -> None:
    late = [_refused(429, "slo_unattainable", f"expected after 0.4{i} s") for i in range(7)]
    traces = (_refused(503, None, "full"), *late, _trace(1, "a", [0.5], "a"))
    counted = count_errors(traces)
    assert [(e.status, e.code, e.count) for e in counted] == [(429, "slo_unattainable", 7), (503, None, 1)]
    result = dataclasses.replace(_result(("a", [0.5]), classes=("a",), server=ServerInfo("m")), errors=counted)
    lines = _printed(result).splitlines()
    assert [line for line in lines if " x " in line] == [
        "7 x HTTP 429 slo_unattainable, such as: expected after 0.40 s",
        "1 x HTTP 503, such as: full",
    ]


@pytest.mark.parametrize(
    ("times", "title"),
    [
        ([[0.5, 1.5]], "late: tpot"),
        ([[1.5]], "late: ttft"),
        ([[0.5, 1.5], [1.5]], "late: ttft │ tpot"),
    ],
)
def test_the_first_column_of_what_was_late_says_so(times: list[list[float]], title: str) -> None:
    result = _result(*(("a", each) for each in times), classes=("a",), server=ServerInfo("m"))
    printed = " ".join(_printed(result).replace("┃", "│").split())
    assert title in printed and printed.count("late:") == 1


def test_nothing_late_has_no_such_column() -> None:
    assert "late:" not in _printed(_result(("a", [0.5]), classes=("a",), server=ServerInfo("m")))


def _cached(index: int, num_prompt: int, num_cached: int, by_tier: dict[str, int] | None) -> RequestTrace:
    trace = _trace(index, "a", [0.5], "a")
    trace.num_prompt_tokens, trace.num_cached_tokens, trace.cached_tokens_by_tier = num_prompt, num_cached, by_tier
    return trace


def _of(*traces: RequestTrace) -> BenchResult:
    config = BenchConfig("http://x", classes=("a",), save_requests=True)
    run = RunResult(traces, 0.0, 2.0, 1.0, interrupted=False)
    return make_result(config, parse_class_mix(config), ServerInfo("m"), TargetBook({}, {}), run)


def test_cached_tokens_are_shown_by_tier_where_the_server_tells_them() -> None:
    first = _cached(0, 600, 300, {"device": 100, "host": 200, "disk": 0})
    second = _cached(1, 400, 150, {"device": 0, "host": 50, "disk": 100})
    result = _of(first, second, _cached(2, 0, 0, None))
    assert "prompt tokens cached 45.0% (device 10.0%, host 25.0%, disk 10.0%), degraded" in _printed(result)
    saved = json.loads(encode_json(result))
    assert saved["overall"]["cached_prompt_tokens_by_tier"] == {"device": 100, "host": 250, "disk": 100}
    told = [request["cached_prompt_tokens_by_tier"] for request in saved["requests"]]
    assert told == [first.cached_tokens_by_tier, second.cached_tokens_by_tier, None]


def test_a_server_that_does_not_tell_tiers_has_one_share() -> None:
    assert "prompt tokens cached 25.0%, degraded" in _printed(_of(_cached(0, 400, 100, None)))
    assert "prompt tokens cached -, degraded" in _printed(_of(_trace(0, "a", [0.5], "a")))
