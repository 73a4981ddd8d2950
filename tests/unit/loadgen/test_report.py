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
from loadgen.result_json import result_json
from loadgen.runner import RunResult
from loadgen.server_probe import ServerInfo
from loadgen.server_view import ClassView, ServerView
from loadgen.targets import TargetBook, Targets, ToldTargets
from loadgen.trace import LEFT, Chunk, RequestTrace, TraceEnd
from loadgen.trace_workload import Replay
from loadgen.workload import PlannedRequest
from tests.sample_bench import sample_result


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


def test_what_is_not_counted_or_not_sent_is_told() -> None:
    printed = _printed(sample_result(60))
    phases = result_json(sample_result(60))["sent_by_phase"]
    assert f"counted: {phases['steady']} of 60 sent; {phases['warm_up']} were of warm-up" in printed
    assert "counted:" not in _printed(sample_result(60, warm_up_s=0.0, cool_down_s=0.0))
    replay = Replay("t.jsonl", "ab" * 32, 500, 17, "drop", 2048, 1.0, 0.5)
    result = sample_result(4, warm_up_s=0.0, cool_down_s=0.0)
    for i, (trace, _) in enumerate(result.judged):
        trace.planned = dataclasses.replace(trace.planned, session="s" if i < 3 else None)
    run = dataclasses.replace(result.run, num_unsent_turns=2, num_turns_after_end=7)
    printed = _printed(dataclasses.replace(result, replay=replay, run=run))
    assert "dropped: 17 of the trace's 500 rows, longer than the 2048 tokens" in printed
    assert "1 conversations of 3 turns sent; 2 turns had no answer to go on from" in printed
    assert "7 turns were due after the end of --duration and not sent: fewer came than the rate" in printed
    assert result_json(result)["conversations"] == {"begun": 1, "turns_sent": 3}


def test_the_servers_counts_stand_beside_ours_only_where_they_differ() -> None:
    same = ClassView("a", 2, 2, {"met": 2}, {"met": 2}, 0, 0, None, None, None, ())
    other = ClassView("b", 3, 4, {"met": 3}, {"met": 1, "refused": 3}, 0, 0, None, None, None, ("because",))
    result = sample_result(2)
    agreeing = _printed(dataclasses.replace(result, server_view=ServerView("Headrace", None, (same,))))
    assert "the server counts the same requests and outcomes in every class" in agreeing
    differing = _printed(dataclasses.replace(result, server_view=ServerView("Headrace", None, (same, other))))
    cells = [line.replace("│", " ").split() for line in differing.splitlines()]
    assert ["b", "client", "3", "3", "0"] in cells and ["server", "4", "1", "3"] in cells
    assert "b: because" in differing and ["a", "client"] not in [line[:2] for line in cells]
    assert "no counts of the server's: HTTP 404" in _printed(
        dataclasses.replace(result, server_view=ServerView(problem="HTTP 404"))
    )


def test_targets_in_the_json_are_the_range_of_the_requests_own() -> None:
    result = sample_result(80)
    body = result_json(result)
    for name in ("interactive", "batch"):
        mine = [t for t, _ in result.counted if t.planned.slo_class == name]
        ttfts = [result.targets_of(t).ttft_s or 0.0 for t in mine]
        assert body["classes"][name]["targets"]["ttft_s"] == {"min": min(ttfts), "max": max(ttfts)}
        assert body["classes"][name]["targets"]["e2e_s"] is None
    assert (body["classes"]["interactive"]["objective"], body["classes"]["batch"]["objective"]) == (0.9, None)
    assert body["overall"]["targets"]["tpot_s"] == {"min": 0.06, "max": 0.08}


def test_leaving_as_planned_is_no_error() -> None:
    left = _trace(0, "a", [0.5], "a")
    left.end = None
    left.finish(TraceEnd.CANCELLED, 1.0, "the client left after 1 tokens, as planned", LEFT)
    assert count_errors([left]) == ()


def test_what_was_asked_is_that_of_the_counted_requests() -> None:
    result = sample_result()
    body = result_json(result)
    for name in ("interactive", "batch", None):
        planned = [t.planned for t, _ in result.counted if name in (None, t.planned.slo_class)]
        asked = body["overall"]["asked"] if name is None else body["classes"][name]["asked"]
        lengths = sorted(each.num_prompt_tokens for each in planned)
        rank = -(-len(lengths) // 2)
        assert (asked["prompt_tokens"]["p50"], asked["prompt_tokens"]["max"]) == (lengths[rank - 1], lengths[-1])
        assert asked["output_tokens"]["sum"] == sum(each.num_output_tokens for each in planned)
        assert asked["per_s"] == pytest.approx(len(planned) / body["steady_window_s"])
    empty = result_json(sample_result(0, warm_up_s=0.0, cool_down_s=0.0))
    assert empty["overall"]["asked"]["prompt_tokens"] is None
