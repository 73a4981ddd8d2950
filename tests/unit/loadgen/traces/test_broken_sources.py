"""Whatever a file of a known form holds, it is imported with all its rows counted, or refused in words."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from loadgen.traces.trace_error import TraceError

BAILIAN = {
    "chat_id": 5,
    "parent_chat_id": -1,
    "timestamp": 1.5,
    "input_length": 20,
    "output_length": 3,
    "type": "text",
    "turn": 1,
    "hash_ids": [1, 2],
}
MOONCAKE = {"timestamp": 1500, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
TRACELAB = {
    "provider": "p",
    "session_id": "s",
    "round_index": 0,
    "input_tokens_total": 9,
    "prefix_tokens": 4,
    "output_tokens": 3,
    "timing_events": [{"event_type": "text", "timestamp": "2026-06-01T05:40:00Z"}],
}
SHAREGPT = {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]}
OTEL = {
    "trace_id": "t",
    "span_id": "a",
    "parent_span_id": None,
    "start_time": "2026-06-01T05:40:00Z",
    "end_time": "2026-06-01T05:40:01Z",
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": [{"role": "user", "content": "hello"}],
        "gen_ai.output.text": "hi",
    },
}
COLUMNS = {
    "burstgpt": ("Timestamp,Session ID,Elapsed time,Request tokens,Response tokens,Log Type", "5,a,2,7,3,API log"),
    "replay": ("session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms", "a,5,0,0,9,3,1"),
    "splitwise": ("request_type,arrival_timestamp,batch_size,prompt_size,token_size", "2,1.5,1,9,3"),
}
LENGTHS = {"0": {"input_tokens": "{4: 1.0}", "output_tokens": "{2: 1.0}"}}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats()
    | st.sampled_from(["", "a", "1", "[1]", "{", "NaN"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
    max_leaves=4,
)


def assert_counted_or_refused(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x"
        path.write_text(text)
        try:
            trace = import_trace(path, ImportConfig())
        except TraceError as error:
            assert str(path) in str(error)
            return
    trace.meta.check()
    for request in trace.requests:
        request.check()


@st.composite
def changed(draw: st.DrawFn, body: dict[str, Any]) -> Any:
    """The body with some values, perhaps inner ones, replaced by anything."""
    copy = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(0, 2))):
        place: Any = copy
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.booleans()):
                place = place[key]
                continue
            place[key] = draw(VALUES)
            break
    return copy


@pytest.mark.parametrize(
    ("body", "written"),
    [
        (BAILIAN, lambda bodies: "\n".join(map(json.dumps, bodies))),
        (MOONCAKE, lambda bodies: "\n".join(map(json.dumps, bodies))),
        (TRACELAB, lambda bodies: "\n".join(map(json.dumps, bodies))),
        (SHAREGPT, lambda bodies: "\n".join(map(json.dumps, bodies))),
        (SHAREGPT, json.dumps),
        (OTEL, lambda bodies: json.dumps({"spans": bodies})),
    ],
    ids=["bailian", "mooncake", "tracelab", "sharegpt-lines", "sharegpt", "otel"],
)
def test_json(body: dict[str, Any], written: Callable[[list[Any]], str]) -> None:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(changed(body), max_size=3))
    def check(bodies: list[Any]) -> None:
        assert_counted_or_refused(written([body, *bodies]))

    check()


FIELDS = st.sampled_from(["", "a", "-1", "0", "3", "1e400", "-1e9", "NaN", "Infinity", "1.5", "9" * 30])


@pytest.mark.parametrize("name", list(COLUMNS))
def test_csv(name: str) -> None:
    header, good = COLUMNS[name]
    num_columns = len(header.split(","))

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.lists(FIELDS, min_size=num_columns - 1, max_size=num_columns), max_size=3))
    def check(rows: list[list[str]]) -> None:
        file = io.StringIO()
        csv.writer(file).writerows([header.split(","), good.split(","), *rows])
        assert_counted_or_refused(file.getvalue())

    check()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(FIELDS, min_size=6, max_size=6), max_size=2),
    changed({"0": {"input_tokens": "{4: 1.0}", "output_tokens": "{2: 1.0}"}}),
)
def test_servegen(rows: list[list[str]], lengths: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "chunk-1-trace.csv"
        path.write_text("\n".join(["0,0.1,1,Gamma,1,1", *(",".join([*row[:3], "Gamma", *row[4:]]) for row in rows)]))
        path.with_name("chunk-1-dataset.json").write_text(json.dumps(lengths))
        try:
            trace = import_trace(path, ImportConfig(duration_s=1200.0, rate_per_s=0.5))
        except TraceError as error:
            assert directory in str(error)
            return
    trace.meta.check()
