"""A piece of a trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from loadgen.traces.conversations import keep
from loadgen.traces.derived_trace import derived
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_meta import Transform


def cut_time(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The requests of [start_s, end_s), whose beginning becomes 0. A conversation that began before goes on without
    its earlier turns, and its first one here waits for nothing.

    Raises:
        TraceError: the window is empty, or no request is in it.
    """
    if not 0.0 <= start_s < end_s:
        raise TraceError(f"a window from {start_s:g} to {end_s:g} s is empty; give 0 <= --from < --to")
    is_kept = [start_s <= request.t_s < end_s for request in trace.requests]
    end = "end" if math.isinf(end_s) else end_s
    return _cut(trace, is_kept, start_s, {"from_s": start_s, "to_s": end})


def cut_rows(trace: Trace, first: int, end: int | None) -> Trace:
    """The requests with ids in [first, end), the first of which comes at 0.

    Raises:
        TraceError: there is no such row.
    """
    num_rows = len(trace.requests)
    last = num_rows if end is None else min(end, num_rows)
    if not 0 <= first < last:
        raise TraceError(f"rows {first} to {last} are none; the trace has rows 0 to {num_rows - 1}")
    is_kept = [first <= index < last for index in range(num_rows)]
    return _cut(trace, is_kept, trace.requests[first].t_s, {"first_row": first, "end_row": last})


def _cut(trace: Trace, is_kept: Sequence[bool], origin_s: float, details: dict[str, int | float | str]) -> Trace:
    kept = keep(trace.requests, is_kept)
    requests = [dataclasses.replace(each, t_s=round(each.t_s - origin_s, 9)) for each in kept.requests]
    transform = Transform("cut", {**details, "links_cut": kept.num_links_cut})
    return derived(trace, requests, transform, "cut")
