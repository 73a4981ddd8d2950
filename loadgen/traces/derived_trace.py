"""A trace made of another one: its sidecar goes on from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_meta import Transform
from loadgen.traces.trace_request import TraceRequest


def derived(
    trace: Trace,
    requests: Sequence[TraceRequest],
    transform: Transform,
    drop_reason: str | None = None,
    seed: int | None = None,
) -> Trace:
    """The trace after one more change.

    Args:
        trace: what it was before.
        requests: what it is now; those that are fewer are counted as dropped for `drop_reason`.
        transform: the change.
        drop_reason: must be there if requests may be.
        seed: what the change drew with. The sidecar's own seed is the first one; the others are in their transforms.

    Raises:
        TraceError: no request is left.
    """
    if not requests:
        details = " ".join(f"{name}={value}" for name, value in transform.details.items())
        raise TraceError(f"{transform.name} ({details}) leaves none of {len(trace.requests)} requests")
    dropped = dict(trace.meta.num_dropped)
    num_dropped = len(trace.requests) - len(requests)
    if num_dropped and drop_reason is not None:
        dropped[drop_reason] = dropped.get(drop_reason, 0) + num_dropped
    meta = dataclasses.replace(
        trace.meta,
        num_rows_emitted=len(requests),
        num_dropped=dropped,
        seed=seed if trace.meta.seed is None else trace.meta.seed,
        transforms=(*trace.meta.transforms, transform),
    )
    meta.check()
    return Trace(tuple(requests), meta)
