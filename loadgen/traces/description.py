"""What a trace is like: rates, burstiness, lengths, and how much of its prompts an endless cache would hold."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from loadgen.traces.conversations import conversations, keep
from loadgen.traces.trace_request import TraceRequest

_QUANTILES = (0.5, 0.9, 0.99)


@dataclasses.dataclass(frozen=True, slots=True)
class LengthQuantiles:
    """Tokens; quantiles are interpolated."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclasses.dataclass(frozen=True, slots=True)
class SessionFigures:
    """What is told of conversations."""

    num_sessions: int
    """Requests that belong together, also those of one turn."""
    num_requests: int
    """In them."""
    max_turns: int
    num_waiting: int
    """Requests that wait for the answer of another."""
    mean_think_s: float | None
    """From an answer to the next turn; None: not told."""

    @property
    def mean_turns(self) -> float:
        return self.num_requests / self.num_sessions


@dataclasses.dataclass(frozen=True, slots=True)
class TraceDescription:
    """The figures of one trace."""

    num_requests: int
    num_distinct_times: int
    duration_s: float
    """From the first request to the last."""
    rate_per_s: float | None
    """One over the mean gap; None: there is no time between requests."""
    max_in_one_second: int
    longest_gap_s: float
    gap_cv: float | None
    """Standard deviation of the gaps over their mean: 1 for Poisson arrivals, more for bursts. None: no gaps."""
    dispersion: float | None
    """Variance over mean of the requests in each whole second of the trace: 1 for Poisson. None: under one second."""
    in_tokens: LengthQuantiles
    out_tokens: LengthQuantiles
    num_by_class: dict[str | None, int]
    sessions: SessionFigures | None
    """None: no request is of a session or waits for another."""
    num_blocks: int
    """Of all prompts that have block ids."""
    num_cached_blocks: int
    """Of them, those that lead a prompt and that an earlier prompt had: the hits of a cache without end."""

    @property
    def block_hit_rate(self) -> float | None:
        """None: the trace has no block ids."""
        return self.num_cached_blocks / self.num_blocks if self.num_blocks else None


def describe(requests: Sequence[TraceRequest]) -> TraceDescription:
    """The figures of at least one request, in the order of their times."""
    times = np.array([request.t_s for request in requests], dtype=np.float64)
    gaps = np.diff(times)
    seconds = np.bincount((times - times[0]).astype(np.int64))
    # The last second is cut off somewhere by the end of the trace, and would count as a quiet one.
    whole_seconds = seconds[:-1]
    num_blocks, num_cached_blocks = _count_blocks(requests)
    return TraceDescription(
        num_requests=len(requests),
        num_distinct_times=int(np.unique(times).size),
        duration_s=float(times[-1] - times[0]),
        rate_per_s=float(1.0 / gaps.mean()) if gaps.any() else None,
        max_in_one_second=int(seconds.max()),
        longest_gap_s=float(gaps.max()) if gaps.size else 0.0,
        gap_cv=float(gaps.std() / gaps.mean()) if gaps.any() else None,
        dispersion=float(whole_seconds.var() / whole_seconds.mean()) if whole_seconds.any() else None,
        in_tokens=_lengths(request.in_tokens for request in requests),
        out_tokens=_lengths(request.out_tokens for request in requests),
        sessions=_sessions(requests),
        num_by_class=dict(collections.Counter(request.slo_class for request in requests)),
        num_blocks=num_blocks,
        num_cached_blocks=num_cached_blocks,
    )


def describe_classes(requests: Sequence[TraceRequest]) -> dict[str | None, TraceDescription]:
    """The figures of each class alone, in the order of their names, those of no class at the end.

    Blocks count as cached only where a request of the same class had them.
    """
    names = sorted({request.slo_class for request in requests}, key=lambda name: (name is None, name or ""))
    return {name: describe(keep(requests, [each.slo_class == name for each in requests]).requests) for name in names}


def _sessions(requests: Sequence[TraceRequest]) -> SessionFigures | None:
    told = [request.session is not None or request.after is not None for request in requests]
    if not any(told):
        return None
    roots = conversations(requests)
    # The request that another one waits for is of its conversation, also where it has no session.
    sizes = collections.Counter(roots)
    inside = {root for root, is_told in zip(roots, told, strict=True) if is_told}
    think_s = [request.think_s for request in requests if request.think_s is not None]
    return SessionFigures(
        num_sessions=len(inside),
        num_requests=sum(sizes[root] for root in inside),
        max_turns=max(sizes[root] for root in inside),
        num_waiting=sum(request.after is not None for request in requests),
        mean_think_s=sum(think_s) / len(think_s) if think_s else None,
    )


def _lengths(tokens: Iterable[int]) -> LengthQuantiles:
    array = np.fromiter(tokens, dtype=np.int64)
    p50, p90, p99 = (float(value) for value in np.quantile(array, _QUANTILES))
    return LengthQuantiles(float(array.mean()), p50, p90, p99, int(array.max()))


def _count_blocks(requests: Sequence[TraceRequest]) -> tuple[int, int]:
    """Blocks of all prompts, and those found in the cache. A block behind a miss is of no use, though it was seen."""
    seen: set[int] = set()
    num_blocks = num_cached = 0
    for request in requests:
        prefix = request.prefix or ()
        num_blocks += len(prefix)
        num_cached += next((index for index, block in enumerate(prefix) if block not in seen), len(prefix))
        seen.update(prefix)
    return num_blocks, num_cached
