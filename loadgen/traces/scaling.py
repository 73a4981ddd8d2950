"""The same load, faster or slower."""

from __future__ import annotations

import dataclasses
import math

from loadgen.traces.derived_trace import derived
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_meta import Transform


def scale_time(trace: Trace, factor: float) -> Trace:
    """Stretch all times by a factor, think times too: 2 makes the trace twice as long and its rate half.

    Raises:
        TraceError: the factor is not above 0.
    """
    if not (math.isfinite(factor) and factor > 0.0):
        raise TraceError(f"the factor of times is {factor}, it must be finite and above 0")
    requests = [
        dataclasses.replace(
            request,
            t_s=round(request.t_s * factor, 9),
            think_s=None if request.think_s is None else round(request.think_s * factor, 9),
        )
        for request in trace.requests
    ]
    return derived(trace, requests, Transform("scale_time", {"factor": factor}))


def scale_to_rate(trace: Trace, rate_per_s: float) -> Trace:
    """Stretch all times so that requests come at this mean rate, one over the mean gap.

    Raises:
        TraceError: the rate is not above 0, or the trace has no time between its requests.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0.0):
        raise TraceError(f"the rate is {rate_per_s} requests/s, it must be finite and above 0")
    length_s = trace.requests[-1].t_s - trace.requests[0].t_s
    if length_s <= 0.0:
        raise TraceError(f"{len(trace.requests)} requests at one time have no rate to scale")
    return scale_time(trace, (len(trace.requests) - 1) / length_s / rate_per_s)
