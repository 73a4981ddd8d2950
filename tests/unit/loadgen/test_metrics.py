"""The words of a report, on synthetic timestamps with exact answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchConfig
from loadgen.metrics import Latencies, Outcome, find_miss, inter_token_s, judge, measure, quantiles, summarize
from loadgen.report import encode_json
from loadgen.result import find_invalid, make_result
from loadgen.runner import RunResult
from loadgen.server_probe import ServerInfo
from loadgen.targets import TargetBook, Targets, ToldTargets
from loadgen.trace import Chunk, RequestTrace, TraceEnd
from loadgen.transport import CLIENT_LIMIT
from loadgen.workload import PlannedRequest

BOOK = TargetBook({"a": Targets(ttft_s=1.0, tpot_s=0.0625, max_stall_s=0.5, e2e_s=8.0)}, {})


def _trace(
    times: list[float],
    *,
    index: int = 0,
    slo_class: str = "a",
    intended_s: float = 0.0,
    sent_s: float = 0.0,
    end: TraceEnd = TraceEnd.COMPLETED,
    finished_s: float | None = None,
    tokens: int | None = None,
) -> RequestTrace:
    trace = RequestTrace(PlannedRequest(index, slo_class, intended_s, "hi", 1, 4), intended_s, sent_s)
    trace.chunks = [Chunk(time_s, 1) for time_s in times]
    trace.usage_output_tokens = tokens
    trace.finish(end, times[-1] if finished_s is None else finished_s)
    return trace


def test_latencies_count_from_the_intended_time_not_from_the_send() -> None:
    trace = _trace([4.5, 4.5625], intended_s=1.0, sent_s=4.0)
    measured = measure(trace)
    assert (measured.ttft_s, measured.e2e_s, measured.tpot_s, trace.send_lag_s) == (3.5, 3.5625, 0.0625, 3.0)
    assert judge(trace, BOOK) is Outcome.LATE_TTFT


def test_a_client_that_falls_behind_does_not_hide_its_delay() -> None:
    """Coordinated omission: a server that stands still for 8 s delays what was due meanwhile, however it was sent."""
    due = [float(i) for i in range(10)]
    traces = [_trace([max(8.25, t + 0.25)], intended_s=t, sent_s=max(8.0, t)) for t in due]
    assert sum(judge(trace, BOOK) is Outcome.MET for trace in traces) == 2
    from_send = [trace.chunks[0].time_s - trace.sent_s for trace in traces]
    assert max(from_send) == 0.25, "timed from the send, nothing would be late"


def test_tpot_of_one_token_is_undefined() -> None:
    trace = _trace([0.5])
    assert measure(trace) == Latencies(0.5, None, 0.0, 0.5)
    assert judge(trace, BOOK) is Outcome.MET


def test_tpot_counts_the_tokens_that_the_server_counts() -> None:
    assert measure(_trace([0.5, 1.0], tokens=9)).tpot_s == 0.0625
    assert measure(_trace([0.5, 1.0])).tpot_s == 0.5


def test_a_chunk_of_several_tokens_counts_each_with_its_part_of_the_gap() -> None:
    trace = _trace([0.5, 0.75])
    trace.chunks = [Chunk(0.5, 3), Chunk(1.5, 4), Chunk(1.75, 1)]
    assert inter_token_s(trace) == [0.25, 0.25, 0.25, 0.25, 0.25]
    assert measure(trace).max_gap_s == 1.0


def test_a_completed_request_without_text_is_timed_to_its_end() -> None:
    trace = _trace([], finished_s=0.75)
    assert measure(trace) == Latencies(0.75, None, 0.0, 0.75)


@pytest.mark.parametrize(
    ("latencies", "outcome"),
    [
        (Latencies(1.0, 0.0625, 0.5, 8.0), None),
        (Latencies(1.1, 9.0, 9.0, 9.0), Outcome.LATE_TTFT),
        (Latencies(1.0, 9.0, 9.0, 9.0), Outcome.LATE_E2E),
        (Latencies(1.0, 9.0, 9.0, 8.0), Outcome.LATE_TPOT),
        (Latencies(1.0, 0.0625, 9.0, 8.0), Outcome.LATE_STALL),
        (Latencies(1.0, None, 0.5, 8.0), None),
    ],
)
def test_each_limit_and_the_order_of_misses(latencies: Latencies, outcome: Outcome | None) -> None:
    assert find_miss(latencies, Targets(ttft_s=1.0, tpot_s=0.0625, max_stall_s=0.5, e2e_s=8.0)) is outcome
    assert find_miss(latencies, Targets()) is None


def test_a_slower_pace_than_the_stall_limit_raises_it() -> None:
    assert find_miss(Latencies(0.1, 1.0, 1.5, 9.0), Targets(tpot_s=2.0, max_stall_s=0.5)) is None


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (TraceEnd.REFUSED, Outcome.REFUSED),
        (TraceEnd.EXPIRED, Outcome.EXPIRED),
        (TraceEnd.FAILED, Outcome.FAILED),
        (TraceEnd.TIMED_OUT, Outcome.TIMED_OUT),
    ],
)
def test_an_early_end_is_its_own_outcome(end: TraceEnd, outcome: Outcome) -> None:
    assert judge(_trace([], end=end, finished_s=99.0), BOOK) is outcome


def test_a_cut_off_request_is_late_only_if_something_was_late_by_then() -> None:
    def cut_off(times: list[float], finished_s: float) -> Outcome:
        return judge(_trace(times, end=TraceEnd.CANCELLED, finished_s=finished_s), BOOK)

    assert cut_off([], 0.75) is Outcome.CANCELLED
    assert cut_off([], 1.25) is Outcome.LATE_TTFT
    assert cut_off([0.5], 0.5625) is Outcome.CANCELLED
    assert cut_off([0.5], 0.625) is Outcome.LATE_TPOT
    assert cut_off([0.5, 0.625], 0.625) is Outcome.LATE_TPOT
    assert cut_off([0.5 + i / 1024 for i in range(100)], 1.25) is Outcome.LATE_STALL


def test_without_targets_a_request_is_unjudged() -> None:
    assert judge(_trace([0.5]), TargetBook({}, {})) is Outcome.UNJUDGED


def test_quantiles_are_linear_between_samples() -> None:
    result = quantiles(float(i) for i in range(101))
    assert result is not None
    assert (result.num_samples, result.mean_s, result.p50_s, result.p90_s) == (101, 50.0, 50.0, 90.0)
    assert (result.p95_s, result.p99_s, result.max_s) == (95.0, 99.0, 100.0)
    pair = quantiles([0.0, 1.0])
    assert pair is not None and pair.p95_s == pytest.approx(0.95)
    assert quantiles([]) is None


def _judged() -> list[tuple[RequestTrace, Outcome]]:
    pairs = [
        (_trace([0.5, 0.5625]), Outcome.MET),
        (_trace([0.5, 0.5625]), Outcome.MET),
        (_trace([2.0, 2.5]), Outcome.LATE_TTFT),
        (_trace([0.5, 2.5]), Outcome.LATE_TPOT),
        *((_trace([], end=end, finished_s=1.0), Outcome(end.value)) for end in list(TraceEnd)[1:]),
    ]
    pairs[0][0].told = ToldTargets("other", Targets())
    return pairs


def test_attainment_is_met_over_offered_where_cut_off_requests_do_not_count() -> None:
    summary = summarize("a", _judged(), 4.0)
    assert summary.num_sent == 9 == sum(summary.outcomes.values())
    assert summary.outcomes[Outcome.CANCELLED] == 1
    assert summary.offered_attainment == 2 / 8
    assert summary.admitted_attainment == 2 / 4
    assert summary.goodput_per_s == 0.5
    assert (summary.num_late, summary.num_degraded) == (2, 1)
    assert summary.ttft is not None and summary.ttft.num_samples == 4
    assert summary.ttft.max_s == 2.0
    assert summary.send_lag is not None and summary.send_lag.num_samples == 9


def test_an_unjudged_request_leaves_no_attainment_to_tell() -> None:
    pairs = [(_trace([0.5]), Outcome.UNJUDGED), (_trace([], end=TraceEnd.REFUSED, finished_s=1.0), Outcome.REFUSED)]
    assert summarize("a", pairs, 1.0).offered_attainment is None


def test_nothing_sent_is_nothing_measured() -> None:
    summary = summarize("a", [], None)
    assert (summary.offered_attainment, summary.goodput_per_s, summary.ttft, summary.send_lag) == (
        None,
        None,
        None,
        None,
    )


def test_send_lag_above_the_limit_makes_a_run_invalid() -> None:
    traces = tuple(_trace([9.0], sent_s=0.01) for _ in range(100))
    assert find_invalid(traces, 0.02) == ()
    assert find_invalid(traces, 0.01) == ()
    (reason,) = find_invalid(traces, 0.005)
    assert "10.0 ms late at p99, the limit is 5.0 ms" in reason
    one_late = (*traces[:99], _trace([9.0], sent_s=5.0))
    assert find_invalid(one_late, 0.1) == ()


def test_a_run_without_any_answer_is_invalid() -> None:
    failed = _trace([], end=TraceEnd.FAILED, finished_s=1.0)
    refused = _trace([], end=TraceEnd.REFUSED, finished_s=1.0)
    assert find_invalid((), 1.0) == ("no request was sent",)
    assert find_invalid((failed,), 1.0) == ("every request failed",)
    assert find_invalid((failed, refused), 1.0) == ()


def _result_json(**options: Any) -> dict[str, Any]:
    config = BenchConfig("http://x", classes=("a", "b"), api_key="secret", **options)
    traces = (_trace([0.5, 0.5625]), _trace([0.25], index=1, slo_class="b", intended_s=0.125, sent_s=0.1875))
    run = RunResult(traces, 0.0, 2.0, 0.125, interrupted=False)
    parsed: dict[str, Any] = json.loads(
        encode_json(make_result(config, parse_class_mix(config), ServerInfo("m"), BOOK, run))
    )
    return parsed


def test_the_json_holds_classes_overall_and_no_key() -> None:
    body = _result_json()
    assert body["classes"]["a"]["met"] == 1
    assert body["classes"]["b"]["outcomes"]["unjudged"] == 1
    assert body["overall"]["sent"] == 2
    assert body["classes"]["a"]["ttft_s"]["p50"] == 0.5
    assert body["overall"]["send_lag_s"]["max"] == 0.0625
    assert body["max_send_lag_p99_s"] == 0.1
    assert "secret" not in json.dumps(body)
    assert "requests" not in body


def test_saved_requests_keep_both_times_and_every_chunk() -> None:
    saved = _result_json(save_requests=True)["requests"][1]
    assert (saved["intended_s"], saved["sent_s"], saved["chunks"], saved["outcome"]) == (
        0.125,
        0.1875,
        [[0.25, 1]],
        "unjudged",
    )


def test_a_request_that_this_machine_could_not_send_spoils_the_run() -> None:
    traces = [_trace([0.5], index=i) for i in range(3)]
    traces[1] = _trace([], index=1, end=TraceEnd.FAILED, finished_s=0.0)
    assert find_invalid(tuple(traces), 1.0) == ()
    traces[1].error_code = CLIENT_LIMIT
    (reason,) = find_invalid(tuple(traces), 1.0)
    assert reason.startswith("1 requests could not be sent")
