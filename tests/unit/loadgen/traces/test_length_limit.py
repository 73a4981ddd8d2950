"""Requests longer than a model reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces.length_limit import TooLong, limit_lengths
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_request import TraceRequest


def request(in_tokens: int, out_tokens: int, block: int | None = None) -> TraceRequest:
    prefix = None if block is None else tuple(range(-(-in_tokens // block)))
    return TraceRequest(0.0, in_tokens, out_tokens, prefix=prefix, block=block)


def lengths(requests: tuple[TraceRequest, ...]) -> list[tuple[int, int]]:
    return [(each.in_tokens, each.out_tokens) for each in requests]


def test_clip_cuts_the_prompt_and_of_an_answer_what_exceeds_half() -> None:
    limited = limit_lengths([request(60, 40), request(500, 30), request(500, 90), request(5, 500)], 100, "clip")
    assert lengths(limited.requests) == [(60, 40), (70, 30), (50, 50), (5, 95)]
    assert limited.num_too_long == 3
    assert limited.transform.details == {"max_tokens": 100, "policy": "clip", "too_long": 3}


def test_clip_cuts_the_block_ids_with_the_prompt() -> None:
    (clipped,) = limit_lengths([request(500, 30, block=16)], 100, "clip").requests
    assert clipped.prefix == tuple(range(5))  # 70 tokens in blocks of 16
    clipped.check()


def test_scale_keeps_proportions_and_shared_blocks() -> None:
    limited = limit_lengths([request(4000, 96, block=512), request(1024, 48, block=512)], 1025, "scale")
    assert lengths(limited.requests) == [(1000, 24), (256, 12)]
    assert [each.block for each in limited.requests] == [128, 128]
    assert limited.requests[0].prefix == tuple(range(8)) and limited.requests[1].prefix == (0, 1)


def test_drop_and_fail() -> None:
    requests = [request(60, 40), request(61, 40)]
    assert lengths(limit_lengths(requests, 100, "drop").requests) == [(60, 40)]
    with pytest.raises(TraceError, match="1 of 2 requests are longer than 100 tokens, the longest has 101"):
        limit_lengths(requests, 100, "fail")
    assert lengths(limit_lengths(requests, 101, "fail").requests) == [(60, 40), (61, 40)]


def test_turns_after_a_dropped_one_go_too() -> None:
    requests = [
        request(90, 40),
        request(5, 5),
        TraceRequest(1.0, 6, 5, turn=1, after=0, think_s=1.0),
        TraceRequest(2.0, 7, 5, turn=1, after=1, think_s=1.0),
        TraceRequest(3.0, 8, 5, turn=2, after=2, think_s=1.0),
        TraceRequest(4.0, 9, 5, turn=2, after=3, think_s=1.0),
    ]
    limited = limit_lengths(requests, 100, "drop")
    assert [(each.in_tokens, each.after) for each in limited.requests] == [(5, None), (7, 0), (9, 1)]
    assert limited.num_too_long == 1


def test_blocks_too_small_to_scale_are_refused() -> None:
    with pytest.raises(TraceError, match="a block of 16 tokens is empty"):
        limit_lengths([request(4000, 96, block=16)], 100, "scale")


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(TraceError, match="a limit of 1 tokens"):
        limit_lengths([request(1, 1)], 1, "clip")


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=6),
    max_tokens=st.integers(2, 6000),
    policy=st.sampled_from(["drop", "clip", "scale"]),
    block=st.sampled_from([None, 512]),
)
def test_whatever_the_policy_all_fit_and_are_sound(
    sizes: list[tuple[int, int]], max_tokens: int, policy: TooLong, block: int | None
) -> None:
    requests = [request(in_tokens, out_tokens, block) for in_tokens, out_tokens in sizes]
    num_too_long = sum(in_tokens + out_tokens > max_tokens for in_tokens, out_tokens in sizes)
    try:
        limited = limit_lengths(requests, max_tokens, policy)
    except TraceError:
        longest = max(in_tokens + out_tokens for in_tokens, out_tokens in sizes)
        assert policy == "scale" and block is not None and 512 * (max_tokens - 1) < longest
        return
    assert limited.num_too_long == num_too_long
    assert len(limited.requests) == len(requests) - (num_too_long if policy == "drop" else 0)
    for each in limited.requests:
        each.check()
        assert each.in_tokens + each.out_tokens <= max_tokens
