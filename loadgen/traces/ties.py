"""Arrival times that were recorded in coarse steps."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import statistics
from collections.abc import Sequence

from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import Transform
from loadgen.traces.trace_request import TraceRequest

_MIN_TIED_SHARE = 0.5
"""Below it, equal times are chance and no step."""


def num_tied(requests: Sequence[TraceRequest]) -> int:
    """How many requests share their time with another."""
    counts = collections.Counter(request.t_s for request in requests)
    return sum(count for count in counts.values() if count > 1)


def is_stepped(requests: Sequence[TraceRequest]) -> bool:
    """Whether times are those of a coarse clock: replayed as they are, a square wave."""
    return bool(requests) and num_tied(requests) >= _MIN_TIED_SHARE * len(requests)


def spread_ties(requests: Sequence[TraceRequest], seed: int) -> tuple[list[TraceRequest], Transform]:
    """Draw each time anew, uniformly from its step, so that none passes the next step.

    The step is the median distance of neighbouring distinct times; after a silence a step is no longer than that.

    Args:
        requests: in the order of their times.
        seed: the same one gives the same times.

    Raises:
        TraceError: the times are in no steps, or all are equal; or requests wait for others, whose order this breaks.
    """
    times = sorted({request.t_s for request in requests})
    if not is_stepped(requests) or len(times) < 2:
        raise TraceError(
            f"{num_tied(requests)} of {len(requests)} requests share their time with another, at {len(times)} distinct "
            "times: there is no step to spread them in; leave out --spread-ties"
        )
    if any(request.after is not None for request in requests):
        raise TraceError("requests that wait for others cannot be spread; leave out --spread-ties")
    step_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(times))
    ends = {earlier: min(later, earlier + step_s) for earlier, later in itertools.pairwise(times)}
    rng = random.Random(seed)
    ends[times[-1]] = times[-1] + step_s
    spread = [
        dataclasses.replace(request, t_s=round(rng.uniform(request.t_s, ends[request.t_s]), 9)) for request in requests
    ]
    spread.sort(key=lambda request: request.t_s)
    details: dict[str, int | float | str] = {"step_s": round(step_s, 9), "tied": num_tied(requests), "seed": seed}
    return spread, Transform("spread_ties", details)
