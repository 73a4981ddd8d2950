"""OpenTelemetry spans: sessions, and graphs as far as one predecessor holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace, load_trace
from loadgen.traces.trace_error import TraceError
from tests.trace_files import real_slice


def span(
    name: str, begin: float, end: float, messages: list[tuple[str, str]], answer: str, **more: Any
) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "c",
        "gen_ai.input.messages": json.dumps([{"role": role, "content": text} for role, text in messages]),
        "gen_ai.output.text": answer,
    }
    return {
        "trace_id": "t",
        "span_id": name,
        "parent_span_id": more.pop("parent", None),
        "start_time": f"2026-02-25T10:00:{begin:09.6f}",
        "end_time": f"2026-02-25T10:00:{end:09.6f}",
        "attributes": {**attributes, **more.pop("attributes", {})},
    }


def write(path: Path, spans: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"trace_id": "t", "spans": spans}, indent=2))
    return path


ASK = ("user", "a" * 40)


def test_a_fork_and_a_join(tmp_path: Path) -> None:
    root, left, right = "R" * 80, "L" * 8, "Q" * 12
    spans = [
        span("join", 9, 10, [ASK, ("assistant", root), ("assistant", left), ("assistant", right)], "done"),
        span("root", 0, 2, [ASK], root),
        span("left", 2.5, 6, [ASK, ("assistant", root), ("user", "l")], left),
        span("right", 3, 5, [ASK, ("assistant", root), ("user", "r")], right),
    ]
    trace = import_trace(write(tmp_path / "o.json", spans), ImportConfig(block_tokens=5))
    told = [(each.t_s, each.turn, each.after, each.think_s) for each in trace.requests]
    # The join needs both branches and, through them, the root; of the branches the left one ended last.
    assert told == [(0.0, 0, None, None), (2.5, 1, 0, 0.5), (3.0, 2, 0, 1.0), (9.0, 3, 1, 3.0)]
    assert [each.session for each in trace.requests] == ["c"] * 4
    assert next(t.details for t in trace.meta.transforms if t.name == "keep_last_predecessor") == {"links_cut": 1}
    assert [(each.in_tokens, each.out_tokens) for each in trace.requests] == [(10, 20), (31, 2), (31, 3), (35, 1)]
    first, second, third, fourth = (each.prefix or () for each in trace.requests)
    assert first == second[:2] == third[:2] == fourth[:2]  # 10 tokens of the question
    assert second[:6] == third[:6] == fourth[:6]  # and 20 of the answer to it
    assert second[6] != third[6]


def test_usage_is_believed_before_estimates(tmp_path: Path) -> None:
    usage = {"gen_ai.usage.input_tokens": 77, "gen_ai.usage.output_tokens": 5}
    old = {"gen_ai.usage.prompt_tokens": 78, "gen_ai.usage.completion_tokens": 6}
    spans = [span("a", 0, 1, [ASK], "x", attributes=usage), span("b", 2, 3, [ASK], "y", attributes=old)]
    trace = import_trace(write(tmp_path / "o.json", spans), ImportConfig(keep_text=True))
    assert [(each.in_tokens, each.out_tokens, each.text) for each in trace.requests] == [
        (77, 5, ASK[1]),
        (78, 6, ASK[1]),
    ]
    assert [each.after for each in trace.requests] == [None, None]  # b does not quote a


def test_a_parent_that_had_ended_is_waited_for_where_no_message_tells(tmp_path: Path) -> None:
    usage = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 5}
    spans = [
        span("a", 0, 4, [], "", attributes=usage),
        span("b", 5, 6, [], "", parent="a", attributes=usage),
        span("c", 3, 6, [], "", parent="a", attributes=usage),
    ]
    trace = import_trace(write(tmp_path / "o.json", spans), ImportConfig())
    assert [(each.t_s, each.after) for each in trace.requests] == [(0.0, None), (3.0, None), (5.0, 0)]


def test_parts_of_the_newer_conventions_are_read(tmp_path: Path) -> None:
    body = [{"role": "user", "parts": [{"type": "text", "content": "b" * 8}]}]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "c" * 4}]}]
    more = {"gen_ai.input.messages": body, "gen_ai.output.text": None, "gen_ai.output.messages": answer}
    trace = import_trace(write(tmp_path / "o.json", [span("a", 0, 1, [], "", attributes=more)]), ImportConfig())
    assert [(each.in_tokens, each.out_tokens) for each in trace.requests] == [(2, 1)]


def test_every_span_is_emitted_or_dropped_for_a_reason(tmp_path: Path) -> None:
    tool = span("t", 0, 1, [ASK], "x", attributes={"gen_ai.operation.name": "execute_tool"})
    late = {**span("u", 0, 1, [ASK], "x"), "end_time": "soon"}
    spans = [span("a", 0, 1, [ASK], "x"), tool, late, span("e", 0, 1, [ASK], ""), span("f", 0, 1, [], "x")]
    trace = import_trace(write(tmp_path / "o.json", spans), ImportConfig())
    assert (trace.meta.num_rows_read, len(trace.requests)) == (5, 1)
    assert trace.meta.num_dropped == {
        "malformed": 1,
        "no_input_tokens": 1,
        "no_output_tokens": 1,
        "no_language_model_request": 1,
    }


def test_spans_that_are_no_list_are_refused(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text('{"spans": {"a": 1}}')
    with pytest.raises(TraceError, match="spans is a dict, a list is needed"):
        load_trace(tmp_path / "o.json")


@pytest.mark.parametrize(
    ("name", "after", "sessions"),
    [
        ("simple_chain", [None, 0, 1], 1),
        ("parallel_requests", [None, 0, 0, 2, 3], 1),
        ("prefix_sharing_example", [None, None, None, 2, 3, 4, None], 4),
    ],
)
def test_inference_perfs_examples(name: str, after: list[int | None], sessions: int) -> None:
    path = real_slice(f"inference_perf_otel_{name}.json")
    trace = load_trace(path)
    spans = json.loads(path.read_text())["spans"]
    assert [each.after for each in trace.requests] == after
    assert len({each.session for each in trace.requests}) == sessions
    for request, body in zip(trace.requests, spans, strict=True):
        usage = body["attributes"].get("gen_ai.usage.prompt_tokens")
        messages = json.loads(body["attributes"]["gen_ai.input.messages"])
        assert request.in_tokens == usage or usage is None
        assert usage or request.in_tokens == -(-sum(len(each["content"]) for each in messages) // 4)
