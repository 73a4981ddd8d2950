"""Requests that are longer than a model reads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from loadgen.traces.conversations import keep
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import Transform
from loadgen.traces.trace_request import TraceRequest

TooLong = Literal["fail", "drop", "clip", "scale"]


@dataclasses.dataclass(frozen=True, slots=True)
class LimitedRequests:
    """What is left, and what was done."""

    requests: tuple[TraceRequest, ...]
    num_too_long: int
    transform: Transform


def limit_lengths(requests: Sequence[TraceRequest], max_tokens: int, policy: TooLong) -> LimitedRequests:
    """Make prompt and answer together fit into `max_tokens`.

    `drop` leaves the long ones out, and the turns that go on after them. `clip` cuts the end of their prompts, and of
    an answer only what exceeds half of the limit. `scale` shrinks *all* requests, and their blocks, by one factor, so
    that their proportions stay.

    Raises:
        TraceError: a request is too long and the policy is `fail`; or the policy cannot be followed.
    """
    if max_tokens < 2:
        raise TraceError(f"a limit of {max_tokens} tokens holds no prompt and answer; it must be at least 2")
    num_too_long = sum(_total(request) > max_tokens for request in requests)
    limited = list(requests)
    if num_too_long:
        limited = _limit(requests, max_tokens, policy, num_too_long)
    details: dict[str, int | float | str] = {"max_tokens": max_tokens, "policy": policy, "too_long": num_too_long}
    return LimitedRequests(tuple(limited), num_too_long, Transform("too_long", details))


def _total(request: TraceRequest) -> int:
    return request.in_tokens + request.out_tokens


def _limit(requests: Sequence[TraceRequest], max_tokens: int, policy: TooLong, num_too_long: int) -> list[TraceRequest]:
    if policy == "clip":
        return [_clip(request, max_tokens) for request in requests]
    if policy == "scale":
        return _scale(requests, max_tokens)
    if policy == "drop":
        return _drop(requests, max_tokens)
    longest = max(_total(request) for request in requests)
    raise TraceError(
        f"{num_too_long} of {len(requests)} requests are longer than {max_tokens} tokens, the longest has {longest}; "
        "choose --too-long drop, clip or scale"
    )


def _drop(requests: Sequence[TraceRequest], max_tokens: int) -> list[TraceRequest]:
    is_kept: list[bool] = []
    for request in requests:  # a turn stands after the one that it waits for
        is_kept.append(_total(request) <= max_tokens and (request.after is None or is_kept[request.after]))
    return list(keep(requests, is_kept).requests)


def _clip(request: TraceRequest, max_tokens: int) -> TraceRequest:
    if _total(request) <= max_tokens:
        return request
    out_tokens = min(request.out_tokens, max(max_tokens // 2, max_tokens - request.in_tokens))
    return request.with_lengths(min(request.in_tokens, max_tokens - out_tokens), out_tokens)


def _scale(requests: Sequence[TraceRequest], max_tokens: int) -> list[TraceRequest]:
    # One token less, since prompts are rounded up: with blocks that keeps a prompt as long as its ids say.
    ratio = Fraction(max_tokens - 1, max(_total(request) for request in requests))
    blocks = {request.block for request in requests if request.block is not None}
    if len(blocks) > 1:
        raise TraceError(f"blocks of {sorted(blocks)} tokens cannot be scaled by one factor; drop or clip instead")
    block: int | None = None
    if blocks:
        (size,) = blocks
        block = math.floor(size * ratio)
        if block < 1:
            raise TraceError(f"scaled by {float(ratio):.2g}, a block of {size} tokens is empty; drop or clip instead")
        ratio = Fraction(block, size)
    return [
        dataclasses.replace(
            request,
            in_tokens=math.ceil(request.in_tokens * ratio),
            out_tokens=max(1, math.floor(request.out_tokens * ratio)),
            block=None if request.block is None else block,
        )
        for request in requests
    ]
