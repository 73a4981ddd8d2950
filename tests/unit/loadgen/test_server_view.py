"""The server's counts beside the client's: equal where nothing lies between, and each gap with its reason."""

from __future__ import annotations

import random
from collections import Counter as Tally

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from loadgen.exposition import parse_exposition
from loadgen.metrics import Outcome
from loadgen.server_metrics import MetricsSnapshot
from loadgen.server_view import Judged, ServerView, compare_counts
from loadgen.trace import RequestTrace, TraceEnd
from tests.sample_bench import sample_result, sample_trace

SERVER_OUTCOMES = [o.value for o in Outcome if o not in (Outcome.TIMED_OUT, Outcome.UNJUDGED)]


class Books:
    """A Headrace's counters, kept by hand."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.offered = Counter("headrace_requests_offered", "", ("slo_class",), registry=self._registry)
        self.ended = Counter("headrace_requests_slo", "", ("slo_class", "outcome"), registry=self._registry)
        self.ttft = Histogram("headrace_ttft_seconds", "", ("slo_class",), registry=self._registry)
        self.tokens = Counter("headrace_generation_tokens", "", registry=self._registry)
        for name in ("interactive", "batch", "idle"):
            self.offered.labels(name)
            for outcome in SERVER_OUTCOMES:
                self.ended.labels(name, outcome)

    def count(self, slo_class: str, outcome: str, ttft_s: float | None = None) -> None:
        self.offered.labels(slo_class).inc()
        self.ended.labels(slo_class, outcome).inc()
        if ttft_s is not None:
            self.ttft.labels(slo_class).observe(ttft_s)

    def snapshot(self) -> MetricsSnapshot:
        return MetricsSnapshot(parse_exposition(generate_latest(self._registry).decode()))


def _judged(*outcomes: Outcome, slo_class: str = "batch") -> Judged:
    """Requests that ended as these outcomes do; the traces of what was answered are completed ones."""
    ends = {
        Outcome.REFUSED: (TraceEnd.REFUSED, 429),
        Outcome.FAILED: (TraceEnd.FAILED, None),
        Outcome.TIMED_OUT: (TraceEnd.TIMED_OUT, 200),
        Outcome.CANCELLED: (TraceEnd.CANCELLED, 200),
    }
    pairs = []
    for i, outcome in enumerate(outcomes):
        trace = _completed(i, slo_class)
        if outcome in ends:
            trace.end, trace.status = ends[outcome]
            trace.chunks = []
        pairs.append((trace, outcome))
    return pairs


def _completed(index: int, slo_class: str) -> RequestTrace:
    rng = random.Random(index)
    while (trace := sample_trace(index, slo_class, rng)).end is not TraceEnd.COMPLETED:
        pass
    return trace


def _compare(books: Books, before: MetricsSnapshot, judged: Judged, own: frozenset[str] = frozenset()) -> ServerView:
    return compare_counts(before, books.snapshot(), judged, "batch", own)


def test_equal_counts_need_no_reason() -> None:
    books = Books()
    for _ in range(3):
        books.count("interactive", "met")  # long before the run
    before = books.snapshot()
    judged = _judged(Outcome.MET, Outcome.MET, Outcome.LATE_TPOT, Outcome.REFUSED)
    for _, outcome in judged:
        books.count("batch", outcome.value)
    view = _compare(books, before, judged)
    (batch,) = view.classes  # the server's other classes had nothing to do
    assert (batch.name, batch.client_sent, batch.server_offered, batch.notes) == ("batch", 4, 4, ())
    assert {k: v for k, v in batch.server_outcomes.items() if v} == {"met": 2, "late_tpot": 1, "refused": 1}


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_the_traces_for_random_runs(seed: int) -> None:
    result = sample_result(seed=seed)
    books = Books()
    before = books.snapshot()
    for trace, outcome in result.judged:
        books.count(trace.planned.slo_class, "cancelled" if outcome is Outcome.TIMED_OUT else outcome.value)
    view = _compare(books, before, result.judged)
    for each in view.classes:
        mine = Tally(o.value for t, o in result.judged if t.planned.slo_class == each.name)
        assert {k: v for k, v in each.client_outcomes.items() if v} == dict(mine)
        assert sum(each.server_outcomes.values()) == each.server_offered == each.client_sent == mine.total()
        timed_out = mine["timed_out"]
        assert bool(each.notes) == bool(timed_out)
        assert not timed_out or any(f"{timed_out} timed out here" in note for note in each.notes)


def test_requests_of_no_class_are_the_servers_default_ones() -> None:
    books = Books()
    before = books.snapshot()
    books.count("batch", "met")
    view = _compare(books, before, _judged(Outcome.MET, slo_class="default"))
    assert [(c.name, c.client_sent, c.notes) for c in view.classes] == [("batch", 1, ())]


def test_another_client_is_told() -> None:
    books = Books()
    before = books.snapshot()
    for name in ("batch", "batch", "interactive"):
        books.count(name, "met")
    view = _compare(books, before, _judged(Outcome.MET))
    notes = {c.name: " ".join(c.notes) for c in view.classes}
    assert "1 more were offered than this client sent: another client was at work" in notes["batch"]
    assert "1 more" in notes["interactive"]


def test_what_is_open_at_a_reading_is_told() -> None:
    books = Books()
    books.offered.labels("batch").inc(2)
    before = books.snapshot()
    books.ended.labels("batch", "met").inc(2)
    books.count("batch", "met")
    books.offered.labels("batch").inc()
    view = _compare(books, before, _judged(Outcome.MET, Outcome.CANCELLED))
    (batch,) = view.classes
    assert (batch.open_before, batch.open_after, batch.server_offered) == (2, 1, 2)
    text = " ".join(batch.notes)
    assert "2 were in the server before the run" in text and "1 had not ended" in text


def test_requests_the_server_never_counted_are_told_by_how_they_ended() -> None:
    books = Books()
    before = books.snapshot()
    judged = list(_judged(Outcome.MET, Outcome.FAILED, Outcome.FAILED))
    judged[2][0].status = 400
    books.count("batch", "met")
    (batch,) = _compare(books, before, judged).classes
    text = " ".join(batch.notes)
    assert "2 fewer were offered than sent" in text
    assert "1 ended without an answer" in text and "1 were turned away (HTTP 400)" in text
    assert "several servers" not in text
    (lost,) = _compare(Books(), Books().snapshot(), _judged(Outcome.MET, Outcome.MET)).classes
    assert "one of several servers" in " ".join(lost.notes)


def test_two_clocks_are_told_apart_and_their_parts_add_up() -> None:
    books = Books()
    before = books.snapshot()
    judged = _judged(Outcome.LATE_TTFT, Outcome.MET)
    for trace, _ in judged:
        books.count("batch", "met", trace.chunks[0].time_s - trace.sent_s - 0.01)
    (batch,) = _compare(books, before, judged, frozenset({"batch"})).classes
    assert batch.client_ttft_s is not None and batch.send_lag_s is not None and batch.server_ttft_s is not None
    assert batch.client_ttft_s - batch.send_lag_s - batch.server_ttft_s == pytest.approx(0.01)
    (note,) = batch.notes
    assert "met: 1 here, 2 there" in note and "+ 10.0 ms on the way" in note and "client's own" in note


def test_a_mean_of_other_requests_too_is_not_split() -> None:
    """Another client's request waited long: the server's mean is above ours."""
    books = Books()
    before = books.snapshot()
    judged = _judged(Outcome.LATE_TTFT)
    books.count("batch", "met", 0.001)
    books.count("batch", "met", 60.0)
    (batch,) = _compare(books, before, judged).classes
    text = " ".join(batch.notes)
    assert "another client was at work" in text and "not of the same requests" in text
    assert "on the way + " not in text and "ms on the way" not in text and "+ -" not in text


def test_a_server_that_was_started_anew_has_nothing_to_compare_with() -> None:
    books = Books()
    books.count("batch", "met")
    view = compare_counts(books.snapshot(), Books().snapshot(), _judged(Outcome.MET))
    assert view.problem is not None and "started anew" in view.problem and not view.classes
    missing = compare_counts(MetricsSnapshot(problem="HTTP 404"), books.snapshot(), [])
    assert missing.problem == "HTTP 404"


def test_other_servers_have_totals() -> None:
    def snapshot(stop: int, aborted: int, tokens: int) -> MetricsSnapshot:
        return MetricsSnapshot(
            parse_exposition(
                f'vllm:request_success_total{{finished_reason="stop",engine="0"}} {stop}\n'
                f'vllm:request_success_total{{finished_reason="length",engine="1"}} 1\n'
                f'vllm:request_success_total{{finished_reason="abort",engine="0"}} {aborted}\n'
                f"vllm:generation_tokens_total {tokens}\n"
            )
        )

    judged = _judged(Outcome.MET, Outcome.LATE_TTFT, Outcome.TIMED_OUT)
    num_tokens = sum(chunk.num_tokens for trace, _ in judged for chunk in trace.chunks)
    view = compare_counts(snapshot(5, 0, 100), snapshot(7, 1, 100 + num_tokens), judged)
    assert (view.server, view.classes) == ("vLLM", ())
    assert [(t.name, t.client, t.server) for t in view.totals] == [
        ("completed requests", 2, 2),
        ("output tokens", num_tokens, num_tokens),
    ]
    assert any("neither classes nor targets" in note for note in view.notes)
