"""Rows of a trace that are longer than the model reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from loadgen.config import BenchError
from loadgen.traces.length_limit import limit_lengths
from loadgen.traces.trace_request import TraceRequest

_ROOM = 0.02
"""Share of the limit that a clipped row leaves free: words are tokens only about."""


class RowLimit:
    """Fails, drops or clips; counts. Rows keep their ids, so that two runs can be paired whatever was dropped."""

    def __init__(self, max_model_len: int | None, policy: Literal["fail", "drop", "clip"]) -> None:
        """`max_model_len` None: no row is too long."""
        self._max_tokens = max_model_len
        self._policy = policy
        self.num_too_long = 0

    def apply(self, requests: Sequence[TraceRequest]) -> Mapping[int, TraceRequest]:
        """The rows that are left, by their ids. A turn after one that is dropped is dropped, and counted, too.

        Raises:
            BenchError: rows are too long and the policy is `fail`, or none is left.
        """
        limit = self._max_tokens
        too_long = {
            row_id
            for row_id, row in enumerate(requests)
            if limit is not None and row.in_tokens + row.out_tokens > limit
        }
        self.num_too_long = len(too_long)
        if limit is None or not too_long:
            return dict(enumerate(requests))
        if self._policy == "fail":
            longest = max(requests[row_id].in_tokens + requests[row_id].out_tokens for row_id in too_long)
            raise BenchError(
                f"{len(too_long)} of the trace's {len(requests)} rows are longer than the {limit} tokens that the "
                f"model reads, the longest has {longest}: choose --too-long drop or clip"
            )
        if self._policy == "clip":
            clipped = max(math.floor(limit * (1.0 - _ROOM)), 2)
            return {
                row_id: limit_lengths([row], clipped, "clip").requests[0] if row_id in too_long else row
                for row_id, row in enumerate(requests)
            }
        return self._without(requests, too_long)

    def _without(self, requests: Sequence[TraceRequest], too_long: set[int]) -> Mapping[int, TraceRequest]:
        dropped = set(too_long)
        for row_id, row in enumerate(requests):  # a turn stands after the one that it waits for
            if row.after in dropped:
                dropped.add(row_id)
        self.num_too_long = len(dropped)
        if len(dropped) == len(requests):
            raise BenchError(f"every row of the trace exceeds the {self._max_tokens} tokens that the model reads")
        return {row_id: row for row_id, row in enumerate(requests) if row_id not in dropped}
