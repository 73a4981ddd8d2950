"""The events of a stream, as different servers send them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.events import (
    EventReceiver,
    LeftError,
    StreamError,
    StreamReader,
    error_code,
    error_text,
    parse_data,
)
from loadgen.trace import Chunk, RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest


def _trace() -> RequestTrace:
    return RequestTrace(PlannedRequest(0, "a", 0.0, "hi", 1, 4), 0.0, 0.0)


def _feed(*events: object) -> RequestTrace:
    """Feed event i at time i + 1, then close at 99."""
    trace = _trace()
    reader = StreamReader(trace)
    for index, event in enumerate(events):
        reader.feed(event if isinstance(event, str) else json.dumps(event), index + 1.0)
    reader.close(99.0)
    return trace


def test_lines_of_an_event_stream() -> None:
    assert parse_data('data: {"a": 1}') == '{"a": 1}'
    assert parse_data("data:[DONE]") == "[DONE]"
    assert parse_data(": keep-alive") is None
    assert parse_data("event: ping") is None
    assert parse_data("") is None


def test_a_chats_role_chunk_is_no_token() -> None:
    trace = _feed(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": None}}]},
        {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}], "service_tier": "flex"},
        "[DONE]",
    )
    assert trace.chunks == [Chunk(2.0, 1), Chunk(4.0, 1)]
    assert (trace.end, trace.finish_reason, trace.service_tier) == (TraceEnd.COMPLETED, "stop", "flex")


def test_a_completions_text_and_a_chats_reasoning_are_tokens() -> None:
    trace = _feed({"choices": [{"text": "a"}]}, {"choices": [{"delta": {"reasoning_content": "b"}}]}, "[DONE]")
    assert [chunk.time_s for chunk in trace.chunks] == [1.0, 2.0]


def test_usage_says_the_counts_and_null_usage_says_nothing() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    trace = _feed({"choices": [{"text": "a"}], "usage": None}, {"choices": [], "usage": usage}, "[DONE]")
    assert (trace.num_prompt_tokens, trace.num_cached_tokens, trace.num_output_tokens) == (10, 4, 7)
    assert trace.num_uncached_tokens == 6


def test_usage_may_say_where_cached_tokens_were() -> None:
    by_tier = {"device": 16, "host": 0, "disk": 32}
    events = [
        {"choices": [{"text": "a"}], "usage": _usage({"cached_tokens": 48, "cached_tokens_by_tier": by_tier})},
        {"choices": [], "usage": _usage({"cached_tokens": 48})},
    ]
    trace = _feed(*events, "[DONE]")
    assert (trace.num_cached_tokens, trace.cached_tokens_by_tier) == (48, by_tier), "what was said once stays"
    nonsense = _feed({"choices": [], "usage": _usage({"cached_tokens_by_tier": {"host": True, "disk": "8", "x": 3}})})
    assert nonsense.cached_tokens_by_tier == {"x": 3}
    assert _feed({"choices": [], "usage": _usage({"cached_tokens_by_tier": 7})}).cached_tokens_by_tier is None


def _usage(details: dict[str, object]) -> dict[str, object]:
    return {"prompt_tokens": 64, "completion_tokens": 1, "prompt_tokens_details": details}


def test_usage_with_every_chunk_says_how_many_tokens_each_carries() -> None:
    trace = _feed(
        *({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 3, "completion_tokens": n}} for n in (1, 4, 6)),
        "[DONE]",
    )
    assert [chunk.num_tokens for chunk in trace.chunks] == [1, 3, 2]


def test_logprobs_say_how_many_tokens_a_chunk_carries() -> None:
    trace = _feed(
        {"choices": [{"delta": {"content": "ab"}, "logprobs": {"content": [{}, {}]}}]},
        {"choices": [{"text": "abc", "logprobs": {"tokens": ["a", "b", "c"]}}]},
        "[DONE]",
    )
    assert [chunk.num_tokens for chunk in trace.chunks] == [2, 3]


def test_without_usage_the_chunks_are_the_tokens() -> None:
    trace = _feed({"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, "[DONE]")
    assert trace.num_output_tokens == 2
    assert trace.num_uncached_tokens == trace.planned.num_prompt_tokens


def test_a_finish_reason_completes_a_stream_without_done_and_nothing_else_does() -> None:
    assert _feed({"choices": [{"text": "a", "finish_reason": "length"}]}).end is TraceEnd.COMPLETED
    broken = _feed({"choices": [{"text": "a"}]})
    assert broken.end is TraceEnd.FAILED
    assert broken.error == "the stream broke off before its finish reason"


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_stream_that_the_server_aborts_has_failed(reason: str) -> None:
    assert _feed({"choices": [{"text": "", "finish_reason": reason}]}, "[DONE]").end is TraceEnd.FAILED


@pytest.mark.parametrize(
    ("event", "tells"),
    [("{", "not JSON"), ("[1]", "not an object"), ({"error": {"message": "it\n died"}}, "inside the stream: it died")],
)
def test_what_is_no_event_is_an_error(event: object, tells: str) -> None:
    with pytest.raises(StreamError, match=tells):
        _feed(event)


def test_error_bodies_of_several_shapes() -> None:
    nested = {"error": {"message": "full", "code": "class_queue_full"}}
    assert (error_text(nested), error_code(nested)) == ("full", "class_queue_full")
    assert (error_text({"error": "down"}), error_code({"error": "down"})) == ("down", None)
    assert (error_text("<html>"), error_code("<html>")) == ("<html>", None)
    assert (error_text({"message": "flat", "code": 400}), error_code({"error": {"code": 400}})) == ("flat", None)
    assert len(error_text("x" * 5000)) == 600
    long = "the queue is full, " * 9 + "ask for another class (GET /v1/slo shows which)"
    assert error_text(long) == long, "the way out stands at the end"
    cut = error_text("word " * 500)
    assert len(cut) <= 600 and set(cut.split()) == {"word", "..."}, "no word is cut"


def test_usage_with_the_last_text_alone_counts_only_what_no_chunk_had() -> None:
    trace = _feed(
        *({"choices": [{"text": "x"}]} for _ in range(3)),
        {"choices": [{"text": "yz", "finish_reason": "length"}], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
        "[DONE]",
    )
    assert [chunk.num_tokens for chunk in trace.chunks] == [1, 1, 1, 2]
    assert trace.num_output_tokens == 5


def test_llama_cpps_timings_stand_in_for_usage() -> None:
    timings = {"prompt_n": 30, "cache_n": 10, "predicted_n": 6, "predicted_ms": 1.5}
    trace = _feed({"choices": [{"text": "a"}]}, {"choices": [{"finish_reason": "stop"}], "timings": timings}, "[DONE]")
    assert (trace.num_prompt_tokens, trace.num_cached_tokens, trace.num_output_tokens) == (40, 10, 6)
    usage = {"prompt_tokens": 41, "completion_tokens": 7}
    both = _feed({"choices": [{"text": "a"}], "usage": usage, "timings": timings}, "[DONE]")
    assert (both.num_prompt_tokens, both.num_output_tokens) == (41, 7), "usage is what the API promises"


def test_an_error_is_known_by_its_type_where_its_code_is_the_status() -> None:
    of_vllm = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
    assert error_code(of_vllm) == "BadRequestError"
    assert error_code({"object": "error", "message": "x", "type": "BadRequestError", "code": 400}) == "BadRequestError"


STREAM = (
    b": ping\r\n\r\n"
    + b"".join(
        b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + end
        for text, end in (("a", b"\n\n"), ("\N{SNOWMAN}", b"\r\n\r\n"), ("c", b"\n\n"))
    )
    + b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\ndata: {"ignored": 1}\n\n'
)


def _receive(parts: Sequence[bytes], planned: PlannedRequest | None = None) -> RequestTrace:
    """Part i is there at time i + 1; the head at 0."""
    trace = RequestTrace(planned or _trace().planned, 0.0, 0.0)
    clock = itertools.count()
    receiver = EventReceiver(trace, lambda: float(next(clock)))
    receiver.head(200, {"content-type": "text/event-stream; charset=utf-8", "x-slo-granted": "a"})
    for part in parts:
        receiver.body(part)
    receiver.close()
    return trace


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    trace = _receive(parts, PlannedRequest(0, "a", 0.0, "hi", 1, 4, session="s"))
    assert (trace.end, trace.answer, trace.num_output_tokens) == (TraceEnd.COMPLETED, "a\N{SNOWMAN}c", 3)
    # Each text is stamped when the end of its line is there.
    ends = [STREAM.index(b"}]}", STREAM.index(text) if text else 0) for text in (b'"a"', b"\\u2603", b'"c"')]
    newlines = [STREAM.index(b"\n", end) + 1 for end in ends]
    assert [chunk.time_s for chunk in trace.chunks] == [
        next(i + 1.0 for i, edge in enumerate(edges[1:]) if edge >= newline) for newline in newlines
    ]


def test_a_client_leaves_when_its_tokens_are_there() -> None:
    with pytest.raises(LeftError, match="after 2 tokens"):
        _receive([STREAM], PlannedRequest(0, "a", 0.0, "hi", 1, 4, cancel_after_tokens=2))
    whole = _receive([STREAM], PlannedRequest(0, "a", 0.0, "hi", 1, 4, cancel_after_tokens=9))
    assert whole.end is TraceEnd.COMPLETED
    assert whole.answer == "", "kept for conversations alone"


def test_an_error_line_of_an_older_llama_cpp_is_an_error() -> None:
    with pytest.raises(StreamError, match="inside the stream: context is full"):
        _receive([b'data: {"choices": [{"text": "a"}]}\n\nerror: {"message": "context is full"}\n\n'])


@pytest.mark.parametrize(
    ("headers", "tells"),
    [
        ({"content-type": "application/json"}, "'application/json', not an event stream"),
        ({}, "None, not an event stream"),
        ({"content-type": "text/event-stream", "content-encoding": "gzip"}, "encoded \\(gzip\\)"),
    ],
)
def test_what_cannot_be_read_as_events_is_refused_at_its_head(headers: dict[str, str], tells: str) -> None:
    trace = _trace()
    with pytest.raises(StreamError, match=tells):
        EventReceiver(trace, lambda: 1.0).head(200, headers)
    assert trace.headers_s == 1.0


@pytest.mark.parametrize(
    ("status", "body", "end", "error"),
    [
        (429, b'{"error": {"message": "full", "code": "class_queue_full"}}', TraceEnd.REFUSED, "HTTP 429: full"),
        (503, b'{"error": {"message": "late", "code": "expired"}}', TraceEnd.EXPIRED, "HTTP 503: late"),
        (503, b"", TraceEnd.REFUSED, "HTTP 503: "),
        (500, b"<html>\xff", TraceEnd.FAILED, "HTTP 500: <html>\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_refusal_says_why(status: int, body: bytes, end: TraceEnd, error: str) -> None:
    trace = _trace()
    receiver = EventReceiver(trace, lambda: 1.0)
    receiver.head(status, {})
    receiver.body(body[:5])
    receiver.body(body[5:])
    receiver.close()
    assert (trace.end, trace.error) == (end, error)
