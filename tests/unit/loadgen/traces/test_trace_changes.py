"""Merge, thin, scale and cut, on traces of all kinds: what must hold whatever the trace."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces.cutting import cut_rows, cut_time
from loadgen.traces.merging import MergeSpec, merge
from loadgen.traces.scaling import scale_time
from loadgen.traces.thinning import thin
from loadgen.traces.trace_file import Trace, read_trace, write_trace
from loadgen.traces.trace_meta import TraceMeta, TraceSource
from loadgen.traces.trace_request import TraceRequest
from loadgen.traces.validation import find_problems


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Of single requests and of sessions with forks, some with blocks; `out_tokens` tells a request from all others."""
    times_s = sorted(draw(st.lists(st.integers(0, 40), min_size=1, max_size=14)))
    requests: list[TraceRequest] = []
    for index, time_s in enumerate(times_s):
        session = draw(st.sampled_from([None, None, "a", "b"]))
        mine = [i for i, each in enumerate(requests) if session is not None and each.session == session]
        after = draw(st.sampled_from([None, *mine]))
        prefix = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
        has_blocks = draw(st.booleans())
        requests.append(
            TraceRequest(
                time_s / 4,
                16 * len(prefix),
                index + 1,
                session=session,
                turn=len(mine),
                after=after,
                think_s=None if after is None else 1.5,
                prefix=prefix if has_blocks else None,
                block=16 if has_blocks else None,
            )
        )
    num = len(requests)
    meta = TraceMeta("made", TraceSource("made", "none"), "x", "0", num + 2, num, {"malformed": 2})
    return Trace(tuple(requests), meta)


def assert_sound(trace: Trace) -> None:
    trace.meta.check()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.jsonl"
        write_trace(path, trace)
        assert list(find_problems(path)) == []
        assert read_trace(path) == trace


def predecessors(trace: Trace) -> dict[int, int | None]:
    """By `out_tokens`: of each request and of the one it waits for."""
    by_id = trace.requests
    return {each.out_tokens: None if each.after is None else by_id[each.after].out_tokens for each in by_id}


@settings(max_examples=40, deadline=None)
@given(traces(), st.floats(0.05, 1.0), st.integers(0, 5))
def test_thinning_keeps_conversations_whole(trace: Trace, share: float, seed: int) -> None:
    whole = dataclasses.replace(trace, requests=(*trace.requests, TraceRequest(99.0, 1, 99)))
    whole = dataclasses.replace(
        whole,
        meta=dataclasses.replace(
            trace.meta, num_rows_emitted=len(whole.requests), num_rows_read=len(whole.requests) + 2
        ),
    )
    thinned = thin(whole, 1.0, seed)
    assert thinned.requests == whole.requests
    left = {each.out_tokens for each in thin_or_none(whole, share, seed)}
    for each in whole.requests:
        if each.session is not None:
            fates = {other.out_tokens in left for other in whole.requests if other.session == each.session}
            assert len(fates) == 1


def thin_or_none(trace: Trace, share: float, seed: int) -> tuple[TraceRequest, ...]:
    from loadgen.traces.trace_error import TraceError

    try:
        thinned = thin(trace, share, seed)
    except TraceError:  # none was left
        return ()
    assert_sound(thinned)
    before = predecessors(trace)
    assert all(before[name] == after for name, after in predecessors(thinned).items())
    return thinned.requests


@settings(max_examples=40, deadline=None)
@given(traces(), st.integers(0, 10), st.integers(1, 10))
def test_a_cut_is_what_lies_in_it(trace: Trace, first: int, length: int) -> None:
    inside = [each for each in trace.requests if first <= each.t_s < first + length]
    if inside:
        piece = cut_time(trace, float(first), float(first + length))
        assert_sound(piece)
        assert [each.out_tokens for each in piece.requests] == [each.out_tokens for each in inside]
        assert [each.t_s + first for each in piece.requests] == [each.t_s for each in inside]
        names, before = {each.out_tokens for each in inside}, predecessors(trace)
        assert predecessors(piece) == {name: before[name] if before[name] in names else None for name in names}
        assert piece.meta.num_dropped == {
            "malformed": 2,
            **({"cut": n} if (n := len(trace.requests) - len(inside)) else {}),
        }
    rows = cut_rows(trace, min(first, len(trace.requests) - 1), None)
    assert_sound(rows)
    assert rows.requests[0].t_s == 0.0


@settings(max_examples=30, deadline=None)
@given(traces(), st.sampled_from([0.25, 1.0, 3.0]))
def test_scaling_changes_times_alone(trace: Trace, factor: float) -> None:
    scaled = scale_time(trace, factor)
    assert_sound(scaled)
    for before, after in zip(trace.requests, scaled.requests, strict=True):
        assert after.t_s == round(before.t_s * factor, 9)
        assert after == dataclasses.replace(
            before, t_s=after.t_s, think_s=None if before.think_s is None else before.think_s * factor
        )


@settings(max_examples=40, deadline=None)
@given(traces(), traces(), st.booleans())
def test_a_merge_holds_both_and_mixes_nothing(left: Trace, right: Trace, shortest: bool) -> None:
    merged = merge([(left, MergeSpec(Path("l"), "l")), (right, MergeSpec(Path("r"), "r"))], shortest)
    assert_sound(merged)
    ends = [each.requests[-1].t_s - each.requests[0].t_s for each in (left, right)]
    end_s = min(ends) if shortest else max(ends)
    for trace, name in ((left, "l"), (right, "r")):
        origin_s = trace.requests[0].t_s
        mine = [each for each in merged.requests if each.slo_class == name]
        theirs = [each for each in trace.requests if each.t_s - origin_s <= end_s]
        assert [(each.t_s, each.in_tokens, each.out_tokens) for each in mine] == [
            (each.t_s - origin_s, each.in_tokens, each.out_tokens) for each in theirs
        ]
        for one, other in zip(mine, theirs, strict=True):
            # The same blocks are the same, whatever their new names.
            for two, another in zip(mine, theirs, strict=True):
                assert [a == b for a, b in zip(one.prefix or (), two.prefix or (), strict=False)] == [
                    a == b for a, b in zip(other.prefix or (), another.prefix or (), strict=False)
                ]
            if other.after is not None:
                assert one.after is not None
                earlier = merged.requests[one.after]
                assert (earlier.slo_class, earlier.out_tokens) == (name, trace.requests[other.after].out_tokens)
    blocks = [{b for each in merged.requests if each.slo_class == name for b in each.prefix or ()} for name in "lr"]
    sessions = [{each.session for each in merged.requests if each.slo_class == name} - {None} for name in "lr"]
    assert not blocks[0] & blocks[1] and not sessions[0] & sessions[1]
    assert merged.meta.num_rows_read == left.meta.num_rows_read + right.meta.num_rows_read
