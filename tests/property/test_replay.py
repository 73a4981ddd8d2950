"""Random traces of conversations, replayed on a virtual clock: every row once, and each when it is due."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.calibration import Calibration
from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchConfig, BenchError
from loadgen.result import BenchResult
from loadgen.runner import _LEAD_S
from loadgen.trace_workload import TraceWorkload
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_meta import TraceMeta, TraceSource
from loadgen.traces.trace_request import TraceRequest
from tests.fake_transport import QueueTransport, Service
from tests.virtual_bench import bench_virtually

FIRST_S = 0.75
GAP_S = 0.25


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    """In the order of their times; some wait for a row above, with or without a time to think."""
    times = sorted(draw(st.lists(st.integers(0, 40), min_size=1, max_size=14)))
    rows = []
    for index, time in enumerate(times):
        waits = index > 0 and draw(st.booleans())
        rows.append(
            TraceRequest(
                time / 4.0,
                draw(st.integers(1, 60)),
                draw(st.integers(1, 6)),
                after=draw(st.integers(0, index - 1)) if waits else None,
                think_s=draw(st.sampled_from([None, 0.0, 1.5])) if waits else None,
            )
        )
    return rows


def _workload(rows: list[TraceRequest], max_model_len: int | None = None, **options: Any) -> TraceWorkload:
    config = BenchConfig("http://x", trace_path="x", **options)
    meta = TraceMeta("canonical", TraceSource("a test", "none"), "x", "ab", len(rows), len(rows), {})
    mix = parse_class_mix(config).with_labels([None])
    return TraceWorkload(config, mix, Trace(tuple(rows), meta), Calibration(), max_model_len, "ab" * 32)


def _replay(rows: list[TraceRequest], **options: Any) -> BenchResult:
    """Against a server that is never full."""
    config = BenchConfig("http://x", trace_path="x", **options)
    requests = _workload(rows, **options).requests()
    return bench_virtually(
        config, lambda: QueueTransport(lambda _: Service(FIRST_S, GAP_S), num_servers=99), requests=requests
    )


def _due_s(rows: list[TraceRequest], row_id: int) -> float:
    """By definition: its time, or the end of the answer before it and the time to think."""
    row = rows[row_id]
    if row.after is None:
        return row.t_s
    before = rows[row.after]
    answered_s = _due_s(rows, row.after) + FIRST_S + GAP_S * (before.out_tokens - 1)
    return answered_s + row.think_s if row.think_s is not None else max(answered_s, row.t_s)


@settings(max_examples=40, deadline=None)
@given(traces())
def test_each_row_is_sent_once_and_when_it_is_due(rows: list[TraceRequest]) -> None:
    result = _replay(rows)
    assert sorted(trace.planned.trace_id or 0 for trace, _ in result.judged) == list(range(len(rows)))
    for trace, _ in result.judged:
        assert trace.planned.trace_id is not None
        due_s = _due_s(rows, trace.planned.trace_id)
        assert trace.intended_s - _LEAD_S == pytest.approx(due_s, abs=1e-9)
        assert trace.send_lag_s == pytest.approx(0.0, abs=1e-9)
        assert len(trace.chunks) == rows[trace.planned.trace_id].out_tokens


@settings(max_examples=40, deadline=None)
@given(traces(), st.integers(1, 4))
def test_a_closed_loop_sends_each_row_once_with_no_more_open_than_clients(
    rows: list[TraceRequest], concurrency: int
) -> None:
    result = _replay(rows, concurrency=concurrency)
    assert sorted(trace.planned.trace_id or 0 for trace, _ in result.judged) == list(range(len(rows)))
    events = sorted(
        [(trace.sent_s, 1) for trace, _ in result.judged]
        + [(trace.finished_s or 0.0, -1) for trace, _ in result.judged]
    )
    num_open = 0
    for _, step in events:
        num_open += step
        assert num_open <= concurrency


@settings(max_examples=40, deadline=None)
@given(traces(), st.integers(2, 66), st.sampled_from(["drop", "clip"]))
def test_rows_are_sent_or_counted_as_dropped_and_what_is_sent_fits(
    rows: list[TraceRequest], max_model_len: int, policy: str
) -> None:
    try:
        workload = _workload(rows, max_model_len, too_long=policy)
    except BenchError:
        assert policy == "drop"
        return
    sent = list(workload.requests())
    num_dropped = workload.replay.num_too_long if policy == "drop" else 0
    assert len(sent) + num_dropped == len(rows)
    ids = {planned.trace_id for planned in sent}
    for planned in sent:
        assert planned.num_prompt_tokens + planned.num_output_tokens <= max_model_len
        assert planned.after is None or planned.after in ids
        row = rows[planned.trace_id or 0]
        if row.in_tokens + row.out_tokens <= max_model_len:
            kept = dataclasses.replace(row, in_tokens=planned.num_prompt_tokens, out_tokens=planned.num_output_tokens)
            assert kept == row, "what fits stays as it is"
